use std::sync::Arc;

use lockstep_core::restart::{Exit, Heartbeat, Identity, StandbyReport, Standbys, UnixNanos};

use super::*;

/// A report of a worker: how many of its processes came from standbys and how many started cold,
/// and how many of two standbys are ready.
fn report(phase: Phase, generation: u64, starts: [u32; 2], ready: u32) -> Report {
    let standby = StandbyReport {
        starts: Some(Starts {
            standby: starts[0],
            cold: starts[1],
            ahead_ms: 900,
        }),
        standbys: Some(Standbys {
            wanted: 2,
            ready,
            ..Standbys::default()
        }),
    };
    Report {
        identity: Identity {
            job: "js-w-0".into(),
            index: 0,
            container: "worker".into(),
        },
        node: "n1".into(),
        pod_name: "pod".into(),
        phase,
        generation: Generation(generation),
        counted_restarts: 0,
        since: UnixNanos(7),
        heartbeat: Heartbeat::Well,
        released_generation: None,
        standby: Some(Arc::new(standby)),
        progress: None,
    }
}

fn observed(reports: impl IntoIterator<Item = Report>) -> Observed {
    let named = |(number, report): (usize, Report)| {
        let incarnation = Incarnation {
            pod_uid: format!("p{number}"),
            container_id: "c".into(),
        };
        (incarnation, report)
    };
    Observed {
        reports: reports.into_iter().enumerate().map(named).collect(),
        ..Observed::default()
    }
}

/// The counted starts from a standby and without.
fn starts(metrics: &StandbyMetrics) -> [u64; 2] {
    ["standby", "cold"].map(|kind| metrics.starts.get_or_create(&StartLabels { kind }).get())
}

/// The standbys that are ready and wanted.
fn standbys(metrics: &StandbyMetrics) -> [i64; 2] {
    ["ready", "wanted"].map(|state| metrics.standbys.get_or_create(&StandbyLabels { state }).get())
}

#[test]
fn each_start_of_a_restart_counts_once() {
    let metrics = StandbyMetrics::default();
    let mut group = metrics.of_group(Generation(3));
    let mut count = |report: Report| {
        // Reading the same again changes nothing.
        for _ in 0..2 {
            group.count_starts(&observed([report.clone()]));
        }
        starts(&metrics)
    };
    assert_eq!(
        count(report(Phase::Running, 3, [0, 1], 0)),
        [0, 0],
        "a former leader counts it"
    );
    assert_eq!(
        count(report(Phase::Parked, 4, [0, 1], 1)),
        [0, 0],
        "of the attempt before"
    );
    // torchrun runs first, then its ranks.
    assert_eq!(count(report(Phase::Running, 4, [1, 0], 0)), [1, 0]);
    assert_eq!(count(report(Phase::Running, 4, [3, 1], 0)), [3, 1]);
    assert_eq!(
        count(report(Phase::Exited(Exit::default()), 4, [3, 1], 0)),
        [3, 1]
    );
    assert_eq!(count(report(Phase::Running, 5, [1, 0], 0)), [4, 1]);
    assert_eq!(count(report(Phase::Unlinked, 5, [1, 0], 0)), [4, 1]);
    assert_eq!(count(report(Phase::Running, 5, [1, 0], 0)), [4, 1]);
}

#[test]
fn the_gauge_holds_what_the_groups_report_now() {
    let metrics = StandbyMetrics::default();
    let mut one = metrics.of_group(Generation(0));
    let mut other = metrics.of_group(Generation(0));
    let running = |ready| report(Phase::Running, 0, [0, 1], ready);
    one.count_starts(&observed([running(1), running(2)]));
    other.count_starts(&observed([running(0)]));
    assert_eq!(standbys(&metrics), [3, 6]);
    // A container that has ended holds no standbys, whatever its last report says.
    let lost = report(Phase::Lost(Exit::default()), 0, [0, 1], 2);
    one.count_starts(&observed([running(2), lost]));
    assert_eq!(standbys(&metrics), [2, 4]);
    drop(one);
    assert_eq!(standbys(&metrics), [0, 2]);
    other.count_starts(&observed([]));
    assert_eq!(standbys(&metrics), [0, 0]);
}
