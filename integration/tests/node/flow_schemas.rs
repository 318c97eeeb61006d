//! Requests of the control plane do not queue with those of tenants: an API server sorts them by
//! the chart's FlowSchemas (API Priority and Fairness).

use anyhow::{Context, Result, ensure};
use http::{Method, Request};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::group::START;

use crate::support::{Case, Scene, case};

/// Headers of each answer: the UIDs of the FlowSchema and the priority level of the request.
const SCHEMA: &str = "X-Kubernetes-PF-FlowSchema-UID";
const LEVEL: &str = "X-Kubernetes-PF-PriorityLevel-UID";

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/lockstep-system/leases/lockstep-control-plane";
const JOBSETS: &str = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets";

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(requests_of_the_control_plane_queue_by_themselves)]
}

async fn requests_of_the_control_plane_queue_by_themselves(scene: Scene) -> Result<()> {
    let client = scene.access().client.clone();
    for (method, path, schema, level) in [
        (Method::GET, LEASE, "lockstep-leader-election", "leader-election"),
        (Method::GET, JOBSETS, "lockstep-reads", "lockstep-reads"),
        (Method::GET, "/version", "lockstep-reads", "lockstep-reads"),
        (Method::POST, JOBSETS, "lockstep-writes", "lockstep-writes"),
    ] {
        // The API server notices new objects within a minute or two.
        eventually(&format!("{method} {path} has {schema}"), START, async || {
            let sorted = sorted_into(&client, "lockstep-control-plane", &method, path).await?;
            ensure!(sorted == (schema.to_owned(), level.to_owned()), "{sorted:?}");
            Ok(())
        })
        .await?;
    }
    // Another ServiceAccount of the same namespace has none of them.
    let (schema, _) = sorted_into(&client, "default", &Method::GET, JOBSETS).await?;
    ensure!(!schema.starts_with("lockstep-"), "{schema}");
    Ok(())
}

/// The names of the FlowSchema and of the priority level for such a request of a ServiceAccount,
/// whatever its result.
async fn sorted_into(
    client: &Client,
    account: &str,
    method: &Method,
    path: &str,
) -> Result<(String, String)> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(
            "Impersonate-User",
            format!("system:serviceaccount:lockstep-system:{account}"),
        )
        .header("Impersonate-Group", "system:serviceaccounts")
        .header("Impersonate-Group", "system:authenticated")
        .body(Body::empty())?;
    let answer = client.send(request).await?;
    let uid = |header: &str| {
        let value = answer.headers().get(header).context("not sorted")?;
        anyhow::Ok(value.to_str()?.to_owned())
    };
    let (schema, level) = (uid(SCHEMA)?, uid(LEVEL)?);
    let schemas = Api::<FlowSchema>::all(client.clone())
        .list(&<_>::default())
        .await?;
    let levels = Api::<PriorityLevelConfiguration>::all(client.clone())
        .list(&<_>::default())
        .await?;
    let schema = schemas.iter().find(|found| found.uid().as_ref() == Some(&schema));
    let level = levels.iter().find(|found| found.uid().as_ref() == Some(&level));
    Ok((
        schema.context("no such FlowSchema")?.name_any(),
        level.context("no such level")?.name_any(),
    ))
}
