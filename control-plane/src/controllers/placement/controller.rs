//! Evicts followers that are not in the domain of their leader pod. Only the leading replica does
//! this.
//!
//! Promises: a Job is checked by one task at a time. Failures are retried with growing pauses while
//! the Job has pods. A shutdown lets work in progress finish. No pod is evicted because of an
//! answer that may be outdated.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lockstep_core::jobset::placement::{Member, misplaced, question};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::domains::DomainError;
use super::{Placement, evict};
use crate::k8s::retry::delay;
use crate::k8s::watch::members::{JobRef, Members};
use crate::k8s::watch::notify::Notified;
use crate::telemetry::metrics::Metrics;

/// Jobs that are checked at the same time.
const AT_ONCE: usize = 16;

/// Why the misplaced pods of a Job could not be evicted.
#[derive(Debug, Error)]
enum EnforceError {
    #[error(transparent)]
    Domain(#[from] Arc<DomainError>),
    #[error("pods not evicted: {0}")]
    Evict(#[from] kube::Error),
}

/// The pod controller.
pub struct Controller {
    placement: Placement,
    metrics: Arc<Metrics>,
}

/// Failures of one Job.
#[derive(Default)]
struct Failures {
    in_a_row: u32,
    /// Set while a retry is scheduled.
    waiting: bool,
}

impl Controller {
    /// A controller that shares the caches of `placement`.
    #[must_use]
    pub fn new(placement: Placement, metrics: Arc<Metrics>) -> Self {
        Self { placement, metrics }
    }

    /// Checks the Jobs that `changes` names until `shutdown` is cancelled, then finishes work in
    /// progress.
    pub async fn run(self, mut changes: Notified<JobRef>, shutdown: CancellationToken) {
        let (mut checks, mut waits) = (FuturesUnordered::new(), FuturesUnordered::new());
        let (mut busy, mut again) = (HashSet::new(), HashSet::new());
        let mut failures: HashMap<JobRef, Failures> = HashMap::new();
        loop {
            let job = tokio::select! {
                () = shutdown.cancelled() => break,
                Some((job, result)) = checks.next() => {
                    busy.remove(&job);
                    match result {
                        Ok(()) => drop(failures.remove(&job)),
                        Err(error) => {
                            let failures = failures.entry(job.clone()).or_default();
                            failures.in_a_row = failures.in_a_row.saturating_add(1);
                            let delay = delay(failures.in_a_row);
                            if !std::mem::replace(&mut failures.waiting, true) {
                                waits.push(after(delay, job.clone()));
                            }
                            log(&job, &error, delay);
                        }
                    }
                    if !again.remove(&job) {
                        continue;
                    }
                    job
                }
                Some(job) = waits.next() => {
                    if let Some(failures) = failures.get_mut(&job) {
                        failures.waiting = false;
                    }
                    job
                }
                job = changes.next(), if checks.len() < AT_ONCE => match job {
                    Some(job) => job,
                    None => break,
                },
            };
            if busy.insert(job.clone()) {
                checks.push(self.check(job));
            } else {
                again.insert(job);
            }
        }
        while checks.next().await.is_some() {}
    }

    async fn check(&self, job: JobRef) -> (JobRef, Result<(), EnforceError>) {
        let result = self.enforce(&job).await;
        (job, result)
    }

    async fn enforce(&self, job: &JobRef) -> Result<(), EnforceError> {
        let asked = self.placement.members.read(job, |members| {
            let asked = question(members.values())?;
            Some(OwnedQuestion {
                node: asked.node.to_owned(),
                topology: asked.topology.to_owned(),
            })
        });
        let Some(asked) = asked else { return Ok(()) };
        let domain = self.placement.domains.of(&asked.node, &asked.topology).await?;
        if self.misplaced(job, &asked, &domain).is_none() {
            return Ok(());
        }
        let domain = self.placement.domains.now(&asked.node, &asked.topology).await?;
        let Some(pods) = self.misplaced(job, &asked, &domain) else {
            return Ok(());
        };
        let (done, result) = evict::evict(&self.placement.client, &self.metrics, job.namespace(), pods).await;
        for pod in done {
            self.placement.members.deleted(job, &pod.name, &pod.uid);
        }
        Ok(result?)
    }

    /// The pods to evict, if there are any.
    fn misplaced(&self, job: &JobRef, asked: &OwnedQuestion, domain: &str) -> Option<Vec<Member>> {
        let read = |members: &Members| {
            let pods = misplaced(members.values(), asked.as_question(), domain);
            let pods: Vec<Member> = pods.into_iter().cloned().collect();
            (!pods.is_empty()).then_some(pods)
        };
        self.placement.members.read(job, read)
    }
}

/// An owned [`lockstep_core::jobset::placement::Question`].
struct OwnedQuestion {
    node: String,
    topology: String,
}

impl OwnedQuestion {
    fn as_question(&self) -> lockstep_core::jobset::placement::Question<'_> {
        lockstep_core::jobset::placement::Question {
            node: &self.node,
            topology: &self.topology,
        }
    }
}

async fn after(delay: Duration, job: JobRef) -> JobRef {
    tokio::time::sleep(delay).await;
    job
}

fn log(job: &JobRef, error: &EnforceError, delay: Duration) {
    match error {
        // Nodes come and go. No pod is evicted while the domain of its leader is unknown.
        EnforceError::Domain(error) => {
            tracing::debug!(namespace = job.namespace(), %job, %error, ?delay, "domain of the leader unknown, will check again");
        }
        EnforceError::Evict(error) => {
            tracing::warn!(namespace = job.namespace(), %job, %error, ?delay, "pods not evicted, will retry")
        }
    }
}
