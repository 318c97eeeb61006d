//! Thousands of histories of the whole system, each with different faults at different moments.

use std::time::Instant;

use lockstep_simulation::{replay, replay_large, run, run_large, soak};

use crate::say;

/// Number of seeds with groups of [`WORKERS`] workers. With 2,000 workers, the default of
/// `lockstep-simulation large`, each seed takes minutes.
const LARGE: u64 = 4;
const WORKERS: u32 = 300;
/// Number of seeds in every run of the tests.
const SEEDS: u64 = 20_000;

#[test]
fn every_invariant_holds_in_every_history() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let report = soak(0..SEEDS, threads, 10, |failure| {
        eprintln!("seed {}: {}", failure.seed, failure.violation);
        eprintln!("  cargo run -p lockstep-simulation -- replay {}", failure.seed);
    });
    let rate = report.seeds as f64 / began.elapsed().as_secs_f64();
    say(&format!(
        "{} seeds on {threads} threads: {rate:.0} a second",
        report.seeds
    ));
    assert_eq!(report.failures, []);
    assert!(report.restarts > SEEDS / 2, "{} restarts", report.restarts);
    assert!(
        report.worker_restarts > SEEDS / 10,
        "{} worker restarts",
        report.worker_restarts
    );
    assert!(
        report.requested > SEEDS / 100,
        "{} of them requested",
        report.requested
    );
    assert!(
        report.from_standby > SEEDS / 20,
        "{} starts from a standby",
        report.from_standby
    );
    assert!(
        report.ranks_from_standby > SEEDS / 20,
        "{} ranks from a standby",
        report.ranks_from_standby
    );
    assert!(report.stops > SEEDS / 10, "{} containers stopped", report.stops);
    assert!(
        report.without_agent > SEEDS / 100,
        "{} of them without their agents",
        report.without_agent
    );
}

#[test]
fn every_invariant_holds_in_histories_of_large_groups() {
    let began = Instant::now();
    for seed in 0..LARGE {
        let outcome = run_large(seed, WORKERS);
        say(&format!(
            "seed {seed} with {WORKERS} workers: {} events, {} restarts, after {:.1} s",
            outcome.events,
            outcome.restarts,
            began.elapsed().as_secs_f64()
        ));
        if outcome.violation.is_some() {
            say(&format!(
                "  cargo run -p lockstep-simulation -- replay {seed} --workers {WORKERS}"
            ));
        }
        assert_eq!(outcome.violation, None, "seed {seed}");
    }
}

#[test]
fn a_large_group_has_the_same_history_with_a_trace() {
    let traced = replay_large(0, 20);
    assert!(!traced.trace.is_empty());
    assert_eq!(run_large(0, 20).events, traced.events);
}

#[test]
fn a_seed_is_the_same_history_each_time() {
    for seed in 0..20 {
        let (first, second) = (replay(seed), replay(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(run(seed).events, first.events, "seed {seed}");
    }
}
