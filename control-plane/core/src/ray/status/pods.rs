//! What the pods of a cluster show, and which pods are missing.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::labels;
use lockstep_api::ray::conditions::reasons;

use crate::jobset::owner::is_controlled_by;
use crate::ray::cluster::ObservedCluster;
use crate::ray::names;

/// How long a Job may lack pods before that is reported.
pub(super) const CREATED_WITHIN: SignedDuration = SignedDuration::from_secs(30);
/// Reason of a pod's `Ready` condition while a container is not ready. The container's status says
/// why.
const CONTAINERS_NOT_READY: &str = "ContainersNotReady";

/// The wanted state of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConditionState {
    pub(super) is_true: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl ConditionState {
    /// A condition that is true.
    pub(super) fn holds(reason: &str, message: impl Into<String>) -> Self {
        Self::new(true, reason, message)
    }

    /// A condition that is false.
    pub(super) fn fails(reason: &str, message: impl Into<String>) -> Self {
        Self::new(false, reason, message)
    }

    pub(super) fn new(is_true: bool, reason: &str, message: impl Into<String>) -> Self {
        Self {
            is_true,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// The state of the `HeadPodReady` condition, with the pod's own reason and message, as in KubeRay.
pub(super) fn head_is_ready(observed: &ObservedCluster) -> ConditionState {
    let pod = observed.head_pod.as_deref();
    if ready(observed, |name| name == names::HEAD) > 0 {
        return ConditionState::holds(reasons::HEAD_POD_READY, "");
    }
    let Some(pod) = pod else {
        return match observed.head.pod_name.as_str() {
            "" => ConditionState::fails(reasons::HEAD_POD_NOT_FOUND, "Head Pod not found"),
            _ => ConditionState::fails(reasons::UNKNOWN, ""),
        };
    };
    by_its_condition(pod)
}

fn by_its_condition(pod: &Pod) -> ConditionState {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let Some(ready) = conditions
        .into_iter()
        .find(|condition| condition.type_ == "Ready")
    else {
        return ConditionState::fails(reasons::UNKNOWN, "");
    };
    let is_true = ready.status == "True";
    let reason = ready.reason.clone().filter(|reason| !reason.is_empty());
    let mut state = ConditionState {
        is_true,
        message: ready.message.clone().unwrap_or_default(),
        reason: reason.unwrap_or_else(|| {
            let none = if is_true {
                reasons::HEAD_POD_READY
            } else {
                reasons::UNKNOWN
            };
            none.to_owned()
        }),
    };
    if state.reason == CONTAINERS_NOT_READY
        && let Some((reason, message)) = container_not_ready(pod)
    {
        if !state.message.is_empty() {
            state.message.push_str("; ");
        }
        state.message.push_str(&message);
        state.reason = reason;
    }
    state
}

/// Reason and message of the first container that waits or has ended.
fn container_not_ready(pod: &Pod) -> Option<(String, String)> {
    let statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let mut found = statuses.filter_map(|status| {
        let state = status.state.as_ref()?;
        let waiting = state
            .waiting
            .as_ref()
            .map(|waiting| (&waiting.reason, &waiting.message));
        let ended = state
            .terminated
            .as_ref()
            .map(|ended| (&ended.reason, &ended.message));
        let (reason, message) = waiting.or(ended)?;
        let message = message.as_deref().unwrap_or_default();
        Some((reason.clone()?, format!("{}: {message}", status.name)))
    });
    found.next()
}

/// The number of ready pods of the replicatedJobs with these names.
pub(super) fn ready(observed: &ObservedCluster, of: impl Fn(&str) -> bool) -> i32 {
    let ready = |job: &Job| job.status.as_ref().and_then(|status| status.ready);
    own(observed)
        .filter(|(name, _)| of(name))
        .fold(0, |sum, (_, job)| sum.saturating_add(ready(job).unwrap_or(0)))
}

/// The Jobs of the cluster's JobSet, with the names of their replicatedJobs.
fn own(observed: &ObservedCluster) -> impl Iterator<Item = (&str, &Job)> {
    let jobset = observed.jobset.as_ref().map(|jobset| jobset.uid_str());
    let own = observed.jobs.iter().map(|job| &**job);
    own.filter(move |job| jobset.is_some_and(|uid| is_controlled_by(&job.metadata, uid)))
        .filter_map(|job| {
            let name = job.metadata.labels.as_ref()?.get(labels::REPLICATED_JOB_NAME)?;
            Some((name.as_str(), job))
        })
}

/// Jobs for which no pod can be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Reason (KubeRay's) and message about a Job without any pod.
    pub(super) without_pods: Option<(&'static str, String)>,
    /// Reason and message about a Job with some of its pods. That may pass, whenever pods come and
    /// go.
    pub(super) with_some_pods: Option<(&'static str, String)>,
    /// When another Job will have been without pods for too long.
    pub(super) requeue_after: Option<SignedDuration>,
}

/// Finds Jobs that have had no pod for a while, although none has ever failed, and Jobs with fewer
/// pods than they ask for. Their events say why.
pub(super) fn missing(observed: &ObservedCluster) -> Missing {
    let mut missing = Missing::default();
    // A Job that is being deleted needs no pods.
    for (name, job) in own(observed).filter(|(_, job)| job.metadata.deletion_timestamp.is_none()) {
        let Some(status) = job.status.as_ref() else {
            continue;
        };
        let counts = [status.active, status.terminating, status.succeeded, status.failed];
        let Some(since) = status
            .start_time
            .as_ref()
            .filter(|_| status.failed.unwrap_or(0) == 0)
        else {
            continue;
        };
        let there = counts
            .iter()
            .fold(0, |sum: i32, count| sum.saturating_add(count.unwrap_or(0)));
        let wanted = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
        if there >= wanted {
            continue;
        }
        let left = CREATED_WITHIN.saturating_sub(observed.now.duration_since(since.0));
        if left.is_positive() {
            missing.requeue_after = Some(missing.requeue_after.map_or(left, |before| before.min(left)));
            continue;
        }
        let reason = match name {
            names::HEAD => reasons::FAILED_CREATE_HEAD,
            _ => reasons::FAILED_CREATE_WORKER,
        };
        let job = job.metadata.name.as_deref().unwrap_or_default();
        if there == 0 {
            let message = format!("no pod of Job {job} can be created: see its events");
            missing.without_pods.get_or_insert((reason, message));
        } else {
            let message = format!("Job {job} has {there} of its {wanted} pods: see its events");
            missing.with_some_pods.get_or_insert((reason, message));
        }
    }
    missing
}
