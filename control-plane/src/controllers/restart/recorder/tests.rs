use futures::FutureExt as _;
use lockstep_core::restart::{Blocked, BlockedReason, Generation, Reason};

use super::*;

fn cause() -> Cause {
    Cause {
        reason: Reason::WorkerExited,
        identity: None,
        pod: "js-w-0-1-abcde".to_owned(),
        node: "node-7".to_owned(),
        exit: None,
        at: None,
    }
}

/// The reasons and notes of the events for these announcements, with node-7 without agents.
fn events(announcements: Vec<Announcement>) -> Vec<(String, String)> {
    let (events, mut queue) = event_queue::queue();
    let announcer = RestartRecorder {
        events,
        dropped: Arc::default(),
        metrics: RestartMetrics::register(&Metrics::default()),
        traces: RestartTraces::new(Traces::default()),
    };
    for announcement in announcements {
        let why = |node: &str| (node == "node-7").then(|| "no NRI".to_owned());
        announcer.announce(&JobSet::default(), announcement, why);
    }
    drop(announcer);
    std::iter::from_fn(|| queue.next().now_or_never().flatten())
        .filter_map(|turn| turn.event.reason.clone().zip(turn.event.note.clone()))
        .collect()
}

#[test]
fn the_end_of_all_restarts_is_left_to_the_condition() {
    let exhausted = Announcement::Exhausted { cause: cause() };
    let recreating = Announcement::Recreating {
        generation: Generation(2),
        cause: cause(),
    };
    let [(reason, _)] = &events(vec![exhausted, recreating])[..] else {
        panic!("not one event");
    };
    assert_eq!(reason, "RecreatingJobs");
}

#[test]
fn what_blocks_a_restart_is_told_with_what_the_daemon_of_the_node_says() {
    let told = |node: &str| {
        let blocked = Announcement::Blocked(Blocked {
            reason: BlockedReason::WorkerNotReported,
            pod: "js-w-0-1-abcde".to_owned(),
            node: node.to_owned(),
        });
        let mut events = events(vec![blocked]);
        assert_eq!(events.len(), 1);
        events.remove(0)
    };
    let (reason, note) = told("node-7");
    assert_eq!(reason, "RestartBlocked");
    let end = "The daemon says that no agent gets into containers there: no NRI";
    assert!(
        note.starts_with("pod js-w-0-1-abcde runs on node node-7, ") && note.ends_with(end),
        "{note}"
    );
    assert!(!told("node-8").1.contains("The daemon says"));
}
