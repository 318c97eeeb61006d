//! The Job controller: missing pods, surplus pods, and the end of Jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use lockstep_api::labels;

use crate::time::{MS, SEC, Time, unix};
use crate::world::World;
use crate::world::kubernetes::api_server::{Pod, PodPhase, name_of};
use crate::world::kubernetes::pod_groups::marks;

/// The first and the longest pause before a failed pod is replaced.
const BACKOFF: (Time, Time) = (10 * SEC, 600 * SEC);

fn condition(type_: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(MetaTime(now)),
        ..JobCondition::default()
    }
}

pub(crate) fn has_condition(job: &Job, type_: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == type_)
}

/// Completed indexes as the API shows them.
pub(crate) fn completed(job: &Job) -> BTreeSet<u32> {
    let text = job
        .status
        .as_ref()
        .and_then(|status| status.completed_indexes.as_deref())
        .unwrap_or_default();
    text.split(',').filter_map(|index| index.parse().ok()).collect()
}

pub(crate) fn width(job: &Job) -> u32 {
    let completions = job.spec.as_ref().and_then(|spec| spec.completions).unwrap_or(1);
    u32::try_from(completions).unwrap_or(0)
}

impl World {
    pub(super) fn sync_job(&mut self, name: &str, job: &Job) {
        let uid = job.metadata.uid.clone().unwrap_or_default();
        let pods: Vec<Arc<Pod>> = self
            .api
            .pods
            .values()
            .filter(|pod| pod.job_uid == uid)
            .cloned()
            .collect();
        if job.metadata.deletion_timestamp.is_some() {
            for pod in &pods {
                self.delete_pod(&pod.uid);
            }
            if pods.is_empty() {
                self.api.remove_job(name);
            }
            return;
        }
        if has_condition(job, "Complete") || has_condition(job, "Failed") {
            return;
        }
        let mut status = job.status.clone().unwrap_or_default();
        let now = self.timestamp();
        let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
        status.start_time = if suspended {
            None
        } else {
            status.start_time.or(Some(MetaTime(now)))
        };
        let live: Vec<&Pod> = pods
            .iter()
            .map(AsRef::as_ref)
            .filter(|pod: &&Pod| !pod.is_terminal())
            .collect();
        let done: BTreeSet<u32> = pods
            .iter()
            .filter(|pod| pod.phase == PodPhase::Succeeded)
            .map(|pod| pod.index)
            .chain(completed(job))
            .filter(|index| *index < width(job))
            .collect();
        self.note_failures(&uid, &pods);
        let is_over = self.time_is_over(job, &status);
        if is_over || job_is_failed(job, &pods) {
            if is_over && !self.faults_on {
                // This is one failure, however many pods it ends. The control plane cannot tell
                // while watches lag.
                let of_it = live.iter().map(|pod| pod.uid.clone());
                self.truth.ended_by_job.extend(of_it);
            }
            self.fail_job(job, &mut status, &live);
        } else if suspended {
            for pod in &live {
                self.delete_pod(&pod.uid);
            }
        } else if done.len() == width(job) as usize {
            if live.is_empty() {
                status
                    .conditions
                    .get_or_insert_default()
                    .push(condition("Complete", now));
            }
        } else {
            self.delete_surplus(&live, &done);
            // The Job may have been scaled down.
            for pod in live.iter().filter(|pod| pod.index >= width(job)) {
                self.delete_pod(&pod.uid);
            }
            self.create_pods(job, &uid, &live, &done);
        }
        count(&mut status, &pods, &done);
        if job.status.as_ref() != Some(&status) {
            self.api.change_job(name, |job| job.status = Some(status));
        }
    }

    /// The Job fails: first its pods end.
    fn fail_job(&mut self, job: &Job, status: &mut JobStatus, live: &[&Pod]) {
        let now = self.timestamp();
        let conditions = status.conditions.get_or_insert_default();
        if !has_condition(job, "FailureTarget") {
            self.note_job_failure();
            conditions.push(condition("FailureTarget", now));
        }
        for pod in live {
            self.delete_pod(&pod.uid);
        }
        if live.is_empty() {
            conditions.push(condition("Failed", now));
        }
    }

    /// True if the Job is past its deadline. Otherwise the controllers look again at the deadline.
    fn time_is_over(&mut self, job: &Job, status: &JobStatus) -> bool {
        let limit = job.spec.as_ref().and_then(|spec| spec.active_deadline_seconds);
        let Some((limit, MetaTime(start))) = limit.zip(status.start_time.clone()) else {
            return false;
        };
        let left =
            start.as_nanosecond() + i128::from(limit) * i128::from(SEC) - i128::from(unix(self.now, 0));
        if left > 0 {
            self.poke_controllers(u64::try_from(left).unwrap_or(0) + MS);
        }
        left <= 0
    }

    fn note_failures(&mut self, job: &str, pods: &[Arc<Pod>]) {
        let (failures, last) = self.controllers.failures.entry(job.to_owned()).or_default();
        let new = pods
            .iter()
            .filter(|pod| pod.phase == PodPhase::Failed && !pod.accounted)
            .count();
        if new > 0 {
            *failures += u32::try_from(new).unwrap_or(0);
            *last = self.now;
        }
    }

    fn create_pods(&mut self, job: &Job, uid: &str, live: &[&Pod], done: &BTreeSet<u32>) {
        let (failures, last) = self.controllers.failures.get(uid).copied().unwrap_or_default();
        if failures > 0 {
            let wait = (BACKOFF.0 << (failures - 1).min(8)).min(BACKOFF.1);
            if self.now < last + wait {
                let after = last + wait - self.now;
                self.poke_controllers(after);
                return;
            }
        }
        for index in 0..width(job) {
            if !done.contains(&index) && live.iter().all(|pod| pod.index != index) {
                self.create_pod(job, index, None);
            }
        }
    }

    pub(crate) fn create_pod(&mut self, job: &Job, index: u32, name: Option<&str>) {
        let label = |key: &str| {
            job.metadata
                .labels
                .as_ref()
                .and_then(|labels| labels.get(key))
                .cloned()
        };
        let of_job = name_of(&job.metadata);
        let uid = self.api.uid("pod");
        let (gated, group) = marks(job, index);
        let changed = self.is_changed(&of_job);
        self.api.put_pod(Pod {
            name: name.map_or_else(|| format!("{of_job}-{index}-{uid}"), str::to_owned),
            uid,
            jobset_uid: label(labels::JOBSET_UID).unwrap_or_default(),
            job: of_job,
            job_uid: job.metadata.uid.clone().unwrap_or_default(),
            index,
            restart_attempt: label(labels::RESTART_ATTEMPT)
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
            gated,
            group,
            node: None,
            phase: PodPhase::Pending,
            deleting: None,
            accounted: false,
            exit_code: None,
            node_lost: false,
            changed,
        });
    }

    /// Deletes surplus pods: all of an index that is complete, and all but one of any other.
    fn delete_surplus(&mut self, live: &[&Pod], done: &BTreeSet<u32>) {
        let mut by_index: BTreeMap<u32, Vec<&Pod>> = BTreeMap::new();
        for pod in live {
            by_index.entry(pod.index).or_default().push(pod);
        }
        for (index, mut pods) in by_index {
            pods.sort_by_key(|pod| pod.phase != PodPhase::Running);
            for pod in pods.into_iter().skip(usize::from(!done.contains(&index))) {
                self.say(|| format!("{}: a surplus pod of {}[{index}]", pod.uid, pod.job));
                if self.containers.values().any(|container| container.pod == pod.uid) {
                    self.delete_pod(&pod.uid);
                } else {
                    self.remove_unstarted(&pod.uid);
                }
            }
        }
    }

    /// Deletes a pod in which nothing has ever run, so nothing is lost.
    fn remove_unstarted(&mut self, uid: &str) {
        let now = self.now;
        self.api.change_pod(uid, |pod| {
            pod.deleting.get_or_insert(now);
            if pod.node.is_none() {
                pod.phase = PodPhase::Failed;
            }
        });
    }
}

/// True if `podFailurePolicy` fails the Job.
fn job_is_failed(job: &Job, pods: &[Arc<Pod>]) -> bool {
    if has_condition(job, "FailureTarget") {
        return true;
    }
    let policy = job
        .spec
        .as_ref()
        .and_then(|spec| spec.pod_failure_policy.as_ref());
    policy.into_iter().flat_map(|policy| &policy.rules).any(|rule| {
        let codes = rule.on_exit_codes.as_ref().map(|codes| codes.values.as_slice());
        pods.iter()
            .filter(|pod| pod.phase == PodPhase::Failed && pod.deleting.is_none())
            .filter_map(|pod| pod.exit_code)
            .any(|code| codes.is_some_and(|codes| codes.contains(&code)))
    })
}

fn count(status: &mut JobStatus, pods: &[Arc<Pod>], done: &BTreeSet<u32>) {
    let count =
        |of: &dyn Fn(&Pod) -> bool| i32::try_from(pods.iter().filter(|pod| of(pod)).count()).unwrap_or(0);
    let active = |pod: &Pod| !pod.is_terminal() && pod.deleting.is_none();
    status.active = Some(count(&active));
    status.ready = Some(count(&|pod| active(pod) && pod.phase == PodPhase::Running));
    status.succeeded = Some(i32::try_from(done.len()).unwrap_or(0));
    let text: Vec<String> = done.iter().map(ToString::to_string).collect();
    status.completed_indexes = (!done.is_empty()).then(|| text.join(","));
}
