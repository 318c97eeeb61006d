//! The status of a RayCluster.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use lockstep_api::ray::conditions::{self, reasons};
use lockstep_api::ray::{HeadInfo, RayClusterState, RayClusterStatus};
use lockstep_api::{JobSet, conditions as jobset_conditions, labels};

use super::cluster::{ClusterPlan, ObservedCluster, event};
use super::names;
use crate::gang::quantity;
use crate::observed::is_controlled_by;
use crate::plan::Severity;

/// What was found out while the plan was made.
pub(crate) struct Facts<'a> {
    /// The JobSet that the cluster asks for.
    pub(crate) wanted: &'a JobSet,
    /// The JobSet has completed or failed.
    pub(crate) ended: bool,
    /// Why the cluster is not run.
    pub(crate) refused: Option<String>,
    /// What runs was made from another spec.
    pub(crate) pending: bool,
}

/// Worker pods of a JobSet.
pub(crate) fn desired(jobset: &JobSet) -> i32 {
    let groups = jobset
        .spec
        .replicated_jobs
        .iter()
        .filter(|job| job.name != names::HEAD);
    groups.fold(0, |sum, group| sum.saturating_add(group.pods()))
}

/// Adds the status to the plan, where it differs from the present one, and the events that tell of the difference.
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

    let head_ready = ready_pods(observed, |name| name == names::HEAD) > 0;
    draft.condition(
        conditions::HEAD_POD_READY,
        head_ready,
        if head_ready {
            reasons::HEAD_POD_READY
        } else {
            reasons::HEAD_POD_NOT_READY
        },
        "",
    );
    let all_ready = head_ready && draft.status.ready_worker_replicas >= draft.status.desired_worker_replicas;
    let provisioned = !suspended && (all_ready || draft.status.is_true(conditions::PROVISIONED));
    draft.condition(
        conditions::PROVISIONED,
        provisioned,
        if provisioned {
            reasons::ALL_READY
        } else {
            reasons::PROVISIONING
        },
        "",
    );
    draft.condition(
        conditions::SUSPENDING,
        suspended && jobset.is_some(),
        if suspended {
            reasons::USER_REQUEST
        } else {
            reasons::NOT_REQUESTED
        },
        "",
    );
    draft.condition(
        conditions::SUSPENDED,
        suspended && jobset.is_none(),
        if suspended {
            reasons::USER_REQUEST
        } else {
            reasons::NOT_REQUESTED
        },
        "",
    );
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
    let failure = failure(facts, jobset);
    let (reason, message) = failure.clone().unwrap_or((reasons::NO_FAILURE, String::new()));
    draft.condition(conditions::REPLICA_FAILURE, failure.is_some(), reason, &message);

    let failed = facts.ended || facts.refused.is_some();
    let state = match () {
        () if failed => Some(RayClusterState::failed),
        () if suspended && jobset.is_none() => Some(RayClusterState::suspended),
        () if provisioned => Some(RayClusterState::ready),
        () => None,
    };
    draft.status.reason = message;
    draft.finish(state, &before);
}

/// Why the cluster fails, with the reason in one word.
fn failure(facts: &Facts<'_>, jobset: Option<&JobSet>) -> Option<(&'static str, String)> {
    if let Some(message) = &facts.refused {
        return Some((reasons::VALIDATION_FAILED, message.clone()));
    }
    let status = jobset?.status.as_ref()?;
    if facts.ended {
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

/// Says which fields are ignored: in a condition, and in an event for each generation.
fn unsupported(observed: &ObservedCluster, draft: &mut Draft<'_>) {
    let paths = observed.cluster.spec.unsupported("spec");
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
        groups.fold(0, |sum: i32, group| {
            sum.saturating_add(of(group).saturating_mul(group.hosts()))
        })
    };
    status.desired_worker_replicas = desired(wanted);
    status.min_worker_replicas = sum(&|group| group.min_replicas());
    status.max_worker_replicas = sum(&|group| group.max_replicas.unwrap_or(i32::MAX));
    status.ready_worker_replicas = ready_pods(observed, |name| name != names::HEAD);
    status.available_worker_replicas = status.ready_worker_replicas;
    let mut total: BTreeMap<&str, i128> = BTreeMap::new();
    for job in &wanted.spec.replicated_jobs {
        let template = job.template.spec.as_ref().map(|spec| &spec.template);
        for (name, amount) in template.map(requests).unwrap_or_default() {
            *total.entry(name).or_default() += amount * i128::from(job.pods());
        }
    }
    let shown = |name: &str| shown(total.get(name).copied().unwrap_or(0), name == "memory");
    status.desired_cpu = shown("cpu");
    status.desired_memory = shown("memory");
    status.desired_gpu = shown("gpu");
}

/// What a pod asks for of CPUs, memory and GPUs, in thousandths.
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
            *sum.entry(name).or_default() += quantity(&amount.0).unwrap_or(0);
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

fn ready_pods(observed: &ObservedCluster, of: impl Fn(&str) -> bool) -> i32 {
    let jobset = observed.jobset.as_ref().map(|jobset| jobset.uid_str());
    let own = observed.jobs.iter().filter(|job| {
        let label = |key: &str| job.metadata.labels.as_ref().and_then(|labels| labels.get(key));
        jobset.is_some_and(|uid| is_controlled_by(&job.metadata, uid))
            && label(labels::REPLICATED_JOB_NAME).is_some_and(|name| of(name))
    });
    own.fold(0, |sum, job| sum.saturating_add(ready(job)))
}

fn ready(job: &Job) -> i32 {
    job.status.as_ref().and_then(|status| status.ready).unwrap_or(0)
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
        service_ip: spec.and_then(|spec| spec.cluster_ip.clone()).unwrap_or_default(),
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
    /// Sets a condition. One that was never true is not added as false, but for those that KubeRay shows from the start.
    fn condition(&mut self, type_: &str, is_true: bool, reason: &str, message: &str) {
        let status = if is_true { "True" } else { "False" };
        let always = [conditions::HEAD_POD_READY, conditions::PROVISIONED].contains(&type_);
        let told = [
            conditions::UNSUPPORTED_FIELDS,
            conditions::REPLICA_FAILURE,
            conditions::CHANGES_PENDING,
        ];
        let found = self
            .status
            .conditions
            .iter_mut()
            .find(|condition| condition.type_ == type_);
        let changed = match found {
            Some(condition) => {
                let news =
                    condition.status != status || condition.reason != reason || condition.message != message;
                if condition.status != status {
                    condition.last_transition_time = self.now.clone();
                }
                condition.status = status.to_owned();
                condition.reason = reason.to_owned();
                condition.message = message.to_owned();
                condition.observed_generation = Some(self.generation)
                    .filter(|_| news)
                    .or(condition.observed_generation);
                news
            }
            None if is_true || always => {
                self.status.conditions.push(Condition {
                    type_: type_.to_owned(),
                    status: status.to_owned(),
                    reason: reason.to_owned(),
                    message: message.to_owned(),
                    last_transition_time: self.now.clone(),
                    observed_generation: Some(self.generation),
                });
                true
            }
            None => false,
        };
        if changed && is_true && told.contains(&type_) {
            self.plan.events.push(event(Severity::Warning, type_, message));
        }
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
