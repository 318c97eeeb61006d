//! A Job that is to be created.

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::labels::REPLICATED_JOB_NAME;

use super::refused_templates::OfTemplate;

/// A Job to be created, as the text that is sent. The text takes a fraction of the memory of the
/// object, and it may wait for long.
pub(crate) struct NewJob {
    pub(super) name: String,
    /// The name of its replicatedJob.
    pub(super) replicated_job: String,
    pub(super) body: serde_json::Result<Vec<u8>>,
}

impl OfTemplate for NewJob {
    fn job(&self) -> &str {
        &self.name
    }

    fn replicated_job(&self) -> &str {
        &self.replicated_job
    }
}

impl NewJob {
    pub(crate) fn of(job: &Job) -> Self {
        let labels = job.metadata.labels.as_ref();
        let replicated_job = labels.and_then(|labels| labels.get(REPLICATED_JOB_NAME));
        Self {
            replicated_job: replicated_job.cloned().unwrap_or_default(),
            name: job.metadata.name.clone().unwrap_or_default(),
            body: serde_json::to_vec(job),
        }
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> Option<&[u8]> {
        self.body.as_deref().ok()
    }
}
