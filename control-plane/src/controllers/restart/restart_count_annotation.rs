//! The number of restarts as an annotation of the JobSet
//! (`alpha.jobset.sigs.k8s.io/inplace-restarts`), for users and for tools of the Valkey design. It
//! is never read back.

use std::pin::Pin;
use std::time::{Duration, Instant};

use kube::api::{Api, Patch, PatchParams};
use lockstep_api::{JobSet, annotations};
use serde_json::{Value, json};

use crate::k8s::watch::lean::Lean;

/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);

type Write = Pin<Box<dyn Future<Output = Result<Lean<JobSet>, kube::Error>> + Send>>;

/// Writes the annotation when there is nothing else to write.
pub(super) struct RestartCountAnnotation {
    client: kube::Client,
    writing: Option<Write>,
    not_before: Option<Instant>,
}

impl RestartCountAnnotation {
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            client,
            writing: None,
            not_before: None,
        }
    }

    /// Begins to write the number of restarts if the annotation differs.
    pub(super) fn show(&mut self, jobset: &JobSet, restarts: u32) {
        let waits = self.not_before.is_some_and(|at| Instant::now() < at);
        if self.writing.is_some() || waits || shown(jobset) == Some(restarts) {
            return;
        }
        let api: Api<Lean<JobSet>> = Api::namespaced(self.client.clone(), jobset.ns());
        let (name, patch) = (jobset.name().to_owned(), patch(jobset, restarts));
        self.writing = Some(Box::pin(async move {
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await
        }));
    }

    /// Resolves with the current JobSet when a write has succeeded. Cancel-safe: the write stays in
    /// `self`.
    pub(super) async fn shown(&mut self) -> JobSet {
        loop {
            let Some(write) = &mut self.writing else {
                return std::future::pending().await;
            };
            let written = write.as_mut().await;
            self.writing = None;
            match written {
                Ok(Lean(jobset)) => return jobset,
                Err(error) => {
                    tracing::debug!(%error, "number of restarts not written, will retry");
                    self.not_before = Some(Instant::now() + RETRY);
                }
            }
        }
    }
}

fn shown(jobset: &JobSet) -> Option<u32> {
    jobset.annotation(annotations::IN_PLACE_RESTARTS)?.parse().ok()
}

fn patch(jobset: &JobSet, restarts: u32) -> Value {
    json!({"metadata": {
        "uid": jobset.uid_str(),
        "annotations": {annotations::IN_PLACE_RESTARTS: restarts.to_string()},
    }})
}
