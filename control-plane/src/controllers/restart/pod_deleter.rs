//! Deletes the pods of workers that have failed too often (`lockstep.dev/escalate-after`).
//!
//! Promises: it deletes exactly the pod of the given UID, with the pod's own grace period. It
//! retries failures with growing pauses while the deletion is wanted.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Instant;

use futures::stream::FuturesUnordered;
use futures::{StreamExt, future};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, Preconditions};
use lockstep_core::restart::Condemned;

use crate::k8s::retry::delay;
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::own_writes::BELIEVED;

type Deletion = Pin<Box<dyn Future<Output = (String, Result<(), kube::Error>)> + Send>>;

/// Deletes pods of one group, at most one of each worker at a time.
pub(super) struct PodDeleter {
    client: Client,
    /// By UID.
    attempts: BTreeMap<String, Attempt>,
    deletions: FuturesUnordered<Deletion>,
}

#[derive(Default)]
struct Attempt {
    failures: u32,
    /// When to try again. `None` while a request is in progress.
    again: Option<Instant>,
}

impl PodDeleter {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            attempts: BTreeMap::new(),
            deletions: FuturesUnordered::new(),
        }
    }

    /// Sets which pods to delete. Returns when to call this again if they are still wanted.
    pub(super) fn want(&mut self, namespace: &str, condemned: &[Condemned]) -> Option<Instant> {
        let now = Instant::now();
        self.attempts.retain(|uid, attempt| {
            attempt.again.is_none() || condemned.iter().any(|condemned| condemned.pod_uid == *uid)
        });
        for Condemned { pod_uid, pod, .. } in condemned {
            let attempt = self.attempts.entry(pod_uid.clone()).or_insert(Attempt {
                failures: 0,
                again: Some(now),
            });
            if attempt.again.is_some_and(|at| at <= now) {
                attempt.again = None;
                let api = Api::namespaced(self.client.clone(), namespace);
                self.deletions
                    .push(Box::pin(delete(api, pod.clone(), pod_uid.clone())));
            }
        }
        self.attempts.values().filter_map(|attempt| attempt.again).min()
    }

    /// Resolves when a deletion is done or has failed. Cancel-safe: requests stay in `self`.
    pub(super) async fn progress(&mut self) {
        let Some((uid, result)) = self.deletions.next().await else {
            return future::pending().await;
        };
        let Some(attempt) = self.attempts.get_mut(&uid) else {
            return;
        };
        let after = match result {
            Ok(()) => BELIEVED,
            Err(error) => {
                attempt.failures = attempt.failures.saturating_add(1);
                let after = delay(attempt.failures);
                tracing::warn!(uid, %error, ?after, "pod not deleted, will retry");
                after
            }
        };
        attempt.again = Some(Instant::now() + after);
    }
}

async fn delete(api: Api<Lean<Pod>>, name: String, uid: String) -> (String, Result<(), kube::Error>) {
    let exactly = Preconditions {
        uid: Some(uid.clone()),
        resource_version: None,
    };
    let params = DeleteParams::background().preconditions(exactly);
    let result = match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        // The pod is gone, or another pod has its name.
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(error),
    };
    (uid, result)
}
