//! Finds out if kube-scheduler can start gangs: it can if the API server serves PodGroups.
//!
//! Promises: it asks the API server once a minute. It asks sooner if a PodGroup cannot be created,
//! but not within five seconds after an answer. An answer holds until the next one.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::k8s::apply::is_status;

/// The API group of Workloads and PodGroups (Kubernetes KEP-4671).
const API: &str = "scheduling.k8s.io/v1alpha2";
/// The resources that gangs need.
const KINDS: [&str; 2] = ["workloads", "podgroups"];
/// The pause after a request without an answer.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long an answer is valid.
const BELIEVED: Duration = Duration::from_secs(60);
/// How long an answer is valid if a write contradicts it.
const DOUBTED: Duration = Duration::from_secs(5);

/// What is known of PodGroups. Clones share it.
#[derive(Clone)]
pub(crate) struct PodGroups {
    answer: watch::Sender<Option<ApiSupport>>,
    doubt: Arc<Notify>,
}

/// What the API server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiSupport {
    Served,
    NotServed,
    /// The control plane has no permission to ask.
    Forbidden,
}

impl PodGroups {
    /// Nothing is known before [`PodGroups::follow`] has asked.
    pub(crate) fn unknown() -> Self {
        Self {
            answer: watch::Sender::new(None),
            doubt: Arc::default(),
        }
    }

    /// True if the API server serves them.
    pub(crate) fn are_served(&self) -> bool {
        *self.answer.borrow() == Some(ApiSupport::Served)
    }

    /// True if the API server has answered that it does not serve them.
    pub(super) fn are_gone(&self) -> bool {
        *self.answer.borrow() == Some(ApiSupport::NotServed)
    }

    /// A PodGroup could not be created: it may be time to ask again.
    pub(super) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Waits until the API server has answered once.
    pub(crate) async fn known(&self) {
        // The sender lives as long as this does, so waiting cannot fail.
        let _ = self.answer.subscribe().wait_for(Option::is_some).await;
    }

    /// Yields when the answer changes.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Unpin + use<> {
        let changes = self.answer.subscribe();
        Box::pin(stream::unfold(changes, |mut changes| async move {
            changes.changed().await.ok().map(|()| ((), changes))
        }))
    }

    /// Asks in a loop.
    pub(crate) async fn follow(self, client: Client) {
        loop {
            match read(client.list_api_group_resources(API).await) {
                Ok(answer) => {
                    self.learn(answer);
                    sleep(DOUBTED).await;
                    let _ = tokio::time::timeout(BELIEVED - DOUBTED, self.doubt.notified()).await;
                }
                Err(error) => {
                    tracing::warn!(%error, api = API, "cannot tell if the API is served, will ask again");
                    sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    fn learn(&self, answer: ApiSupport) {
        let before = self.answer.send_replace(Some(answer));
        if before == Some(answer) {
            return;
        }
        match answer {
            ApiSupport::Served => tracing::info!(api = API, "kube-scheduler can start gangs"),
            ApiSupport::NotServed => tracing::info!(api = API, "not served: gangs are started by gates"),
            ApiSupport::Forbidden => tracing::warn!(
                api = API,
                "gangs are started by gates: no right to `get` the nonResourceURL /apis/{API}, which the ClusterRole system:discovery gives"
            ),
        }
    }
}

/// Reads an answer. An error is an answer only if it says that the API is missing or forbidden.
fn read(answer: Result<APIResourceList, kube::Error>) -> Result<ApiSupport, kube::Error> {
    match answer {
        Ok(served) => {
            let is_served = |kind: &&str| served.resources.iter().any(|resource| resource.name == **kind);
            Ok(if KINDS.iter().all(is_served) {
                ApiSupport::Served
            } else {
                ApiSupport::NotServed
            })
        }
        Err(error) if is_status(&error, 404) => Ok(ApiSupport::NotServed),
        Err(error) if is_status(&error, 403) => Ok(ApiSupport::Forbidden),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::body::Body;
    use axum::http::{Request, Response};
    use futures::StreamExt;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
    use kube::core::Status;
    use serde_json::json;
    use tokio::time::Instant;
    use tower::service_fn;

    use super::*;

    fn serving(kinds: &[&str]) -> Result<APIResourceList, kube::Error> {
        let resource = |name: &&str| APIResource {
            name: (*name).to_owned(),
            ..APIResource::default()
        };
        Ok(APIResourceList {
            resources: kinds.iter().map(resource).collect(),
            ..APIResourceList::default()
        })
    }

    fn refused(code: u16) -> Result<APIResourceList, kube::Error> {
        let status = Status::failure("refused", "Reason").with_code(code);
        Err(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn both_kinds_must_be_served() {
        assert_eq!(
            read(serving(&["workloads", "podgroups"])).unwrap(),
            ApiSupport::Served
        );
        assert_eq!(read(serving(&["workloads"])).unwrap(), ApiSupport::NotServed);
        assert_eq!(read(refused(404)).unwrap(), ApiSupport::NotServed);
    }

    #[test]
    fn a_missing_permission_counts_as_an_answer() {
        assert_eq!(read(refused(403)).unwrap(), ApiSupport::Forbidden);
        assert!(read(refused(500)).is_err(), "asked again");
    }

    /// An API server that returns these codes one after another and repeats the last one, and the
    /// number of its requests.
    fn api_server(codes: &'static [u16]) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = service_fn(move |_: Request<kube::client::Body>| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let code = codes[number.min(codes.len() - 1)];
            let answer = match code {
                200 => serde_json::to_value(serving(&KINDS).unwrap()).unwrap(),
                _ => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}),
            };
            let answer = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        (Client::new(service, "default"), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_later_is_noticed() {
        let (client, asked) = api_server(&[500, 404, 200, 404]);
        let pod_groups = PodGroups::unknown();
        assert!(!pod_groups.are_served() && !pod_groups.are_gone());
        let mut changes = pod_groups.changes();
        let task = tokio::spawn(pod_groups.clone().follow(client));
        pod_groups.known().await;
        changes.next().await;
        assert!(pod_groups.are_gone(), "an answer that is none is none");
        let start = Instant::now();
        changes.next().await;
        assert!(pod_groups.are_served());
        assert_eq!(start.elapsed().as_secs(), BELIEVED.as_secs());
        // If PodGroups cannot be created, the API server is asked soon, but not once for each of
        // them.
        let before = asked.load(Ordering::SeqCst);
        for _ in 0..100 {
            pod_groups.doubt();
        }
        changes.next().await;
        assert!(pod_groups.are_gone());
        assert_eq!(start.elapsed().as_secs(), (BELIEVED + DOUBTED).as_secs());
        assert_eq!(asked.load(Ordering::SeqCst), before + 1);
        task.abort();
    }
}
