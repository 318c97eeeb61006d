//! The RayJob of one start.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::ray::{GROUP, RayCronJob, RayJob, VERSION, keys};

/// Name of the job of this start.
pub(super) fn name(cron: &RayCronJob, due: Timestamp) -> String {
    format!("{}-{}", cron.name(), due.as_second() / 60)
}

/// A sample job, for validation before any has started.
pub(in crate::ray) fn first_job(cron: &RayCronJob) -> RayJob {
    let due = Timestamp::UNIX_EPOCH;
    job(cron, &name(cron, due), due)
}

/// The job of this start.
pub(super) fn job(cron: &RayCronJob, name: &str, due: Timestamp) -> RayJob {
    let mut annotations = cron.metadata.annotations.clone().unwrap_or_default();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    annotations.insert(keys::CRON_JOB_TIMESTAMP.to_owned(), due.to_string());
    let mut spec = cron.spec.job_template.clone();
    if spec.managed_by.is_none() {
        spec.managed_by.clone_from(&cron.spec.managed_by);
    }
    RayJob {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: cron.metadata.namespace.clone(),
            labels: Some([(keys::CRON_JOB_NAME.to_owned(), cron.name().to_owned())].into()),
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: format!("{GROUP}/{VERSION}"),
                kind: "RayCronJob".to_owned(),
                name: cron.name().to_owned(),
                uid: cron.uid_str().to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}
