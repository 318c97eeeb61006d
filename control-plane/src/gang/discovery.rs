//! Whether kube-scheduler can start gangs: the API server tells what it serves.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;

use crate::apply::is_status;

#[cfg(test)]
mod tests;

/// Where Workloads and PodGroups are served (Kubernetes KEP-4671).
const API: &str = "scheduling.k8s.io/v1alpha2";
/// What is needed of it.
const KINDS: [&str; 2] = ["workloads", "podgroups"];
/// How long to wait before it is asked again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Whether the API server serves PodGroups. Asks until it answers. Who may not ask has none.
pub(crate) async fn serves_pod_groups(client: &Client) -> bool {
    loop {
        match read(client.list_api_group_resources(API).await) {
            Ok(Answer::Served) => return true,
            Ok(Answer::NotServed) => return false,
            Ok(Answer::Forbidden) => {
                tracing::warn!(
                    api = API,
                    "gangs are started by gates: no right to `get` the nonResourceURL /apis/{API}, which the ClusterRole system:discovery gives"
                );
                return false;
            }
            Err(error) => {
                tracing::warn!(%error, api = API, "cannot tell whether it is served, asking again");
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

/// What the API server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Served,
    NotServed,
    /// That one may not ask.
    Forbidden,
}

/// Reads an answer. An error is none.
fn read(answer: Result<APIResourceList, kube::Error>) -> Result<Answer, kube::Error> {
    match answer {
        Ok(served) => {
            let is_served = |kind: &&str| served.resources.iter().any(|resource| resource.name == **kind);
            Ok(if KINDS.iter().all(is_served) {
                Answer::Served
            } else {
                Answer::NotServed
            })
        }
        Err(error) if is_status(&error, 404) => Ok(Answer::NotServed),
        Err(error) if is_status(&error, 403) => Ok(Answer::Forbidden),
        Err(error) => Err(error),
    }
}
