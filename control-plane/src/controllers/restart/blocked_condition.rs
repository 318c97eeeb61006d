//! The condition `RestartBlocked`: what an operator has to do before a group's restart can
//! continue.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::JobSet;
use lockstep_api::conditions::{RESTART_BLOCKED, messages, reasons};
use lockstep_core::restart::{Blockage, Blocked, BlockedReason};

/// The JobSet's conditions, if the blockage changes them. The condition is not added before it is
/// true for the first time. `why_without_agents` returns why a node has no agents, as its daemon
/// reports it.
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

/// What blocks the restart and what an operator can do, with the report of the node's daemon if
/// agents are missing.
pub(super) fn message(blocked: &Blocked, why_without_agents: impl FnOnce(&str) -> Option<String>) -> String {
    let sentence = sentence(blocked);
    let is_about_agents = blocked.reason == BlockedReason::WorkerNotReported;
    match is_about_agents
        .then(|| why_without_agents(&blocked.node))
        .flatten()
    {
        Some(why) => {
            format!("{sentence}. The node's daemon reports that agents cannot get into containers: {why}")
        }
        None => sentence,
    }
}

fn sentence(blocked: &Blocked) -> String {
    let Blocked { reason, pod, node } = blocked;
    match reason {
        BlockedReason::NodeLost => format!(
            "pod {pod} is on node {node}, which no longer reports: the pod is not replaced before it is gone, the node is back, or the node has \
             the taint node.kubernetes.io/out-of-service"
        ),
        BlockedReason::OldPodRemains => format!(
            "pod {pod} of an earlier restart attempt is still on node {node}: new workers do not start before it is gone"
        ),
        BlockedReason::WorkerNotReported => format!(
            "pod {pod} runs on node {node}, but its workers have not been reported as started within alpha.jobset.sigs.k8s.io/inplace-timeout: \
             the node's daemon or NRI is not available, or the kubelet waits before it restarts a container"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(pod: &str) -> Blockage {
        Blockage::By(Blocked {
            reason: BlockedReason::NodeLost,
            pod: pod.to_owned(),
            node: "n1".to_owned(),
        })
    }

    fn none(_: &str) -> Option<String> {
        None
    }

    fn at(seconds: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_group_that_was_never_blocked_is_not_written() {
        let jobset = JobSet::default();
        assert_eq!(conditions(&jobset, &Blockage::Clear, none, at(1)), None);
        assert_eq!(conditions(&jobset, &Blockage::Unknown, none, at(1)), None);
    }

    #[test]
    fn it_is_written_once_when_it_begins_changes_and_ends() {
        let mut jobset = JobSet::default();
        let other = Condition {
            type_: "Suspended".to_owned(),
            ..conditions(&jobset, &by("a"), none, at(0)).unwrap().remove(0)
        };
        jobset.status.get_or_insert_default().conditions = vec![other.clone()];
        let mut step = |blockage: &Blockage, seconds| {
            let changed = conditions(&jobset, blockage, none, at(seconds))?;
            assert_eq!(changed[0], other, "what others say stays");
            jobset
                .status
                .get_or_insert_default()
                .conditions
                .clone_from(&changed);
            let condition = changed[1].clone();
            Some((
                condition.status,
                condition.reason,
                condition.last_transition_time.0,
            ))
        };
        let expected =
            |status: &str, reason: &str, seconds| Some((status.to_owned(), reason.to_owned(), at(seconds)));
        assert_eq!(step(&by("a"), 1), expected("True", "NodeLost", 1));
        assert_eq!(step(&by("a"), 2), None);
        assert_eq!(step(&Blockage::Unknown, 3), None);
        assert_eq!(step(&by("b"), 4), expected("True", "NodeLost", 1));
        assert_eq!(step(&Blockage::Clear, 5), expected("False", "Unblocked", 5));
        assert_eq!(step(&Blockage::Clear, 6), None);
        assert_eq!(step(&by("b"), 7), expected("True", "NodeLost", 7));
    }

    #[test]
    fn the_reason_why_agents_are_missing_is_the_daemons() {
        let jobset = JobSet::default();
        let message = |reason| {
            let blocked = Blockage::By(Blocked {
                reason,
                pod: "p".to_owned(),
                node: "n1".to_owned(),
            });
            let why = |node: &str| (node == "n1").then(|| "NRI is too small".to_owned());
            conditions(&jobset, &blocked, why, at(1))
                .unwrap()
                .remove(0)
                .message
        };
        let of_worker = message(BlockedReason::WorkerNotReported);
        assert!(
            of_worker.ends_with("agents cannot get into containers: NRI is too small"),
            "{of_worker}"
        );
        assert!(!message(BlockedReason::NodeLost).contains("NRI"));
    }
}
