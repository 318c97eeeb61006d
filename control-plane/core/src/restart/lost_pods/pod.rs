//! The replacement pod, as the Job controller would create it.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::{labels, naming};

/// Environment variable with the completion index. The Job controller adds it to a container that
/// lacks it.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

/// A pod of an Indexed Job that the Job controller accepts as its own, by owner, labels, index and
/// finalizer. `None` if the Job has no spec, name or UID.
#[must_use]
pub fn replacement_pod(job: &Job, index: u32, name: &str) -> Option<Pod> {
    let (job_name, uid) = (job.metadata.name.as_ref()?, job.metadata.uid.as_ref()?);
    let template = job.spec.as_ref()?.template.clone();
    let meta = template.metadata.unwrap_or_default();
    let with_index = |map: Option<std::collections::BTreeMap<_, _>>| {
        let mut map = map.unwrap_or_default();
        map.insert(labels::BATCH_JOB_COMPLETION_INDEX.to_owned(), index.to_string());
        Some(map)
    };
    let mut finalizers = meta.finalizers.unwrap_or_default();
    if !finalizers
        .iter()
        .any(|finalizer| finalizer == labels::BATCH_JOB_TRACKING_FINALIZER)
    {
        finalizers.push(labels::BATCH_JOB_TRACKING_FINALIZER.to_owned());
    }
    let mut spec = template.spec?;
    let init = spec.init_containers.iter_mut().flatten();
    init.chain(&mut spec.containers).for_each(add_index);
    spec.hostname = Some(naming::pod_hostname(job_name, i64::from(index)));
    Some(Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: job.metadata.namespace.clone(),
            labels: with_index(meta.labels),
            annotations: with_index(meta.annotations),
            finalizers: Some(finalizers),
            owner_references: Some(vec![OwnerReference {
                api_version: "batch/v1".to_owned(),
                kind: "Job".to_owned(),
                name: job_name.clone(),
                uid: uid.clone(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    })
}

fn add_index(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|variable| variable.name == INDEX_VARIABLE) {
        return;
    }
    env.push(EnvVar {
        name: INDEX_VARIABLE.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: format!("metadata.labels['{}']", labels::BATCH_JOB_COMPLETION_INDEX),
            }),
            ..EnvVarSource::default()
        }),
    });
}
