//! Whether kube-scheduler can start gangs: the API server tells what it serves.

use std::time::Duration;

use kube::Client;

use crate::apply::is_status;

/// Where Workloads and PodGroups are served (Kubernetes KEP-4671).
const API: &str = "scheduling.k8s.io/v1alpha2";
/// What is needed of it.
const KINDS: [&str; 2] = ["workloads", "podgroups"];
/// How long to wait before it is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Whether the API server serves PodGroups. Asks until it answers.
pub(crate) async fn serves_pod_groups(client: &Client) -> bool {
    loop {
        match client.list_api_group_resources(API).await {
            Ok(served) => {
                let is_served = |kind: &&str| served.resources.iter().any(|resource| resource.name == **kind);
                return KINDS.iter().all(is_served);
            }
            Err(error) if is_status(&error, 404) => return false,
            Err(error) => {
                tracing::warn!(%error, api = API, "cannot tell whether it is served, asking again");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}
