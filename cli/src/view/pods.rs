//! Pods: their state, in a word, and what they stand for.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use lockstep_api::labels;

/// The state of a pod as in `kubectl get pods`, but with the exit codes of failed containers.
pub(crate) fn state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    if pod.metadata.deletion_timestamp.is_some() {
        return "Terminating".to_owned();
    }
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or("Pending");
    if phase == "Succeeded" {
        return "Done".to_owned();
    }
    if let Some(reason) = containers(pod).find_map(trouble) {
        return reason;
    }
    if let Some(reason) = status.and_then(|status| status.reason.as_deref()) {
        return reason.to_owned();
    }
    if phase == "Pending"
        && let Some(reason) = unscheduled(pod)
    {
        return reason;
    }
    phase.to_owned()
}

/// True if the pod's containers run or are done.
pub(crate) fn is_well(state: &str) -> bool {
    matches!(state, "Running" | "Done")
}

/// True if a Lease with this holder is the pod's. A holder is a pod's name, alone or with `_` and
/// more after it, as client-go has it.
pub(crate) fn holds(pod: &Pod, holder: &str) -> bool {
    let rest = holder.strip_prefix(&pod.name_any());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
}

/// The pod's completion index within its Job.
pub(crate) fn index(pod: &Pod) -> Option<u32> {
    let labels = pod.labels();
    let annotations = pod.annotations();
    labels
        .get(labels::BATCH_JOB_COMPLETION_INDEX)
        .or_else(|| annotations.get(labels::BATCH_JOB_COMPLETION_INDEX))?
        .parse()
        .ok()
}

/// The Job that the pod belongs to.
pub(crate) fn job(pod: &Pod) -> Option<&str> {
    pod.labels().get(labels::BATCH_JOB_NAME).map(String::as_str)
}

/// The node that the pod is bound to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// True if the pod's condition Ready is true.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}

/// How often the kubelet restarted its containers.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    containers(pod).map(|container| container.restart_count).sum()
}

/// What pods of one worker are sorted by: live ones come last, the newest of these at the end.
pub(crate) fn freshness(pod: &Pod) -> (bool, bool, Option<jiff::Timestamp>) {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    (
        pod.metadata.deletion_timestamp.is_none(),
        phase != Some("Failed"),
        pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
    )
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_deref());
    let regular = status.and_then(|status| status.container_statuses.as_deref());
    init.unwrap_or_default()
        .iter()
        .filter(|container| {
            let state = container.state.as_ref();
            let ended = state.and_then(|state| state.terminated.as_ref());
            ended.is_none_or(|ended| ended.exit_code != 0)
        })
        .chain(regular.unwrap_or_default())
}

fn trouble(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        return waiting.reason.clone();
    }
    let ended = state.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
    match ended.signal.filter(|signal| *signal != 0) {
        Some(signal) => Some(format!("Signal {signal}")),
        None => Some(format!("Exit {}", ended.exit_code)),
    }
}

fn unscheduled(pod: &Pod) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False")
        .then(|| scheduled.reason.clone())
        .flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    fn container(state: serde_json::Value) -> serde_json::Value {
        json!([{"name": "worker", "image": "", "imageID": "", "ready": false, "restartCount": 2, "state": state}])
    }

    #[test]
    fn a_pod_has_the_state_of_its_worst_container() {
        for (status, shown) in [
            (json!({"phase": "Running"}), "Running"),
            (json!({"phase": "Succeeded"}), "Done"),
            (json!({}), "Pending"),
            (json!({"phase": "Failed", "reason": "Evicted"}), "Evicted"),
            (
                json!({"phase": "Pending", "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
                "Unschedulable",
            ),
            (
                json!({"phase": "Pending", "containerStatuses": container(json!({"waiting": {"reason": "ImagePullBackOff"}}))}),
                "ImagePullBackOff",
            ),
            (
                json!({"phase": "Failed", "containerStatuses": container(json!({"terminated": {"exitCode": 3}}))}),
                "Exit 3",
            ),
            (
                json!({"phase": "Running", "containerStatuses": container(json!({"terminated": {"exitCode": 137, "signal": 9}}))}),
                "Signal 9",
            ),
        ] {
            assert_eq!(state(&pod(status.clone())), shown, "{status}");
        }
        let restarted = pod(json!({"containerStatuses": container(json!({"running": {}}))}));
        assert_eq!(restarts(&restarted), 2);
    }

    #[test]
    fn a_lease_is_held_by_the_pod_whose_whole_name_it_has() {
        let pod = pod(json!({}));
        assert!(holds(&pod, "p") && holds(&pod, "p_0c1d"));
        assert!(!holds(&pod, "p0") && !holds(&pod, "p-1_0c1d") && !holds(&pod, ""));
    }
}
