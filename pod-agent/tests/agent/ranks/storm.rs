//! Kills at any moment: nothing hangs, and nothing is left.

use super::*;

/// A small generator of numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

#[test]
fn a_stand_in_that_is_killed_takes_its_rank_along() {
    let job = Job::from_standbys(2, false);
    let shims: Vec<i32> = job.shims().iter().map(|process| process.inner).collect();
    assert_eq!(shims.len(), 2);
    kill_inner(&job.rig, shims[0]);
    assert_eq!(job.end(0), "-9");
    job.await_gone(job.rank(0).0);
    assert!(job.is_there(job.rank(1).0));
    kill_inner(&job.rig, job.rank(1).0);
    assert_eq!(job.end(1), "-9");
    assert_eq!(job.shims(), []);
}

#[test]
fn no_kill_at_any_moment_makes_it_hang_or_leaves_something() {
    // More of them are worth a longer search.
    let asked = std::env::var("LOCKSTEP_SOAK_SEEDS").ok();
    let seeds = asked.map_or(1, |asked| asked.parse().expect("a number"));
    for seed in 11..11 + seeds {
        storm(seed);
    }
}

fn storm(seed: u64) {
    const RANKS: u32 = 3;
    const ROUNDS: u32 = 6;
    let mut random = Random(seed);
    let mut job = Job::start(Way::Hooked, RANKS, false);
    let mut from_standbys = 0;
    for round in 0..ROUNDS {
        // Undisturbed, everything runs, and all is ready for the next attempt.
        job.await_up(RANKS);
        job.await_standbys(1 + RANKS);
        job.restart();
        // Stand-ins, ranks, and standbys that are just being released.
        for _ in 0..random.below(6) {
            std::thread::sleep(std::time::Duration::from_millis(random.below(40) as u64));
            kill_one(&job, &mut random);
        }
        if round + 1 == ROUNDS {
            // Standbys that wait, too: until the next attempt there are no others.
            std::thread::sleep(std::time::Duration::from_millis(random.below(3000) as u64));
            kill_one(&job, &mut random);
        }
        from_standbys += job.restart();
    }
    assert!(
        from_standbys > ROUNDS,
        "{from_standbys} from standbys, seed {seed}"
    );
    job.await_up(RANKS);
    job.attempt += 1;
    job.daemon.send(asked(stop_hard(job.attempt)));
    job.daemon.until(Phase::Parked, job.attempt);
    let descriptors = fs::read_dir(format!("/proc/{}/fd", job.rig.agent()))
        .expect("fd")
        .count();
    assert!(descriptors < 30, "{descriptors}, seed {seed}");
    let waiting = job.rig.others();
    assert!(waiting.len() <= 1 + RANKS as usize, "{waiting:?}, seed {seed}");
    assert_eq!(job.shims(), [], "seed {seed}");
}

/// Kills a process of some rank, or a standby of one.
fn kill_one(job: &Job, random: &mut Random) {
    let mut found = job.rig.others();
    found.retain(|process| !process.zombie && process.command.contains("rank.py"));
    if !found.is_empty() {
        kill_inner(&job.rig, found[random.below(found.len())].inner);
    }
}
