use super::*;
use crate::view::testing::before;

fn entry(generation: u64, phases: Option<Phases>) -> Entry {
    Entry {
        at: Some(before(60)),
        what: "RestartedInPlace".into(),
        generation: Some(generation),
        level: Some("Process".into()),
        took_ms: phases.as_ref().and_then(|phases| phases.running),
        workers: Some(4),
        replaced_pods: Some(0),
        from_standbys: None,
        ahead_ms: None,
        cause: "worker a[1]/worker exited with code 3".into(),
        phases,
        source: "event",
        reporter: None,
    }
}

fn phases() -> Phases {
    Phases {
        detected: Some(1.2),
        pushed: Some(1.3),
        written: None,
        stopped: Some(9.0),
        parked: Some(8.9),
        released: Some(12.0),
        running: Some(31.2),
    }
}

fn history(entries: Vec<Entry>) -> History {
    History {
        namespace: "team".into(),
        name: "ring".into(),
        restarts: 2,
        max_restarts: 10,
        generation: 3,
        entries,
    }
}

#[test]
fn the_last_completed_restart_is_shown_by_default() {
    let history = history(vec![
        entry(1, Some(phases())),
        entry(2, Some(phases())),
        entry(3, None),
    ]);
    assert_eq!(timeline(&history, None).unwrap().generation, Some(2));
    assert_eq!(timeline(&history, Some(1)).unwrap().generation, Some(1));
    let error = timeline(&history, Some(3)).unwrap_err().to_string();
    assert_eq!(
        error,
        "--generation 3: no such restart of team/ring is known; known generations: 1, 2"
    );
}

#[test]
fn a_phase_needs_both_ends_and_does_not_end_before_it_begins() {
    let restart = timeline(&history(vec![entry(1, Some(phases()))]), None).unwrap();
    let spans: Vec<_> = restart
        .phases
        .iter()
        .map(|span| (span.phase, span.from_ms, span.to_ms))
        .collect();
    assert_eq!(
        spans,
        [
            ("detect", 0.0, 1.2),
            ("push", 1.2, 1.3),
            ("stop", 1.2, 9.0),
            ("park", 9.0, 9.0),
            ("release", 8.9, 12.0),
            ("run", 12.0, 31.2),
        ]
    );
}

#[test]
fn an_unknown_restart_is_an_error() {
    for generation in [None, Some(1)] {
        let error = timeline(&history(Vec::new()), generation)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("no completed restart of team/ring is known"),
            "{error}"
        );
    }
}
