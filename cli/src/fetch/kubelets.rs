//! Asks kubelets what happens to a container that is out of memory.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::Value;

use super::Cluster;
use crate::view::nodes::is_ready;

/// The most nodes that are asked. Usually all have the same settings.
const ASKED: usize = 8;
/// Time limit for one answer. The API server passes on the request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The kubelet's metric with the version of its control groups, since Kubernetes 1.31.
const CGROUP_VERSION: &str = "kubelet_cgroup_version ";

impl Cluster {
    /// For some of the nodes, by name: true if the kernel kills all processes of a container that
    /// is out of memory. The kubelet asks for that with cgroup v2, unless `singleProcessOOMKill` is
    /// set (`pkg/kubelet/kubelet.go`). Without the right to get `nodes/proxy`, no node is known.
    pub(crate) async fn kills_of_whole_containers(&self, nodes: &[Node]) -> BTreeMap<String, bool> {
        let ready = nodes.iter().filter(|node| is_ready(node)).take(ASKED);
        let asked = ready.map(async |node| {
            let name = node.name_any();
            let answer = tokio::time::timeout(TIMEOUT, self.kills_whole(&name)).await;
            Some((name, answer.ok()??))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn kills_whole(&self, node: &str) -> Option<bool> {
        let config = self.of_kubelet(node, "configz").await?;
        let config: Value = serde_json::from_str(&config).ok()?;
        if config["kubeletconfig"]["singleProcessOOMKill"] == true {
            return Some(false);
        }
        let metrics = self.of_kubelet(node, "metrics").await?;
        let version = metrics.lines().find_map(|line| line.strip_prefix(CGROUP_VERSION));
        version.map(|version| version.trim() == "2")
    }

    async fn of_kubelet(&self, node: &str, path: &str) -> Option<String> {
        let request = http::Request::get(format!("/api/v1/nodes/{node}/proxy/{path}"));
        let request = request.body(Vec::new()).ok()?;
        self.client.request_text(request).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::view::testing::object;

    fn node(name: &str, ready: &str) -> Node {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        object(json!({"metadata": {"name": name}, "status": {"conditions": conditions}}))
    }

    #[tokio::test]
    async fn kubelets_tell_what_happens_out_of_memory() {
        let cluster = Cluster::with_fake_api("ns", |request: &Request<Body>| {
            let path = request.uri().path();
            let (node, what) = path
                .strip_prefix("/api/v1/nodes/")
                .and_then(|path| path.split_once("/proxy/"))
                .unwrap();
            let version = if node == "old" { 1 } else { 2 };
            let text = match (node, what) {
                ("forbidden", _) => {
                    let status = StatusCode::FORBIDDEN;
                    return Response::builder().status(status).body(Body::empty()).unwrap();
                }
                ("single", "configz") => r#"{"kubeletconfig":{"singleProcessOOMKill":true}}"#.to_owned(),
                (_, "configz") => r#"{"kubeletconfig":{"maxPods":110}}"#.to_owned(),
                _ => format!(
                    "# HELP kubelet_cgroup_version cgroup version\nkubelet_cgroup_version {version}\n"
                ),
            };
            Response::new(Body::from(text.into_bytes()))
        });
        let nodes = ["old", "new", "single", "forbidden"].map(|name| node(name, "True"));
        let mut nodes = nodes.to_vec();
        nodes.push(node("gone", "Unknown"));
        let known = cluster.kills_of_whole_containers(&nodes).await;
        let expected = [("new", true), ("old", false), ("single", false)];
        assert_eq!(
            known,
            expected.map(|(name, whole)| (name.to_owned(), whole)).into()
        );
    }
}
