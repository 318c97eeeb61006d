//! Finds out if kube-scheduler can start gangs: it can if the API server serves PodGroups, in a
//! version that the control plane knows.
//!
//! Promises: it asks the API server once a minute, version by version. It asks sooner if a PodGroup
//! cannot be created, but not within five seconds after an answer. An answer holds until the next
//! one.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::version::Version;
use crate::k8s::apply::is_status;

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
    /// The version that was served last. The best one, if none was.
    version: watch::Sender<Version>,
    doubt: Arc<Notify>,
}

/// What the API server says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ApiSupport {
    /// In this version, which is the best of those that are served.
    Served(Version),
    NotServed,
    /// The control plane has no permission to ask.
    Forbidden,
}

impl PodGroups {
    /// Nothing is known before [`PodGroups::follow`] has asked.
    pub(crate) fn unknown() -> Self {
        Self {
            answer: watch::Sender::new(None),
            version: watch::Sender::new(Version::V1Beta1),
            doubt: Arc::default(),
        }
    }

    /// True if the API server serves them.
    pub(crate) fn are_served(&self) -> bool {
        matches!(*self.answer.borrow(), Some(ApiSupport::Served(_)))
    }

    /// The version to write: the one that was served last, since the answer may have been that the
    /// control plane has no permission to ask.
    pub(super) fn version(&self) -> Version {
        *self.version.borrow()
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
            match ask(&client).await {
                Ok(answer) => {
                    self.learn(answer);
                    sleep(DOUBTED).await;
                    let _ = tokio::time::timeout(BELIEVED - DOUBTED, self.doubt.notified()).await;
                }
                Err(_) => sleep(TRY_AGAIN).await,
            }
        }
    }

    fn learn(&self, answer: ApiSupport) {
        if let ApiSupport::Served(version) = answer {
            self.version.send_replace(version);
        }
        let before = self.answer.send_replace(Some(answer));
        if before == Some(answer) {
            return;
        }
        match answer {
            ApiSupport::Served(version) => {
                tracing::info!(api = version.api_version(), "kube-scheduler can start gangs");
            }
            ApiSupport::NotServed => tracing::info!("PodGroups are not served: gangs are started by gates"),
            ApiSupport::Forbidden => tracing::warn!(
                "gangs are started by gates: no right to `get` the nonResourceURLs /apis/scheduling.k8s.io/*, which the ClusterRole system:discovery gives"
            ),
        }
    }
}

/// Asks for each version, the best first, until one is served.
///
/// # Errors
/// The first request without an answer, which is logged.
async fn ask(client: &Client) -> Result<ApiSupport, kube::Error> {
    let mut support = ApiSupport::NotServed;
    for version in Version::ALL {
        let api = version.api_version();
        let read = read(version, client.list_api_group_resources(&api).await);
        match read.inspect_err(
            |error| tracing::warn!(%error, api, "cannot tell if the API is served, will ask again"),
        )? {
            ApiSupport::NotServed => {}
            ApiSupport::Forbidden => support = ApiSupport::Forbidden,
            served @ ApiSupport::Served(_) => return Ok(served),
        }
    }
    Ok(support)
}

/// Reads an answer. An error is an answer only if it says that the API is missing or forbidden.
fn read(version: Version, answer: Result<APIResourceList, kube::Error>) -> Result<ApiSupport, kube::Error> {
    match answer {
        Ok(served) => {
            let is_served = |kind: &&str| served.resources.iter().any(|resource| resource.name == **kind);
            Ok(if KINDS.iter().all(is_served) {
                ApiSupport::Served(version)
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
        let read = |answer| read(Version::V1Alpha3, answer).unwrap();
        assert_eq!(
            read(serving(&["workloads", "podgroups"])),
            ApiSupport::Served(Version::V1Alpha3)
        );
        assert_eq!(read(serving(&["workloads"])), ApiSupport::NotServed);
        assert_eq!(read(refused(404)), ApiSupport::NotServed);
    }

    #[test]
    fn a_missing_permission_counts_as_an_answer() {
        let read = |answer| read(Version::V1Beta1, answer);
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

    #[tokio::test]
    async fn the_best_version_that_is_served_is_taken() {
        for (codes, expected) in [
            (&[200][..], ApiSupport::Served(Version::V1Beta1)),
            (&[404, 200], ApiSupport::Served(Version::V1Alpha3)),
            (&[404, 404, 200], ApiSupport::Served(Version::V1Alpha2)),
            (&[404], ApiSupport::NotServed),
            (&[404, 403, 404], ApiSupport::Forbidden),
        ] {
            let (client, _) = api_server(codes);
            assert_eq!(ask(&client).await.unwrap(), expected, "{codes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_served_later_is_noticed() {
        let (client, asked) = api_server(&[500, 404, 404, 404, 200, 404]);
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
        assert_eq!(asked.load(Ordering::SeqCst), before + Version::ALL.len());
        task.abort();
    }
}
