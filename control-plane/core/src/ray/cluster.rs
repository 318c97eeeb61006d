//! What is to be done about one RayCluster.
//!
//! | the cluster | its JobSet |
//! |---|---|
//! | is refused, or suspended | none is made; a suspension deletes the one that there is |
//! | runs | is made once, after the head's Service; follows the numbers of workers, and nothing else |
//! | changes otherwise | waits for a suspension, which is said in a condition |
//! | belongs to another controller | is none of ours |

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Service;
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster, RayClusterStatus, keys};

use super::jobset::compile;
use super::status::{self, Facts};
use super::{names, scale, service, validation};
use crate::observed::is_controlled_by;
use crate::plan::{Event, JobRef, Severity};
use crate::validation::Violation;

/// Reason of the event on a cluster that another controller looks after.
pub const MANAGED_BY_ANOTHER: &str = "ManagedByAnother";

/// Label by which KubeRay marks what it makes, and its value there.
const CREATED_BY: &str = "app.kubernetes.io/created-by";
const KUBERAY: &str = "kuberay-operator";

/// A RayCluster, what stands around it, and the time.
#[derive(Clone, Debug)]
pub struct ObservedCluster {
    /// The cluster itself.
    pub cluster: Arc<RayCluster>,
    /// The JobSet that has the name of its own, whoever owns it.
    pub jobset: Option<Arc<JobSet>>,
    /// Jobs of that JobSet.
    pub jobs: Vec<Arc<Job>>,
    /// The Service that has the name of its head's, whoever owns it.
    pub service: Option<Arc<Service>>,
    /// The head's pod as it was seen last.
    pub head: HeadInfo,
    /// Whether KubeRay's controller runs in this Kubernetes cluster.
    pub kuberay: bool,
    /// The present.
    pub now: Timestamp,
}

/// The writes that bring the world closer to what a RayCluster asks for, from top to bottom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPlan {
    /// The head's Service to create.
    pub create_service: Option<Box<Service>>,
    /// The JobSet to create.
    pub create_jobset: Option<Box<JobSet>>,
    /// The JobSet to put in the place of the version that it was made from.
    pub update_jobset: Option<Box<JobSet>>,
    /// The JobSet to delete (foreground).
    pub delete_jobset: Option<JobRef>,
    /// The whole status to write, if it differs from the present one.
    pub status: Option<Box<RayClusterStatus>>,
    /// To publish once all is written.
    pub events: Vec<Event>,
    /// Why nothing is done: to be told once for each generation.
    pub notice: Option<Event>,
}

/// Decides what is to be done about a RayCluster.
#[must_use]
pub fn plan(observed: &ObservedCluster) -> ClusterPlan {
    let cluster = &*observed.cluster;
    if cluster.is_deleting() {
        return ClusterPlan::default();
    }
    if let Some(message) = not_ours(observed) {
        return ClusterPlan {
            notice: Some(event(Severity::Warning, MANAGED_BY_ANOTHER, message)),
            ..ClusterPlan::default()
        };
    }
    let mut plan = ClusterPlan::default();
    let violations = validation::cluster(cluster);
    let wanted = compile(cluster);
    let mut facts = Facts {
        wanted: &wanted,
        ended: false,
        refused: None,
        pending: false,
    };
    match own_jobset(observed) {
        Err(message) => facts.refused = Some(message),
        Ok(jobset) if cluster.spec.is_suspended() => suspend(jobset, &mut plan),
        Ok(jobset) => {
            if !violations.is_empty() {
                // What runs already runs on.
                facts.refused = Some(sentence(&violations));
            } else {
                facts.refused = service(observed, &mut plan).err();
                run(jobset, &wanted, &mut facts, &mut plan);
            }
        }
    }
    status::report(observed, &facts, &mut plan);
    plan
}

/// Whom the cluster belongs to, where it is not this controller.
fn not_ours(observed: &ObservedCluster) -> Option<String> {
    let cluster = &*observed.cluster;
    if let Some(manager) = cluster.managed_by_another() {
        return Some(format!("spec.managedBy is {manager}: this cluster is left to it"));
    }
    let has_ours = observed
        .jobset
        .as_ref()
        .is_some_and(|jobset| is_controlled_by(&jobset.metadata, cluster.uid_str()));
    let is_kuberays = observed
        .service
        .as_ref()
        .and_then(|service| service.metadata.labels.as_ref()?.get(CREATED_BY))
        .is_some_and(|creator| creator == KUBERAY);
    if is_kuberays && !cluster.is_claimed() && !has_ours {
        // Whether it runs at this moment or not: its pods do.
        return Some(format!(
            "KubeRay's controller has begun this cluster; spec.managedBy: {} gives it to this one",
            lockstep_api::ray::CONTROLLER_NAME
        ));
    }
    (observed.kuberay && !cluster.is_claimed() && !has_ours).then(|| {
        format!(
            "KubeRay's controller runs here, and this cluster is left to it; spec.managedBy: {} gives it to this one",
            lockstep_api::ray::CONTROLLER_NAME
        )
    })
}

/// The cluster's JobSet, if it has one.
fn own_jobset(observed: &ObservedCluster) -> Result<Option<&JobSet>, String> {
    let Some(jobset) = observed.jobset.as_deref() else {
        return Ok(None);
    };
    if is_controlled_by(&jobset.metadata, observed.cluster.uid_str()) {
        return Ok(Some(jobset));
    }
    Err(format!("the JobSet {} belongs to somebody else", jobset.name()))
}

fn suspend(jobset: Option<&JobSet>, plan: &mut ClusterPlan) {
    let Some(jobset) = jobset.filter(|jobset| !jobset.is_deleting()) else {
        return;
    };
    plan.delete_jobset = Some(reference(jobset));
    plan.events.push(event(
        Severity::Normal,
        "DeletedJobSet",
        format!("suspended: deleted the JobSet {}", jobset.name()),
    ));
}

fn service(observed: &ObservedCluster, plan: &mut ClusterPlan) -> Result<(), String> {
    let cluster = &*observed.cluster;
    match observed.service.as_deref() {
        None => {
            let service = service::head(cluster);
            plan.events.push(event(
                Severity::Normal,
                "CreatedService",
                format!("created the Service {}", names::head_service(cluster.name())),
            ));
            plan.create_service = Some(Box::new(service));
            Ok(())
        }
        Some(service) if is_controlled_by(&service.metadata, cluster.uid_str()) => Ok(()),
        Some(_) => Err(format!(
            "the Service {} belongs to somebody else",
            names::head_service(cluster.name())
        )),
    }
}

fn run(jobset: Option<&JobSet>, wanted: &JobSet, facts: &mut Facts<'_>, plan: &mut ClusterPlan) {
    match jobset {
        None if facts.refused.is_none() => {
            plan.events.push(event(
                Severity::Normal,
                "CreatedJobSet",
                format!("created the JobSet {}", wanted.name()),
            ));
            plan.create_jobset = Some(Box::new(wanted.clone()));
        }
        // A suspension that was taken back: what is going goes.
        Some(jobset) if jobset.is_deleting() => {}
        Some(jobset) if jobset.is_finished() => facts.ended = true,
        Some(jobset) => {
            let digest = |jobset: &JobSet| jobset.annotation(keys::TEMPLATE_DIGEST).map(str::to_owned);
            facts.pending = digest(jobset) != digest(wanted);
            if let Some(scaled) = scale::scaled(jobset, wanted) {
                plan.events.push(event(
                    Severity::Normal,
                    "ScaledWorkerGroups",
                    format!("the cluster is to have {} worker pods", status::desired(&scaled)),
                ));
                plan.update_jobset = Some(Box::new(scaled));
            }
        }
        None => {}
    }
}

/// One JobSet, and no other of the same name.
fn reference(jobset: &JobSet) -> JobRef {
    JobRef {
        name: jobset.name().to_owned(),
        uid: jobset.uid_str().to_owned(),
    }
}

pub(crate) fn event(severity: Severity, reason: &str, message: impl Into<String>) -> Event {
    Event {
        severity,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

/// All violations in one sentence.
pub(crate) fn sentence(violations: &[Violation]) -> String {
    let sentences: Vec<String> = violations.iter().map(ToString::to_string).collect();
    sentences.join("; ")
}
