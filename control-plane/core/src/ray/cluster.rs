//! Decisions about one RayCluster.
//!
//! | the cluster | its JobSet |
//! |---|---|
//! | is refused or suspended | is not created; a suspension deletes an existing one |
//! | runs | is created once, after the head's Service, and follows the numbers of workers |
//! | changes otherwise | stays until a suspension, which a condition reports |
//! | belongs to another controller | is left to that controller |

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, keys};

use super::jobset::{compile, scaled};
use super::refusal::{Refusal, event};
use super::status::{self, Facts};
use super::{names, service, validation};
use crate::jobset::owner::{controller_of, is_controlled_by};
use crate::jobset::plan::{JobRef, Severity};

mod plan;

pub use plan::{ClusterPlan, ObservedCluster};

/// Reason of the event about a created JobSet.
pub const CREATED: &str = "CreatedJobSet";
/// Reason of the event about a created head Service.
pub const CREATED_SERVICE: &str = "CreatedService";
/// Reason of the event on a cluster whose worker groups were scaled.
pub const SCALED: &str = "ScaledWorkerGroups";
/// Reason of the event on a cluster that another controller manages.
pub const MANAGED_BY_ANOTHER: &str = "ManagedByAnother";

/// Label, and its value, by which KubeRay marks the objects that it creates.
const CREATED_BY: &str = "app.kubernetes.io/created-by";
const KUBERAY: &str = "kuberay-operator";
/// How soon to check an object that is being deleted.
const SOON: SignedDuration = SignedDuration::from_secs(2);
/// How soon to check an object of another owner.
const SELDOM: SignedDuration = SignedDuration::from_secs(60);

/// Decides what to do about a RayCluster.
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
    let jobset = observed.jobset.as_deref();
    match belongs(jobset.map(|jobset| &jobset.metadata), cluster) {
        Belongs::Others => {
            let message = format!("JobSet {} belongs to another owner", wanted.name());
            facts.refused = Some(Refusal::taken(message));
        }
        Belongs::Former => plan.requeue_after = Some(SOON),
        Belongs::Ours if cluster.spec.is_suspended() => suspend(jobset, &mut plan),
        Belongs::Ours if !violations.is_empty() => {
            // What already runs keeps running.
            facts.refused = Some(Refusal::invalid("RayCluster", &violations));
        }
        Belongs::Ours => {
            let is_free = service(observed, &mut facts, &mut plan);
            run(jobset, is_free, &wanted, &mut facts, &mut plan);
        }
    }
    status::report(observed, &facts, &mut plan);
    plan
}

/// Which controller the cluster belongs to, if it is not this one.
fn not_ours(observed: &ObservedCluster) -> Option<String> {
    let cluster = &*observed.cluster;
    if let Some(manager) = cluster.managed_by_another() {
        return Some(format!(
            "spec.managedBy is {manager}: that controller manages this cluster"
        ));
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
        // Its pods run even while that controller does not.
        return Some(format!(
            "KubeRay's controller has begun this cluster: set spec.managedBy to {} to hand it to Lockstep",
            lockstep_api::ray::CONTROLLER_NAME
        ));
    }
    (observed.kuberay && !cluster.is_claimed() && !has_ours).then(|| {
        format!(
            "KubeRay's controller runs here and manages this cluster: set spec.managedBy to {} to hand it to Lockstep",
            lockstep_api::ray::CONTROLLER_NAME
        )
    })
}

/// The owner of an object whose name the cluster needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belongs {
    /// It is the cluster's own, or there is none.
    Ours,
    /// It is left over from a former cluster of the same name, or is being deleted. It goes by
    /// itself.
    Former,
    /// It has another owner.
    Others,
}

fn belongs(meta: Option<&ObjectMeta>, cluster: &RayCluster) -> Belongs {
    let Some(meta) = meta else {
        return Belongs::Ours;
    };
    let (name, uid) = (cluster.name(), cluster.uid_str());
    if is_controlled_by(meta, uid) {
        Belongs::Ours
    } else if meta.deletion_timestamp.is_some() || is_left_by(meta, "RayCluster", name, uid) {
        Belongs::Former
    } else {
        Belongs::Others
    }
}

/// True if something was created for a former object of this kind and name, whose UID differs from
/// this one. The garbage collector removes it.
pub(crate) fn is_left_by(meta: &ObjectMeta, kind: &str, name: &str, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.kind == kind && owner.name == name && owner.uid != uid)
}

fn suspend(jobset: Option<&JobSet>, plan: &mut ClusterPlan) {
    let Some(jobset) = jobset.filter(|jobset| !jobset.is_deleting()) else {
        return;
    };
    plan.delete_jobset = Some(reference(jobset));
    plan.events.push(event(
        Severity::Normal,
        "DeletedJobSet",
        format!("Deleted JobSet {}: the cluster is suspended", jobset.name()),
    ));
}

/// Plans the head's Service. Returns false if its name is not free yet.
fn service(observed: &ObservedCluster, facts: &mut Facts<'_>, plan: &mut ClusterPlan) -> bool {
    let cluster = &*observed.cluster;
    let name = names::head_service(cluster.name());
    let found = observed.service.as_deref();
    match belongs(found.map(|service| &service.metadata), cluster) {
        Belongs::Ours if found.is_some_and(|service| service::differs(service, cluster)) => {
            // Running pods find the head by it, so it is replaced only when none run.
            if observed.jobset.is_some() {
                facts.pending = true;
                return true;
            }
            plan.delete_service = found
                .filter(|service| service.metadata.deletion_timestamp.is_none())
                .map(|service| JobRef {
                    name,
                    uid: service.metadata.uid.clone().unwrap_or_default(),
                });
            plan.requeue_after = Some(SOON);
        }
        Belongs::Ours if found.is_some() => return true,
        Belongs::Ours => {
            plan.create_service = Some(Box::new(service::head(cluster)));
            let message = format!("Created Service {name}");
            plan.events
                .push(event(Severity::Normal, CREATED_SERVICE, message));
            return true;
        }
        Belongs::Former => plan.requeue_after = Some(SOON),
        Belongs::Others => {
            let message = format!("Service {name} belongs to another owner");
            facts.refused = Some(Refusal::taken(message));
            // It may lack our label. Then no watch event reports its deletion.
            plan.requeue_after = Some(SELDOM);
        }
    }
    false
}

fn run(
    jobset: Option<&JobSet>,
    is_free: bool,
    wanted: &JobSet,
    facts: &mut Facts<'_>,
    plan: &mut ClusterPlan,
) {
    match jobset {
        None if is_free => {
            plan.events.push(event(
                Severity::Normal,
                CREATED,
                format!("Created JobSet {}", wanted.name()),
            ));
            plan.create_jobset = Some(Box::new(wanted.clone()));
        }
        // The suspension was revoked, but the deletion continues.
        Some(jobset) if jobset.is_deleting() => {}
        Some(jobset) if jobset.is_finished() => facts.ended = true,
        Some(jobset) => {
            facts.pending |= differs(jobset, wanted);
            if let Some(scaled) = scaled(jobset, wanted) {
                plan.events.push(event(
                    Severity::Normal,
                    SCALED,
                    format!("Scaled the cluster to {} worker pods", status::desired(&scaled)),
                ));
                plan.update_jobset = Some(Box::new(scaled));
            }
        }
        None => {}
    }
}

/// True if the cluster asks for other changes than numbers of workers.
fn differs(running: &JobSet, wanted: &JobSet) -> bool {
    let is_another = |key: &str| running.annotation(key) != wanted.annotation(key);
    // A JobSet from before this digest existed cannot be compared.
    let has_settings = running.annotation(keys::SETTINGS_DIGEST).is_some();
    is_another(keys::TEMPLATE_DIGEST) || has_settings && is_another(keys::SETTINGS_DIGEST)
}

/// Identifies a JobSet by name and UID.
fn reference(jobset: &JobSet) -> JobRef {
    JobRef {
        name: jobset.name().to_owned(),
        uid: jobset.uid_str().to_owned(),
    }
}
