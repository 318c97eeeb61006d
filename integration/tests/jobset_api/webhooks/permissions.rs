//! The rights of the control plane as the chart installs it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use super::setup;
use crate::scene::{PATIENCE, Scene};

const NAMESPACE: &str = "lockstep-system";
/// What the log says if the configurations cannot be read.
const NOT_GIVEN: &str = "does not get the CA";

/// Objects that let the control plane store the webhooks' certificate.
const CERTIFICATE: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: certificate
  namespace: lockstep-system
rules:
  - apiGroups: [""]
    resources: [secrets]
    resourceNames: [jobset-webhook-server-cert]
    verbs: [get, list, watch, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: certificate
  namespace: lockstep-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: certificate
subjects:
  - kind: ServiceAccount
    name: lockstep-control-plane
    namespace: lockstep-system
"#;

/// A kubeconfig for the chart's ServiceAccount.
pub(crate) async fn kubeconfig(scene: &Scene, file: &Path) -> Result<()> {
    let access = &scene.namespace.access;
    let create = [
        "--namespace",
        NAMESPACE,
        "create",
        "token",
        "lockstep-control-plane",
    ];
    let token = access.kubectl(&create, "").await?;
    let view = ["config", "view", "--raw", "--minify", "--output", "json"];
    let mut config: Value = serde_json::from_str(&access.kubectl(&view, "").await?)?;
    config["users"][0]["user"] = json!({"token": token.trim()});
    std::fs::write(file, config.to_string())?;
    Ok(())
}

/// Objects that grant a ServiceAccount an unused right, one of each RBAC kind. They are written
/// last.
const LAST: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: LAST
rules:
  - nonResourceURLs: [/LAST]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: LAST
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: LAST
subjects:
  - kind: ServiceAccount
    name: lockstep-control-plane
    namespace: lockstep-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: LAST
  namespace: lockstep-system
rules:
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [LAST]
    verbs: [get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: LAST
  namespace: lockstep-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: LAST
subjects:
  - kind: ServiceAccount
    name: lockstep-control-plane
    namespace: lockstep-system
"#;

/// Gives the ServiceAccount the rights of the chart with these values, and waits until the API
/// server applies them.
pub(crate) async fn grant(scene: &Scene, values: &[&str]) -> Result<()> {
    let templates = [
        "templates/control-plane/rbac.yaml",
        "templates/control-plane/serviceaccount.yaml",
    ];
    let manifests = setup::rendered(&templates, values).await?;
    let apply = ["apply", "--server-side", "--force-conflicts", "--filename", "-"];
    scene.namespace.access.kubectl(&apply, &manifests).await?;
    until_known(scene).await
}

/// The API server learns of each kind by a watch of its own, in the order of writes: if it knows
/// the last right, it knows all earlier ones.
async fn until_known(scene: &Scene) -> Result<()> {
    let access = &scene.namespace.access;
    let last = format!("last-{:08x}", rand::random::<u32>());
    let user = format!("system:serviceaccount:{NAMESPACE}:lockstep-control-plane");
    let manifests = LAST.replace("LAST", &last);
    access.kubectl(&["create", "--filename", "-"], &manifests).await?;
    let (url, map) = (format!("/{last}"), format!("configmaps/{last}"));
    for may in [&[url.as_str()][..], &[&map, "--namespace", NAMESPACE]] {
        let ask = [&["auth", "can-i", "get", "--as", &user][..], may].concat();
        eventually("the rights are known", PATIENCE, async || {
            access.kubectl(&ask, "").await.map(drop)
        })
        .await?;
    }
    access.kubectl(&["delete", "--filename", "-"], &manifests).await?;
    Ok(())
}

/// The log of a replica that became ready and stopped with these rights.
async fn log_of_replica(scene: &Scene, identity: &str, values: &[&str]) -> Result<String> {
    grant(scene, values).await?;
    let file = scene.control_plane().dir().join(format!("{identity}.kubeconfig"));
    kubeconfig(scene, &file).await?;
    let replica = scene.control_plane().replica(identity, &[])?;
    replica.go_through(file);
    replica.start().await?;
    let ready = replica.until_ready().await;
    ready.with_context(|| replica.log())?;
    ensure!(replica.stop().await?.success(), "{}", replica.log());
    Ok(replica.log())
}

pub(super) async fn the_chart_allows_what_a_replica_does_and_it_can_do_without_the_configurations(
    scene: Scene,
) -> Result<()> {
    setup::enable(&scene).await?;
    // Without webhooks it may not read their certificate either; here it may.
    scene
        .namespace
        .access
        .kubectl(&["apply", "--filename", "-"], CERTIFICATE)
        .await?;
    let log = log_of_replica(&scene, "restricted", &["webhook.enable=false"]).await;
    scene
        .namespace
        .access
        .kubectl(&["delete", "--filename", "-"], CERTIFICATE)
        .await?;
    let log = log?;
    ensure!(log.contains(NOT_GIVEN), "{log}");
    let log = log_of_replica(&scene, "allowed", &[]).await?;
    ensure!(
        !log.contains(NOT_GIVEN) && !log.to_lowercase().contains("forbidden"),
        "{log}"
    );
    Ok(())
}
