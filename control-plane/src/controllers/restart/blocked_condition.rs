//! The condition `RestartBlocked`: what a group waits for that an operator has to bring about.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::JobSet;
use lockstep_api::conditions::{RESTART_BLOCKED, messages, reasons};
use lockstep_core::restart::{Blockage, Blocked, BlockedReason};

/// The conditions to be, where what is said of the blockage changes them, and what the daemon of a node says of its agents. One that was never true is not
/// added.
pub(super) fn conditions(
    jobset: &JobSet,
    blockage: &Blockage,
    why_without_agents: impl FnOnce(&str) -> Option<String>,
    now: jiff::Timestamp,
) -> Option<Vec<Condition>> {
    let status = jobset.status.as_ref();
    let mut conditions = status.map_or_else(Vec::new, |status| status.conditions.clone());
    let known = conditions
        .iter_mut()
        .find(|condition| condition.type_ == RESTART_BLOCKED);
    let (status, reason, message) = match blockage {
        Blockage::Unknown => return None,
        Blockage::Clear => (
            "False",
            reasons::RESTART_UNBLOCKED,
            messages::RESTART_UNBLOCKED.to_owned(),
        ),
        Blockage::By(blocked) => {
            let message = message(blocked, why_without_agents);
            ("True", blocked.reason.as_str(), message)
        }
    };
    match known {
        None if status == "False" => return None,
        None => conditions.push(Condition {
            type_: RESTART_BLOCKED.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: Time(now),
            observed_generation: None,
        }),
        Some(known) if known.status == status && (status == "False" || known.message == message) => {
            return None;
        }
        Some(known) => {
            if known.status != status {
                known.last_transition_time = Time(now);
            }
            known.status = status.to_owned();
            known.reason = reason.to_owned();
            known.message = message;
        }
    }
    Some(conditions)
}

/// What is to be done about it, for people, with what the daemon of a node says of its agents.
pub(super) fn message(blocked: &Blocked, why_without_agents: impl FnOnce(&str) -> Option<String>) -> String {
    let sentence = sentence(blocked);
    let is_about_agents = blocked.reason == BlockedReason::WorkerNotReported;
    match is_about_agents
        .then(|| why_without_agents(&blocked.node))
        .flatten()
    {
        Some(why) => {
            format!("{sentence}. The daemon says that no agent gets into containers there: {why}")
        }
        None => sentence,
    }
}

fn sentence(blocked: &Blocked) -> String {
    let Blocked { reason, pod, node } = blocked;
    match reason {
        BlockedReason::NodeLost => format!(
            "pod {pod} is on node {node}, which does not report any more: nothing replaces the pod before it is deleted for good, or the node is \
             back or has the taint node.kubernetes.io/out-of-service"
        ),
        BlockedReason::OldPodRemains => format!(
            "pod {pod} of an earlier restart attempt does not go away from node {node}: new workers do not start beside it"
        ),
        BlockedReason::WorkerNotReported => format!(
            "pod {pod} runs on node {node}, but its workers have not been reported as started within alpha.jobset.sigs.k8s.io/inplace-timeout: \
             the node's daemon or NRI is away, or kubelet waits before it starts a container again"
        ),
    }
}

#[cfg(test)]
mod tests;
