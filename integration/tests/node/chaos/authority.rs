//! The hub's CA is rotated without the usual days between the steps: each step ends when the daemon
//! knows of it and has reconnected.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, ListParams, Patch, PatchParams};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::support::{Part, Product, READY};

const NAMESPACE: &str = "lockstep-system";
/// The file from which the daemon reads its trust bundle.
const TRUSTED: &str = "etc/lockstep/hub-ca/ca.crt";

/// Rotates the CA, from the announcement of the next one to the removal of the former one.
pub(super) async fn replace(product: &Product) -> Result<()> {
    let first = published(product, |ca| certificates(ca) == 1).await?;
    long_ago(product, "ca.since").await?;
    let both = published(product, |ca| certificates(ca) == 2).await?;
    until_known(product, &both).await?;
    long_ago(product, "next.since").await?;
    long_ago(product, "next.told").await?;
    let replaced = published(product, |ca| *ca != both).await?;
    // The hub now serves a certificate of the next CA.
    product.cut_hub(None).await?;
    until_known(product, &replaced).await?;
    long_ago(product, "previous.since").await?;
    let last = published(product, |ca| certificates(ca) == 1).await?;
    ensure!(last != first, "it is the same authority");
    until_known(product, &last).await?;
    product.cut_hub(None).await
}

fn certificates(pem: &str) -> usize {
    pem.matches("BEGIN CERTIFICATE").count()
}

/// Backdates a step, so that the next one is due.
async fn long_ago(product: &Product, step: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(product.access().client.clone(), NAMESPACE);
    let patch = json!({"stringData": {step: "2020-01-01T00:00:00Z"}});
    secrets
        .patch("lockstep-hub-tls", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// The published trust bundle, once it meets `expected`.
async fn published(product: &Product, expected: impl Fn(&String) -> bool) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(product.access().client.clone(), NAMESPACE);
    eventually("the next step is published", READY, async || {
        let data = maps.get("lockstep-hub-ca").await?.data.unwrap_or_default();
        let ca = data.get("ca.crt").context("no CA")?;
        ensure!(expected(ca), "{} certificates", certificates(ca));
        Ok(ca.clone())
    })
    .await
}

/// Waits until the daemon's file has this content. A change of its pod makes the kubelet look at
/// once.
async fn until_known(product: &Product, ca: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(product.access().client.clone(), NAMESPACE);
    let daemons = ListParams::default().labels("app.kubernetes.io/component=node-daemon");
    let mut look = 0;
    eventually("the daemon knows the trust bundle", READY, async || {
        look += 1;
        for pod in pods.list(&daemons).await?.items {
            let name = pod.metadata.name.context("no name")?;
            let patch = json!({"metadata": {"annotations": {"look": format!("{look}")}}});
            pods.patch(&name, &PatchParams::default(), &Patch::Merge(patch))
                .await?;
        }
        let daemon = product.process(Part::NodeDaemon(1)).await?;
        let known = std::fs::read_to_string(format!("/proc/{}/root/{TRUSTED}", daemon.pid))?;
        ensure!(known == ca, "{} certificates", certificates(&known));
        Ok(())
    })
    .await
}
