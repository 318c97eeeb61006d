//! Evicts a misplaced pod.

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use lockstep_core::jobset::placement::{CONDITION, MESSAGE, Member, REASON};
use serde_json::json;

use crate::k8s::watch::lean::Lean;
use crate::telemetry::metrics::Metrics;

/// Pods of one Job that are written at the same time, as in upstream.
const AT_ONCE: usize = 50;

/// Marks and deletes pods. Returns the evicted pods, and the first error of the others.
pub(super) async fn evict(
    client: &Client,
    metrics: &Metrics,
    namespace: &str,
    pods: Vec<Member>,
) -> (Vec<Member>, Result<(), kube::Error>) {
    let api: Api<Lean<Pod>> = Api::namespaced(client.clone(), namespace);
    let api = &api;
    let mut all = stream::iter(pods)
        .map(|pod| async move { (one(api, metrics, namespace, &pod).await, pod) })
        .buffer_unordered(AT_ONCE);
    let (mut done, mut result) = (Vec::new(), Ok(()));
    while let Some((evicted, pod)) = all.next().await {
        match evicted {
            Ok(()) => done.push(pod),
            Err(error) => result = result.and(Err(error)),
        }
    }
    (done, result)
}

/// Writes the condition first, so that a podFailurePolicy can tell the deletion from a failure.
async fn one(
    api: &Api<Lean<Pod>>,
    metrics: &Metrics,
    namespace: &str,
    pod: &Member,
) -> Result<(), kube::Error> {
    if !pod.marked {
        let condition = json!({
            "type": CONDITION,
            "status": "True",
            "reason": REASON,
            "message": MESSAGE,
            "lastTransitionTime": jiff::Timestamp::now().to_string(),
        });
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
        metrics.wrote("Pod", "status");
        match api
            .patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            Ok(_) => {}
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    let exactly = Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: None,
    };
    metrics.wrote("Pod", "delete");
    match api
        .delete(&pod.name, &DeleteParams::background().preconditions(exactly))
        .await
    {
        Ok(_) => {
            tracing::info!(
                namespace,
                pod = pod.name,
                selected = pod.selected,
                "pod evicted: it is not in the domain of its leader"
            );
            Ok(())
        }
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Another pod of this name is a conflict and does not count as gone: the watch shows it by the
/// next attempt.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
