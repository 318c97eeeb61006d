use super::*;
use crate::restart::{Heartbeat, Identity, Phase, UnixNanos};

fn said(generation: u64, counted_restarts: u32) -> Option<Impossible> {
    let durable = Durable {
        generation: Generation(10),
        latest: Generation(12),
        counted_restarts: 4,
        ..Durable::default()
    };
    durable.contradicts(&Report {
        identity: Identity {
            job: "js-w-0".into(),
            index: 0,
            container: "worker".into(),
        },
        node: "node".to_owned(),
        pod_name: "pod".to_owned(),
        phase: Phase::Running,
        generation: Generation(generation),
        counted_restarts,
        since: UnixNanos(0),
        heartbeat: Heartbeat::Well,
        released_generation: None,
        standby: None,
        progress: None,
    })
}

#[test]
fn leaders_that_could_not_write_and_restored_statuses_are_believed() {
    for (generation, counted_restarts) in [
        (0, 0),
        (12, 4),
        // The leader does not follow it: a user may have reset the count in the status.
        (12, u32::MAX),
        (13, 5),
        (14, 4),
        // The status of a month ago.
        (2_000_000, 1_900_000),
        (12 + FARTHEST, 5),
    ] {
        assert_eq!(
            said(generation, counted_restarts),
            None,
            "{generation}, {counted_restarts}"
        );
    }
}

#[test]
fn what_no_leader_can_have_given_is_not() {
    for generation in [13 + FARTHEST, Generation::LAST.0 + 1, u64::MAX] {
        assert_eq!(said(generation, 5), Some(Impossible::Generation), "{generation}");
    }
    for (generation, counted_restarts) in [(13, 2_000), (13, u32::MAX), (1_000, 3_000)] {
        let impossible = Some(Impossible::CountedRestarts);
        assert_eq!(
            said(generation, counted_restarts),
            impossible,
            "{generation}, {counted_restarts}"
        );
    }
}
