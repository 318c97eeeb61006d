//! The status of a RayCluster.

mod pods;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::ray::conditions::{self, reasons};
use lockstep_api::ray::{HeadInfo, RayClusterState, RayClusterStatus};
use lockstep_api::{JobSet, conditions as jobset_conditions};

use self::pods::{CREATED_WITHIN, ConditionState, head_is_ready, missing, ready};
use super::cluster::{ClusterPlan, ObservedCluster};
use super::refusal::{Refusal, event};
use super::validation::unsupported_annotation;
use super::{names, service};
use crate::common::quantity::quantity;
use crate::jobset::owner::is_controlled_by;
use crate::jobset::plan::Severity;

/// What was found while the plan was made.
pub(crate) struct Facts<'a> {
    /// The JobSet that the cluster asks for.
    pub(crate) wanted: &'a JobSet,
    /// Set if the JobSet has completed or failed.
    pub(crate) ended: bool,
    /// Why the cluster is not run.
    pub(crate) refused: Option<Refusal>,
    /// Set if the running JobSet was made from another spec.
    pub(crate) pending: bool,
}

/// The number of worker pods of a JobSet.
pub(crate) fn desired(jobset: &JobSet) -> i32 {
    let groups = jobset
        .spec
        .replicated_jobs
        .iter()
        .filter(|job| job.name != names::HEAD);
    groups.fold(0, |sum, group| sum.saturating_add(group.pods()))
}

/// Adds a changed status to the plan, and the events about the changes.
pub(crate) fn report(observed: &ObservedCluster, facts: &Facts<'_>, plan: &mut ClusterPlan) {
    let cluster = &*observed.cluster;
    let before = cluster.status.clone().unwrap_or_default();
    let mut draft = Draft {
        status: before.clone(),
        generation: cluster.metadata.generation.unwrap_or(0),
        now: Time(observed.now),
        plan,
    };
    let suspended = cluster.spec.is_suspended();
    let jobset = observed
        .jobset
        .as_deref()
        .filter(|jobset| is_controlled_by(&jobset.metadata, cluster.uid_str()));
    counts(observed, facts.wanted, &mut draft.status);
    head(observed, &mut draft.status);

    let head_ready = head_is_ready(observed);
    let is_head_ready = head_ready.is_true;
    draft.set(conditions::HEAD_POD_READY, head_ready);
    let all_ready =
        is_head_ready && draft.status.ready_worker_replicas >= draft.status.desired_worker_replicas;
    // Once true it stays true until all pods are gone. The pods of a revoked suspension go too.
    let has_been = draft.status.is_true(conditions::PROVISIONED);
    let stays = jobset.is_some_and(|jobset| suspended || !jobset.is_deleting());
    let provisioned = match () {
        () if suspended && jobset.is_none() => {
            ConditionState::fails(reasons::PROVISIONING, "RayCluster has been suspended")
        }
        () if stays && (has_been || all_ready && !suspended) => {
            ConditionState::holds(reasons::ALL_READY, "All Ray Pods are ready for the first time")
        }
        () => {
            let message = "RayCluster Pods are being provisioned for first time";
            ConditionState::fails(reasons::PROVISIONING, message)
        }
    };
    let is_provisioned = provisioned.is_true && !suspended;
    draft.set(conditions::PROVISIONED, provisioned);
    for (type_, is_so) in [
        (conditions::SUSPENDING, suspended && jobset.is_some()),
        (conditions::SUSPENDED, suspended && jobset.is_none()),
    ] {
        draft.set(type_, ConditionState::new(is_so, type_, ""));
    }
    unsupported(observed, &mut draft);
    let pending = facts.pending && !suspended;
    draft.condition(
        conditions::CHANGES_PENDING,
        pending,
        if pending {
            reasons::NEEDS_SUSPENSION
        } else {
            reasons::UP_TO_DATE
        },
        if pending {
            "changes other than numbers of workers take effect when the cluster is suspended and resumed"
        } else {
            ""
        },
    );
    let message = draft.failure(observed, facts, jobset);

    let failed = facts.ended || facts.refused.is_some();
    let state = match () {
        () if failed => Some(RayClusterState::failed),
        () if suspended && jobset.is_none() => Some(RayClusterState::suspended),
        () if is_provisioned => Some(RayClusterState::ready),
        () => None,
    };
    draft.status.reason = message;
    draft.finish(state, &before);
}

/// Why an existing JobSet fails its cluster: reason and message.
fn failure(ended: bool, jobset: &JobSet) -> Option<(&'static str, String)> {
    let status = jobset.status.as_ref()?;
    if ended {
        let conditions = status
            .conditions
            .iter()
            .filter(|condition| condition.status == "True");
        let mut ended = conditions.filter(|condition| {
            [jobset_conditions::FAILED, jobset_conditions::COMPLETED].contains(&condition.type_.as_str())
        });
        let message = ended.next().map_or("", |condition| condition.message.as_str());
        return Some((reasons::JOBSET_ENDED, format!("the JobSet has ended: {message}")));
    }
    let blocked = status.condition(jobset_conditions::RESTART_BLOCKED)?;
    (blocked.status == "True").then(|| (reasons::RESTART_BLOCKED, blocked.message.clone()))
}

/// Reports ignored fields in a condition, and in an event for each generation.
fn unsupported(observed: &ObservedCluster, draft: &mut Draft<'_>) {
    let cluster = &observed.cluster;
    let mut paths = cluster.spec.unsupported("spec");
    paths.extend(unsupported_annotation(cluster.metadata.annotations.as_ref()));
    let message = match paths.is_empty() {
        true => String::new(),
        false => format!("not supported, and ignored: {}", paths.join(", ")),
    };
    let any = !paths.is_empty();
    draft.condition(
        conditions::UNSUPPORTED_FIELDS,
        any,
        if any {
            reasons::IGNORED
        } else {
            reasons::ALL_SUPPORTED
        },
        &message,
    );
}

fn counts(observed: &ObservedCluster, wanted: &JobSet, status: &mut RayClusterStatus) {
    let spec = &observed.cluster.spec;
    let sum = |of: &dyn Fn(&lockstep_api::ray::WorkerGroupSpec) -> i32| {
        let groups = spec.worker_group_specs.iter();
        let groups = groups.filter(|group| !group.is_suspended());
        groups.fold(0, |sum: i32, group| {
            sum.saturating_add(of(group).saturating_mul(group.hosts()))
        })
    };
    status.desired_worker_replicas = desired(wanted);
    status.min_worker_replicas = sum(&|group| group.min_replicas());
    status.max_worker_replicas = sum(&|group| group.max_replicas.unwrap_or(i32::MAX));
    status.ready_worker_replicas = ready(observed, |name| name != names::HEAD);
    status.available_worker_replicas = status.ready_worker_replicas;
    let mut total: BTreeMap<&str, i128> = BTreeMap::new();
    for job in &wanted.spec.replicated_jobs {
        let template = job.template.spec.as_ref().map(|spec| &spec.template);
        for (name, amount) in template.map(requests).unwrap_or_default() {
            let sum = total.entry(name).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(i128::from(job.pods())));
        }
    }
    let shown = |name: &str| shown(total.get(name).copied().unwrap_or(0), name == "memory");
    status.desired_cpu = shown("cpu");
    status.desired_memory = shown("memory");
    status.desired_gpu = shown("gpu");
}

/// The CPUs, memory and GPUs that a pod requests, in thousandths.
fn requests(template: &PodTemplateSpec) -> BTreeMap<&'static str, i128> {
    let mut sum = BTreeMap::new();
    let containers = template.spec.iter().flat_map(|pod| &pod.containers);
    for resources in containers.filter_map(|container| container.resources.as_ref()) {
        let mut asked = resources.limits.clone().unwrap_or_default();
        asked.extend(resources.requests.clone().unwrap_or_default());
        for (name, amount) in asked {
            let name = match name.as_str() {
                "cpu" => "cpu",
                "memory" => "memory",
                name if name.ends_with("gpu") => "gpu",
                _ => continue,
            };
            let sum: &mut i128 = sum.entry(name).or_default();
            *sum = sum.saturating_add(quantity(&amount.0).unwrap_or(0));
        }
    }
    sum
}

/// An amount in thousandths, as Kubernetes writes it.
fn shown(amount: i128, binary: bool) -> String {
    if amount % 1000 != 0 {
        return format!("{amount}m");
    }
    let whole = amount / 1000;
    let units = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    let unit = units
        .into_iter()
        .find(|(_, size)| binary && whole != 0 && whole % size == 0);
    match unit {
        Some((unit, size)) => format!("{}{unit}", whole / size),
        None => whole.to_string(),
    }
}

fn head(observed: &ObservedCluster, status: &mut RayClusterStatus) {
    let service = observed.service.as_deref();
    let spec = service.and_then(|service| service.spec.as_ref());
    let ports = spec.into_iter().flat_map(|spec| spec.ports.iter().flatten());
    status.endpoints = ports
        .map(|port| {
            let name = port.name.clone().unwrap_or_else(|| port.port.to_string());
            (name, port.port.to_string())
        })
        .collect();
    status.head = HeadInfo {
        service_name: service
            .map(|_| names::head_service(observed.cluster.name()))
            .unwrap_or_default(),
        service_ip: service
            .map(|service| service::address(service, &observed.head.pod_ip))
            .unwrap_or_default(),
        ..observed.head.clone()
    };
}

/// A status in the making.
struct Draft<'a> {
    status: RayClusterStatus,
    generation: i64,
    now: Time,
    plan: &'a mut ClusterPlan,
}

impl Draft<'_> {
    /// Sets a condition that appears when it first becomes true, and publishes that in an event.
    fn condition(&mut self, type_: &str, is_true: bool, reason: &str, message: &str) {
        if !is_true && self.status.condition(type_).is_none() {
            return;
        }
        let is_new = self.set(type_, ConditionState::new(is_true, reason, message));
        if is_true && is_new {
            self.plan.events.push(event(Severity::Warning, type_, message));
        }
    }

    /// Shows why the cluster fails, while it does. Returns the message.
    fn failure(&mut self, observed: &ObservedCluster, facts: &Facts<'_>, jobset: Option<&JobSet>) -> String {
        let missing = missing(observed);
        if let Some(after) = missing.requeue_after {
            self.requeue(after);
        }
        let refused = facts.refused.as_ref();
        let found = refused.map(|refused| (reasons::VALIDATION_FAILED, refused.message.clone()));
        let found = found
            .or_else(|| failure(facts.ended, jobset?))
            .or_else(|| Some((reasons::FAILED_CREATE_HEAD, observed.refused.clone()?)))
            .or_else(|| {
                missing
                    .without_pods
                    .filter(|_| !observed.cluster.spec.is_suspended())
            });
        let some = missing
            .with_some_pods
            .filter(|_| !observed.cluster.spec.is_suspended());
        let Some((reason, message)) = found.or_else(|| self.lasting(some)) else {
            return String::new();
        };
        let is_new = self.set(
            conditions::REPLICA_FAILURE,
            ConditionState::holds(reason, message.clone()),
        );
        // A refusal of the API server has an event of its own.
        if is_new && observed.refused.is_none() {
            let event_reason = refused.map_or(conditions::REPLICA_FAILURE, |refused| &refused.reason);
            self.plan
                .events
                .push(event(Severity::Warning, event_reason, message.clone()));
        }
        message
    }

    /// Returns a finding once it has lasted. Until then the condition exists and is false. It is
    /// removed when the finding ends.
    fn lasting(&mut self, found: Option<(&'static str, String)>) -> Option<(&'static str, String)> {
        let Some((reason, message)) = found else {
            let conditions = &mut self.status.conditions;
            conditions.retain(|condition| condition.type_ != conditions::REPLICA_FAILURE);
            return None;
        };
        let before = self.status.condition(conditions::REPLICA_FAILURE);
        let left = match before {
            Some(before) if before.status == "True" => SignedDuration::ZERO,
            Some(before) => {
                CREATED_WITHIN.saturating_sub(self.now.0.duration_since(before.last_transition_time.0))
            }
            None => {
                let state = ConditionState::fails(reason, message.clone());
                self.set(conditions::REPLICA_FAILURE, state);
                CREATED_WITHIN
            }
        };
        if left.is_positive() {
            self.requeue(left.min(CREATED_WITHIN));
            return None;
        }
        Some((reason, message))
    }

    fn requeue(&mut self, after: SignedDuration) {
        let sooner = self.plan.requeue_after.map_or(after, |before| before.min(after));
        self.plan.requeue_after = Some(sooner);
    }

    /// Sets a condition. Returns true if it has changed.
    fn set(&mut self, type_: &str, state: ConditionState) -> bool {
        let status = if state.is_true { "True" } else { "False" };
        let ConditionState { reason, message, .. } = state;
        let found = self
            .status
            .conditions
            .iter_mut()
            .find(|condition| condition.type_ == type_);
        let Some(condition) = found else {
            self.status.conditions.push(Condition {
                type_: type_.to_owned(),
                status: status.to_owned(),
                reason,
                message,
                last_transition_time: self.now.clone(),
                observed_generation: Some(self.generation),
            });
            return true;
        };
        let changed =
            condition.status != status || condition.reason != reason || condition.message != message;
        if condition.status != status {
            condition.last_transition_time = self.now.clone();
        }
        condition.status = status.to_owned();
        condition.reason = reason;
        condition.message = message;
        condition.observed_generation = Some(self.generation)
            .filter(|_| changed)
            .or(condition.observed_generation);
        changed
    }

    fn finish(mut self, state: Option<RayClusterState>, before: &RayClusterStatus) {
        self.status.observed_generation = self.generation;
        if let Some(state) = state
            .as_ref()
            .filter(|state| before.state.as_ref() != Some(state))
        {
            let times = &mut self.status.state_transition_times;
            times.insert(state.as_str().to_owned(), self.now.clone());
        }
        self.status.state = state;
        if self.status != *before {
            self.status.last_update_time = Some(self.now);
            self.plan.status = Some(Box::new(self.status));
        }
    }
}
