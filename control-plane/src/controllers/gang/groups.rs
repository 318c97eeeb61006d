//! The Workloads and PodGroups by which kube-scheduler starts gangs (Kubernetes KEP-4671).
//!
//! Promises: a group belongs to its JobSet, and is deleted with it. Existing objects stay as they
//! are, because the kind of a policy cannot be changed, and in Kubernetes 1.36 nothing can. A group
//! that needs another policy is recreated under the same name, because pods cannot move to another
//! group.

use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Client, Resource};
use lockstep_api::{GROUP, JobSet, KIND};
use lockstep_core::gang::{GroupPolicy, PodGroupRef};
use lockstep_core::jobset::owner::is_controlled_by;
use serde_json::{Value, json};

use super::version::Version;
use crate::k8s::apply::is_status;
use crate::telemetry::metrics::Metrics;

#[cfg(test)]
mod tests;

/// Name of the only template of a Workload.
const TEMPLATE: &str = "gang";

/// Keeps a group while pods that have not ended name it (`PodGroupProtection`).
const PROTECTION: &str = "scheduling.k8s.io/podgroup-protection";

/// Creates a Workload and a PodGroup. If the policy has to be exact, a PodGroup with another policy
/// is replaced. Returns the PodGroup's policy, if it is known. If a quota or an admission policy
/// forbids the creation, existing objects stay.
///
/// # Errors
/// What the API server returns, except that the objects exist already.
pub(super) async fn create(
    client: &Client,
    metrics: &Metrics,
    version: Version,
    jobset: &JobSet,
    wanted: &PodGroupRef,
) -> Result<Option<GroupPolicy>, kube::Error> {
    let groups = pod_groups(client, version, jobset);
    let make = async || {
        metrics.wrote("PodGroup", "create");
        groups
            .create(&PostParams::default(), &group(version, jobset, wanted))
            .await
    };
    let made = match make_workload(client, metrics, version, jobset, wanted).await {
        Ok(()) => make().await.map(drop),
        refused => refused,
    };
    let is_wanted = |there: &DynamicObject| {
        let found = there.data.pointer("/spec/schedulingPolicy");
        there.metadata.deletion_timestamp.is_none() && found == Some(&policy(wanted.policy))
    };
    match made {
        Ok(()) => return Ok(Some(wanted.policy)),
        // Whatever refuses this PodGroup now would refuse it after the old one is deleted, too.
        // Then the gang's pods would name a group that is gone.
        Err(error) if is_status(&error, 403) => {
            return match groups.get_opt(&wanted.name).await {
                Ok(Some(_)) if !wanted.exact => Ok(None),
                Ok(Some(there)) if is_wanted(&there) => Ok(Some(wanted.policy)),
                _ => Err(error),
            };
        }
        Err(error) if !is_status(&error, 409) => return Err(error),
        Err(_) if !wanted.exact => return Ok(None),
        Err(_) => {}
    }
    match groups.get_opt(&wanted.name).await? {
        Some(there) if is_wanted(&there) => return Ok(Some(wanted.policy)),
        Some(there) => {
            // A PodGroup of another owner is not deleted: creation then reports the conflict.
            if is_controlled_by(&there.metadata, jobset.uid_str()) {
                tracing::info!(
                    namespace = jobset.ns(),
                    jobset = jobset.name(),
                    group = wanted.name,
                    policy = ?wanted.policy,
                    "recreating the PodGroup, because kube-scheduler does not count pods that have ended"
                );
            }
            remove(&groups, metrics, jobset, &there).await?;
        }
        None => {}
    }
    make().await.map(|_| Some(wanted.policy))
}

/// # Errors
/// What the API server returns, except that it exists already.
async fn make_workload(
    client: &Client,
    metrics: &Metrics,
    version: Version,
    jobset: &JobSet,
    wanted: &PodGroupRef,
) -> Result<(), kube::Error> {
    metrics.wrote("Workload", "create");
    let workloads: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), jobset.ns(), &version.workloads());
    let made = workloads
        .create(&PostParams::default(), &workload(version, jobset, wanted))
        .await;
    match made {
        Err(error) if !is_status(&error, 409) => Err(error),
        _ => Ok(()),
    }
}

/// Deletes a PodGroup, if it exists, even if pods name it.
///
/// # Errors
/// What the API server returns, except that it does not exist.
pub(super) async fn discard(
    client: &Client,
    metrics: &Metrics,
    version: Version,
    jobset: &JobSet,
    name: &str,
) -> Result<(), kube::Error> {
    let groups = pod_groups(client, version, jobset);
    match groups.get_opt(name).await? {
        Some(there) => remove(&groups, metrics, jobset, &there).await,
        None => Ok(()),
    }
}

/// Deletes a PodGroup if it is the JobSet's. Its pods are bound, or will find the next group of
/// this name, so the deletion need not wait for them. The finalizer is removed after the deletion:
/// before it, Kubernetes would add it again.
async fn remove(
    groups: &Api<DynamicObject>,
    metrics: &Metrics,
    jobset: &JobSet,
    there: &DynamicObject,
) -> Result<(), kube::Error> {
    let meta = &there.metadata;
    if !is_controlled_by(meta, jobset.uid_str()) {
        return Ok(());
    }
    let exactly = Preconditions {
        uid: meta.uid.clone(),
        resource_version: None,
    };
    metrics.wrote("PodGroup", "delete");
    let params = DeleteParams::default().preconditions(exactly);
    or_gone(
        groups
            .delete(meta.name.as_deref().unwrap_or_default(), &params)
            .await,
    )?;
    let name = meta.name.as_deref().unwrap_or_default();
    let finalizers = meta.finalizers.iter().flatten();
    let others: Vec<&String> = finalizers.filter(|finalizer| *finalizer != PROTECTION).collect();
    let patch = json!({"metadata": {"uid": meta.uid, "finalizers": others}});
    metrics.wrote("PodGroup", "patch");
    let patched = groups
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    or_gone(patched)
}

fn or_gone<T>(done: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(error) if is_status(&error, 404) => Ok(()),
        done => done.map(drop),
    }
}

fn pod_groups(client: &Client, version: Version, jobset: &JobSet) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), jobset.ns(), &version.pod_groups())
}

fn workload(version: Version, jobset: &JobSet, wanted: &PodGroupRef) -> DynamicObject {
    let mut template = json!({"name": TEMPLATE});
    schedule(&mut template, version, wanted);
    let spec = json!({
        "controllerRef": {"apiGroup": GROUP, "kind": KIND, "name": jobset.name()},
        "podGroupTemplates": [template],
    });
    object(&version.workloads(), jobset, wanted, spec)
}

fn group(version: Version, jobset: &JobSet, wanted: &PodGroupRef) -> DynamicObject {
    let name = &wanted.name;
    let mut spec = match version {
        Version::V1Beta1 | Version::V1Alpha3 => {
            json!({"workloadRef": {"workloadName": name, "templateName": TEMPLATE}})
        }
        Version::V1Alpha2 => {
            let workload = json!({"workloadName": name, "podGroupTemplateName": TEMPLATE});
            json!({"podGroupTemplateRef": {"workload": workload}})
        }
    };
    schedule(&mut spec, version, wanted);
    object(&version.pod_groups(), jobset, wanted, spec)
}

fn object(resource: &ApiResource, jobset: &JobSet, wanted: &PodGroupRef, spec: Value) -> DynamicObject {
    let mut object = DynamicObject::new(&wanted.name, resource)
        .within(jobset.ns())
        .data(json!({"spec": spec}));
    object.metadata.owner_references = jobset.controller_owner_ref(&()).map(|owner| vec![owner]);
    object
}

/// Sets how kube-scheduler treats the group. In Kubernetes 1.36 it does not compare priorities.
fn schedule(spec: &mut Value, version: Version, wanted: &PodGroupRef) {
    spec["schedulingPolicy"] = policy(wanted.policy);
    if let Some(class) = &wanted.priority_class
        && version != Version::V1Alpha2
    {
        spec["priorityClassName"] = json!(class);
    }
}

fn policy(wanted: GroupPolicy) -> Value {
    match wanted {
        GroupPolicy::Gang(pods) => json!({"gang": {"minCount": i32::try_from(pods).unwrap_or(i32::MAX)}}),
        GroupPolicy::Basic => json!({"basic": {}}),
    }
}
