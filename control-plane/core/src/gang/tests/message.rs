//! The messages about a gang.

use jiff::SignedDuration;
use lockstep_api::{ExecutionPolicy, ExecutionPolicyOrder};

use super::model::part;
use crate::common::testing::{JobSetBuild, jobset};
use crate::gang::{Announcement, Backend, GangEvent, message};

#[test]
fn one_pod_is_no_pods() {
    let seconds = SignedDuration::from_secs;
    for (said, expected) in [
        (message::uncreated(1, 1), "1 of 1 pod has not been created"),
        (message::uncreated(1, 5), "1 of 5 pods has not been created"),
        (message::uncreated(2, 5), "2 of 5 pods have not been created"),
        (
            message::scheduling(1, seconds(60)),
            "1 pod must be bound within 60 s",
        ),
        (
            message::scheduling(2, seconds(60)),
            "2 pods must be bound within 60 s",
        ),
        (
            message::scheduled(1, 1, seconds(3)),
            "the pod is bound, 3 s after its Job was started",
        ),
        (
            message::scheduled(2, 2, seconds(3)),
            "all 2 pods are bound, 3 s after their Jobs were started",
        ),
        (
            message::scheduled(1, 5, seconds(3)),
            "the minimum of 1 pod is bound, 3 s after the Jobs were started",
        ),
        (
            message::scheduled(2, 5, seconds(3)),
            "the minimum of 2 pods is bound, 3 s after the Jobs were started",
        ),
        (
            message::timed_out(0, 1, seconds(60)),
            "0 of 1 pod was bound within 60 s",
        ),
        (
            message::timed_out(0, 2, seconds(60)),
            "0 of 2 pods were bound within 60 s",
        ),
        (
            message::backing_off("late", 1, 1, seconds(4)),
            "late: it is released, and the gang waits again in 5 s",
        ),
        (
            message::backing_off("late", 2, 2, seconds(4)),
            "late: they are released, and the gang waits again in 5 s",
        ),
        (
            message::backing_off("late", 1, 5, seconds(4)),
            "late: all 5 pods are released, and the gang waits again in 5 s",
        ),
    ] {
        assert_eq!(said, expected);
    }
}

#[test]
fn an_event_says_which_of_several_gangs_it_is_about() {
    let of = |gang: &str| Announcement {
        gang: gang.to_owned(),
        backend: Backend::Gates,
        event: GangEvent::Waiting,
        message: "waits".to_owned(),
    };
    let parts = || vec![part("m", 1, 1, 1), part("w", 1, 1, 1)];
    let together = jobset(parts());
    assert_eq!(of("m").message_for(&together), "waits");
    let in_order = jobset(parts()).with(|js| {
        js.spec.execution_policy = Some(ExecutionPolicy {
            execution_policy_order: Some(ExecutionPolicyOrder::InOrder),
            ..ExecutionPolicy::default()
        });
    });
    assert_eq!(of("m").message_for(&in_order), "gang m: waits");
    assert_eq!(of("w").message_for(&in_order), "gang w: waits");
}
