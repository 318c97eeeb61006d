//! Which followers are in the wrong domain.

use k8s_openapi::api::core::v1::Pod;

use super::{Member, Role};

/// Type of the condition that an evicted pod gets, so that a podFailurePolicy can tell this from a
/// failure.
pub const CONDITION: &str = "DisruptionTarget";
/// Its reason.
pub const REASON: &str = "ExclusivePlacementViolation";
/// Its message.
pub const MESSAGE: &str = "Pod violated JobSet exclusive placement policy";

/// What must be known to tell which followers of a Job are in the wrong domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question<'a> {
    /// The node that the leader is on.
    pub node: &'a str,
    /// The label of the node whose value is the domain.
    pub topology: &'a str,
}

/// What to find out about a Job with these pods; `None`: nothing, since it has no followers, or not
/// exactly one leader on a node.
#[must_use]
pub fn question<'a>(pods: impl Iterator<Item = &'a Member> + Clone) -> Option<Question<'a>> {
    pods.clone().find(|pod| is_follower(pod))?;
    let mut leaders = pods.filter(|pod| pod.alive && pod.role == Role::Leader);
    let (leader, None) = (leaders.next()?, leaders.next()) else {
        return None;
    };
    Some(Question {
        node: leader.node.as_deref()?,
        topology: &leader.topology,
    })
}

/// The followers of a Job that do not select the domain of their leader. Empty if `asked` is no
/// longer the question, since `domain` is not the answer then.
#[must_use]
pub fn misplaced<'a>(
    pods: impl Iterator<Item = &'a Member> + Clone,
    asked: Question<'_>,
    domain: &str,
) -> Vec<&'a Member> {
    if question(pods.clone()) != Some(asked) {
        return Vec::new();
    }
    pods.filter(|pod| is_follower(pod) && pod.selected.as_deref() != Some(domain))
        .collect()
}

fn is_follower(pod: &Member) -> bool {
    pod.alive && pod.role == Role::Follower
}

pub(super) fn is_marked(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == CONDITION && condition.status == "True")
}
