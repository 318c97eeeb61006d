//! Creates pods in place of lost ones, for the Job controller to adopt (the pod level).
//!
//! Promises: a quorum read of the Job comes before any of its pods is created. A completion index
//! that has a pod by then, or needs none, gets none. Each name is created once. If a quota or a
//! webhook refuses a pod, it is tried again with growing pauses, until the Job controller replaces
//! it or the group's timeout ends. At most [`AT_ONCE`] pods are created at the same time over all
//! groups, and at most [`OF_ONE`] in one namespace.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{StreamExt, future, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, ObjectList, PostParams};
use kube::core::Request;
use kube::{Client, ResourceExt};
use lockstep_api::labels;
use lockstep_core::restart::{PodPlace, Replacement};
use lockstep_process::turns::Turns;
use thiserror::Error;

use crate::k8s::client::pages;
use crate::k8s::retry::delay;
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::own_writes::BELIEVED;
use source::Source;

/// Pods that are created at the same time, over all groups.
const AT_ONCE: u32 = 50;
/// The same, in one namespace: about one of the largest pods.
const OF_ONE: u32 = AT_ONCE / 2;
/// Jobs that are read at the same time, in total and in one namespace. A large Job counts until its
/// pods are created.
static READ: LazyLock<Turns> = LazyLock::new(|| Turns::new(8, 2));
/// Memory for Jobs from which pods are created, in KiB, in total and for one namespace. A Job takes
/// [`TIMES`] the size of its text.
static HELD: LazyLock<Turns> = LazyLock::new(|| Turns::new(64 << 10, 16 << 10));
const TIMES: u32 = 3;
/// Pods of a Job in one page of a list.
const PAGE: u32 = 500;
/// The number of failures in a row that causes an event. The pod of a follower is refused until its
/// leader is scheduled, which is worth no event.
const REPORTED: u32 = 6;

/// Why a pod was not created.
#[derive(Debug, Error)]
pub(super) enum ReplaceError {
    /// The API server did not answer, or refused the request.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The Job of several pods could not be read.
    #[error("{0}")]
    Job(Arc<kube::Error>),
}

/// How the replacement of a lost pod went, for events and metrics.
pub(super) enum Replaced {
    /// The pod was created.
    Created(Replacement),
    /// Its creation failed several times in a row.
    Failed(Replacement, ReplaceError),
}

/// The outcome of a request that did not fail.
enum Outcome {
    Created,
    /// Such a pod exists already, or none is needed.
    Needless,
    /// Its Job has to be read again first.
    Later,
}

type Results = Vec<(Replacement, Result<Outcome, ReplaceError>)>;
type Batch = Pin<Box<dyn Future<Output = Results> + Send>>;

/// The progress of a replacement.
struct Attempt {
    name: String,
    failures: u32,
    state: State,
}

enum State {
    UnderWay,
    /// It is done and the watch has until then to show it, or it failed and is tried again then.
    Rests {
        until: Instant,
    },
}

/// Permits to create pods, for all groups.
pub(super) fn permits() -> Arc<Turns> {
    Arc::new(Turns::new(AT_ONCE, OF_ONE))
}

/// Creates the pods of one group.
pub(super) struct PodReplacer {
    client: Client,
    permits: Arc<Turns>,
    attempts: BTreeMap<PodPlace, Attempt>,
    batches: FuturesUnordered<Batch>,
}

impl PodReplacer {
    /// A replacer that shares [`permits`] with those of the other groups.
    pub(super) fn new(client: Client, permits: Arc<Turns>) -> Self {
        Self {
            client,
            permits,
            attempts: BTreeMap::new(),
            batches: FuturesUnordered::new(),
        }
    }

    /// Sets which pods to create. Returns when to call this again if they are still wanted.
    pub(super) fn want(&mut self, namespace: &str, wanted: Vec<Replacement>) -> Option<Instant> {
        let now = Instant::now();
        let names: BTreeMap<&PodPlace, &str> = wanted
            .iter()
            .map(|wanted| (&wanted.place, wanted.name.as_str()))
            .collect();
        self.attempts.retain(|place, attempt| {
            matches!(attempt.state, State::UnderWay) || names.get(place) == Some(&attempt.name.as_str())
        });
        let mut by_job: BTreeMap<String, Vec<Replacement>> = BTreeMap::new();
        for wanted in wanted {
            let attempt = self.attempts.entry(wanted.place.clone()).or_insert(Attempt {
                name: wanted.name.clone(),
                failures: 0,
                state: State::Rests { until: now },
            });
            if matches!(attempt.state, State::Rests { until } if until <= now) {
                attempt.state = State::UnderWay;
                by_job.entry(wanted.place.job.clone()).or_default().push(wanted);
            }
        }
        for (job, wanted) in by_job {
            let (client, permits) = (self.client.clone(), Arc::clone(&self.permits));
            let namespace = namespace.to_owned();
            self.batches.push(Box::pin(async move {
                of_one_job(client, &permits, &namespace, &job, wanted).await
            }));
        }
        let rests = self.attempts.values().filter_map(|attempt| match attempt.state {
            State::Rests { until } => Some(until),
            State::UnderWay => None,
        });
        rests.min()
    }

    /// Resolves when some pods are created or have failed. Cancel-safe: requests stay in `self`.
    pub(super) async fn progress(&mut self) -> Vec<Replaced> {
        let Some(results) = self.batches.next().await else {
            return future::pending().await;
        };
        results
            .into_iter()
            .filter_map(|(wanted, result)| self.ended(wanted, result))
            .collect()
    }

    fn ended(&mut self, wanted: Replacement, result: Result<Outcome, ReplaceError>) -> Option<Replaced> {
        let attempt = self.attempts.get_mut(&wanted.place)?;
        match result {
            Ok(outcome) => {
                attempt.failures = 0;
                // The watch shows the pod soon. If not, the pod was deleted before the watch showed
                // it.
                let rest = match outcome {
                    Outcome::Created | Outcome::Needless => BELIEVED,
                    Outcome::Later => Duration::ZERO,
                };
                attempt.state = State::Rests {
                    until: Instant::now() + rest,
                };
                matches!(outcome, Outcome::Created).then_some(Replaced::Created(wanted))
            }
            Err(error) => {
                attempt.failures = attempt.failures.saturating_add(1);
                let after: Duration = delay(attempt.failures);
                attempt.state = State::Rests {
                    until: Instant::now() + after,
                };
                tracing::debug!(pod = wanted.name, %error, ?after, "lost pod not replaced, will retry");
                (attempt.failures == REPORTED).then_some(Replaced::Failed(wanted, error))
            }
        }
    }
}

/// Reads one Job, then creates its pods. A parsed template may take 50 MB, so each pod of a large
/// Job takes many permits.
async fn of_one_job(
    client: Client,
    permits: &Turns,
    namespace: &str,
    job: &str,
    wanted: Vec<Replacement>,
) -> Results {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let turn = READ.take(namespace, 1).await;
    let seen = tokio::try_join!(Source::get(&client, &jobs, job), present(&pods, job));
    let (job, present) = match seen {
        Ok(seen) => seen,
        Err(error) => {
            let error = Arc::new(error);
            let failed = |wanted| (wanted, Err(ReplaceError::Job(Arc::clone(&error))));
            return wanted.into_iter().map(failed).collect();
        }
    };
    let Some(job) = job else {
        return wanted
            .into_iter()
            .map(|wanted| (wanted, Ok(Outcome::Needless)))
            .collect();
    };
    let text = u32::try_from(job.text.get().len() / 1024).unwrap_or(u32::MAX);
    let _held = HELD.take(namespace, text.saturating_mul(TIMES)).await;
    // A Job is nearly always small, so the next ones may be read from now on.
    let turn = (job.permits > 1).then_some(turn);
    let (at_once, of_one_look) = job.at_once();
    let creations = wanted.into_iter().enumerate().map(|(number, wanted)| {
        let (pods, job, present) = (&pods, &job, &present);
        async move {
            if number >= of_one_look {
                return (wanted, Ok(Outcome::Later));
            }
            let _permit = permits.take(namespace, job.permits).await;
            let result = match job.pod(&wanted, present) {
                Some(pod) => create(pods, &pod).await,
                None => Ok(Outcome::Needless),
            };
            (wanted, result)
        }
    });
    let results = stream::iter(creations).buffer_unordered(at_once).collect().await;
    drop(turn);
    results
}

/// The UIDs of the Job's current pods, by completion index. Fields that are not needed, and that
/// others can write, are not parsed.
async fn present(pods: &Api<Pod>, job: &str) -> Result<BTreeMap<u32, BTreeSet<String>>, kube::Error> {
    let of_job = ListParams::default().labels(&format!("{}={job}", labels::BATCH_JOB_NAME));
    let mut page = of_job.limit(PAGE);
    let mut present: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    loop {
        let request = Request::new(pods.resource_url()).list_metadata(&page);
        let request = request.map_err(kube::Error::BuildRequest)?;
        let client = pods.clone().into_client();
        let listed: ObjectList<Lean<Pod>> = client.request(request).await?;
        for pod in &listed.items {
            let index = pod
                .labels()
                .get(labels::BATCH_JOB_COMPLETION_INDEX)
                .and_then(|index| index.parse().ok());
            if let (Some(index), Some(uid)) = (index, pod.uid()) {
                present.entry(index).or_default().insert(uid);
            }
        }
        match pages::after(page, &listed.metadata) {
            Some(next) => page = next,
            None => return Ok(present),
        }
    }
}

async fn create(pods: &Api<Pod>, pod: &Pod) -> Result<Outcome, ReplaceError> {
    match pods.create(&PostParams::default(), pod).await {
        Ok(_) => Ok(Outcome::Created),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Outcome::Needless),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use http::Response;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn what_field_managers_have_written_hides_no_pod() {
        let managed = json!([{"manager": "evil", "operation": "Update", "time": "9999-12-31T23:59:59Z"}]);
        let labels = json!({labels::BATCH_JOB_COMPLETION_INDEX: "3"});
        let listed = json!({
            "apiVersion": "meta.k8s.io/v1",
            "kind": "PartialObjectMetadataList",
            "metadata": {},
            "items": [{"metadata": {"name": "p", "uid": "u", "labels": labels, "managedFields": managed}}],
        });
        let server = tower::service_fn(move |_: http::Request<Body>| {
            ready(Ok::<_, Infallible>(Response::new(Body::from(
                listed.to_string().into_bytes(),
            ))))
        });
        let pods = Api::namespaced(Client::new(server, "ns"), "ns");
        let expected = BTreeMap::from([(3, BTreeSet::from(["u".to_owned()]))]);
        assert_eq!(present(&pods, "js-w-0").await.unwrap(), expected);
    }
}
