//! The daemons of hollow nodes, each with a token from the API server like that of a kubelet's
//! request.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use futures::{TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use lockstep_node_daemon::hub_link::{self, Hub};
use lockstep_node_daemon::worker::driver::{Driver, Handle};
use lockstep_node_daemon::worker::state::Table;
use serde_json::{Value, json};

use crate::fleet::NoHost;

/// The product's namespace, and the ServiceAccount of its daemons.
pub(super) const NAMESPACE: &str = "lockstep-system";
const ACCOUNT: &str = "lockstep-node-daemon";
const AUDIENCE: &str = "lockstep-hub";
/// Concurrent requests.
const AT_ONCE: usize = 16;

/// Creates what the daemons' tokens refer to: the namespace, the ServiceAccount, and a pod on each
/// node.
pub(super) async fn introduce(client: &Client, dir: &Path, nodes: &[String]) -> Result<()> {
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    let params = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    if namespaces.get_opt(NAMESPACE).await?.is_none() {
        namespaces.create(&params, &namespace).await?;
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let account = serde_json::from_value(json!({"metadata": {"name": ACCOUNT}}))?;
    accounts.create(&params, &account).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    stream::iter(nodes.iter().map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, async |node| {
            let pod = serde_json::from_value(pod_on(node))?;
            let pod = pods.create(&params, &pod).await?;
            let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()});
            let request = json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [AUDIENCE], "boundObjectRef": bound, "expirationSeconds": 24 * 3600},
            });
            let answer: Value = accounts
                .create_subresource("token", ACCOUNT, &params, &request)
                .await?;
            let token = answer["status"]["token"].as_str().context("no token")?;
            Ok(fs::write(file(dir, node), token)?)
        })
        .await
}

fn pod_on(node: &str) -> Value {
    json!({
        "metadata": {"generateName": "lockstep-node-daemon-"},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "nodeName": node,
            "containers": [{"name": "daemon", "image": "none"}],
        },
    })
}

fn file(dir: &Path, node: &str) -> PathBuf {
    dir.join(format!("token-{node}"))
}

/// Starts the daemon of a node, which runs until the process ends.
pub(super) fn start(dir: &Path, port: u16, node: &str) -> Handle {
    let (driver, handle) = Driver::new(Table::new(1));
    tokio::spawn(driver.run(NoHost));
    let hub = Hub {
        address: format!("https://127.0.0.1:{port}"),
        ca_file: dir.join("tls/ca.crt"),
        server_name: lockstep_control_plane::net::tls::SERVER_NAME.to_owned(),
        token_file: file(dir, node),
        boot_id: node.to_owned(),
    };
    let workers = handle.clone();
    tokio::spawn(async move { Box::pin(hub_link::serve(&hub, &workers)).await });
    handle
}
