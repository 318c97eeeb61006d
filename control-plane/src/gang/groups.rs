//! The Workloads and PodGroups by which kube-scheduler starts gangs (Kubernetes KEP-4671).
//!
//! Promises: a group belongs to its JobSet, and goes with it; what is there already is left as it is, for neither kind can be changed.

use k8s_openapi::api::scheduling::v1alpha2::{
    GangSchedulingPolicy, PodGroup, PodGroupSchedulingPolicy, PodGroupSpec, PodGroupTemplate,
    PodGroupTemplateReference, TypedLocalObjectReference, Workload, WorkloadPodGroupTemplateReference,
    WorkloadSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, Resource};
use lockstep_api::{GROUP, JobSet, KIND};
use lockstep_core::gang::PodGroupRef;

use crate::apply::is_status;
use crate::metrics::Metrics;

#[cfg(test)]
mod tests;

/// Name of the only template of a Workload.
const TEMPLATE: &str = "gang";

/// Creates a Workload and a PodGroup.
///
/// # Errors
/// What the API server says, but that there are such objects already.
pub(super) async fn create(
    client: &Client,
    metrics: &Metrics,
    jobset: &JobSet,
    wanted: &PodGroupRef,
) -> Result<(), kube::Error> {
    metrics.wrote("Workload", "create");
    let workloads = Api::<Workload>::namespaced(client.clone(), jobset.ns());
    or_there(
        workloads
            .create(&PostParams::default(), &workload(jobset, wanted))
            .await,
    )?;
    metrics.wrote("PodGroup", "create");
    let groups = Api::<PodGroup>::namespaced(client.clone(), jobset.ns());
    or_there(
        groups
            .create(&PostParams::default(), &group(jobset, wanted))
            .await,
    )
}

fn or_there<K>(created: Result<K, kube::Error>) -> Result<(), kube::Error> {
    match created {
        Err(error) if is_status(&error, 409) => Ok(()),
        created => created.map(drop),
    }
}

fn workload(jobset: &JobSet, wanted: &PodGroupRef) -> Workload {
    Workload {
        metadata: metadata(jobset, &wanted.name),
        spec: WorkloadSpec {
            controller_ref: Some(TypedLocalObjectReference {
                api_group: Some(GROUP.to_owned()),
                kind: KIND.to_owned(),
                name: jobset.name().to_owned(),
            }),
            pod_group_templates: vec![PodGroupTemplate {
                name: TEMPLATE.to_owned(),
                scheduling_policy: policy(wanted),
                ..PodGroupTemplate::default()
            }],
        },
    }
}

fn group(jobset: &JobSet, wanted: &PodGroupRef) -> PodGroup {
    PodGroup {
        metadata: metadata(jobset, &wanted.name),
        spec: PodGroupSpec {
            pod_group_template_ref: Some(PodGroupTemplateReference {
                workload: Some(WorkloadPodGroupTemplateReference {
                    workload_name: wanted.name.clone(),
                    pod_group_template_name: TEMPLATE.to_owned(),
                }),
            }),
            scheduling_policy: policy(wanted),
            ..PodGroupSpec::default()
        },
        status: None,
    }
}

fn policy(wanted: &PodGroupRef) -> PodGroupSchedulingPolicy {
    let min_count = i32::try_from(wanted.min_count).unwrap_or(i32::MAX);
    PodGroupSchedulingPolicy {
        gang: Some(GangSchedulingPolicy { min_count }),
        ..PodGroupSchedulingPolicy::default()
    }
}

fn metadata(jobset: &JobSet, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(jobset.ns().to_owned()),
        owner_references: jobset.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}
