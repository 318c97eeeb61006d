use super::*;
use crate::restart::{Standbys, Starts, Timeline};

fn running() -> Report {
    Report {
        identity: Identity {
            job: "js-w-0".into(),
            index: 0,
            container: "worker".into(),
        },
        node: "node".to_owned(),
        pod_name: "pod".to_owned(),
        phase: Phase::Running,
        generation: Generation(3),
        counted_restarts: 0,
        since: UnixNanos(0),
        heartbeat: Heartbeat::Well,
        released_generation: None,
        standby: None,
        progress: None,
    }
}

fn with_ready(ready: u32) -> Report {
    let standby = StandbyReport {
        starts: Some(Starts::default()),
        standbys: Some(Standbys {
            wanted: 4,
            ready,
            ..Standbys::default()
        }),
    };
    Report {
        standby: Some(Arc::new(standby)),
        ..running()
    }
}

#[test]
fn what_is_only_shown_is_told_from_what_decisions_depend_on() {
    let mut known = running();
    assert_eq!(known.follow(&running()), Difference::None);
    let at_step = |step| Report {
        progress: Some(Arc::new(Progress {
            step: Some(step),
            ..Progress::default()
        })),
        ..running()
    };
    for newer in [
        with_ready(0),
        with_ready(1),
        running(),
        at_step(1),
        at_step(2),
        with_ready(1),
    ] {
        assert_eq!(known.follow(&newer), Difference::Shown);
        assert_eq!(known, newer);
        assert_eq!(known.follow(&newer), Difference::None);
    }
    // Both at once.
    let parked = Report {
        phase: Phase::Parked,
        ..with_ready(2)
    };
    assert_eq!(known.follow(&parked), Difference::Decisive);
    assert_eq!(known, parked);
    let moved = Report {
        node: "other".to_owned(),
        ..with_ready(3)
    };
    assert_eq!(known.follow(&moved), Difference::Decisive);
    assert_eq!(known, moved);
}

#[test]
fn a_restart_says_how_many_workers_began_from_standbys() {
    let started = |standby, cold, ahead_ms| Report {
        standby: Some(Arc::new(StandbyReport {
            starts: Some(Starts {
                standby,
                cold,
                ahead_ms,
            }),
            standbys: None,
        })),
        ..running()
    };
    let reports = [
        started(1, 0, 900),
        started(0, 1, 0),
        started(3, 1, 1200),
        with_ready(1),
        running(),
    ];
    let mut timeline = Timeline::default();
    timeline.note_starts(reports.iter());
    assert_eq!((timeline.from_standbys, timeline.ahead_ms), (2, 1200));
}
