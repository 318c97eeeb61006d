use futures::FutureExt as _;
use lockstep_core::restart::{Generation, Reason};

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

/// The reasons of the events that these announcements make.
fn events(announcements: Vec<Announcement>) -> Vec<String> {
    let (events, mut queue) = fair::queue();
    let announcer = Announcer {
        events,
        dropped: Arc::default(),
        metrics: RestartMetrics::register(&Metrics::default()),
        traces: RestartTraces::new(Traces::default()),
    };
    for announcement in announcements {
        announcer.announce(&JobSet::default(), announcement);
    }
    drop(announcer);
    std::iter::from_fn(|| queue.next().now_or_never().flatten())
        .filter_map(|turn| turn.event.reason.clone())
        .collect()
}

#[test]
fn the_end_of_all_restarts_is_left_to_the_condition() {
    let exhausted = Announcement::Exhausted { cause: cause() };
    let recreating = Announcement::Recreating {
        generation: Generation(2),
        cause: cause(),
    };
    assert_eq!(events(vec![exhausted, recreating]), ["RecreatingJobs"]);
}
