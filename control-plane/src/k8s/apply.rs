//! Carries out plans.
//!
//! Promises: the steps of a plan are done in their order, and nothing after a step that failed;
//! every write names the object that was decided about (by UID or resourceVersion), so a decision
//! on stale caches is refused by the API server instead of doing harm; events and metrics tell only
//! of what was written, of a Service or claim that cannot be created once for each reason, and of
//! Jobs that cannot be created at each try.

mod children;
mod event_dedup;
pub mod events;
mod recorder;

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DeleteParams, PostParams, Preconditions, Request};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource};
use lockstep_api::{JobSet, events as reasons};
use lockstep_core::jobset::plan::{self, Plan, Severity};
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::k8s::watch::{PackedJobSet, Stores};
use crate::telemetry::metrics::{Metrics, Outcome};
pub(crate) use children::NewJob;
pub(crate) use event_dedup::{AGAIN, EventDedup};

#[cfg(test)]
mod tests;

/// Child objects that are written at the same time, over all JobSets.
const PARALLELISM: usize = 50;

/// How often somebody else's Service, of the name of a JobSet's, is asked for whether it is still
/// there: no watch shows it.
const IN_THE_WAY: Duration = Duration::from_secs(60);

/// Why a plan was not carried out to its end.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// Somebody else has written in between; the next decision will be about what is there now.
    #[error("{0} has changed meanwhile")]
    Conflict(String),
    /// Jobs could not be created.
    #[error("{0}")]
    CreateJobs(String),
    /// The headless Service could not be created.
    #[error(
        "headless service {name:?} creation failed with error: {}",
        error_message(error)
    )]
    CreateService {
        /// Name of the Service.
        name: String,
        /// What the API server said.
        error: kube::Error,
    },
    /// A persistent volume claim could not be created.
    #[error(
        "persistent volume claim {name:?} creation failed with error: {}",
        error_message(error)
    )]
    CreateClaim {
        /// Name of the claim.
        name: String,
        /// What the API server said.
        error: kube::Error,
    },
    /// Another write failed.
    #[error("{what}: {}", error_message(error))]
    Write {
        /// What was to be written.
        what: String,
        /// What the API server said.
        error: kube::Error,
    },
}

impl From<&Result<(), ApplyError>> for Outcome {
    /// The outcome of carrying out a plan.
    fn from(result: &Result<(), ApplyError>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(ApplyError::Conflict(_)) => Self::Conflict,
            Err(_) => Self::Failed,
        }
    }
}

impl ApplyError {
    fn write(what: impl Into<String>, error: kube::Error) -> Self {
        let what = what.into();
        if is_status(&error, 409) {
            Self::Conflict(what)
        } else {
            Self::Write { what, error }
        }
    }

    /// What an event tells of it, which is what upstream's events tell.
    fn told(&self) -> String {
        match self {
            Self::CreateService { error, .. } | Self::CreateClaim { error, .. } => error_message(error),
            Self::Conflict(_) | Self::CreateJobs(_) | Self::Write { .. } => self.to_string(),
        }
    }
}

/// An error in words for people: of an answer of the API server only its message, as long as an
/// event may be. It may name each line of a large object.
pub(crate) fn error_message(error: &kube::Error) -> String {
    recorder::short(match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    })
}

/// True if the API server has answered with this HTTP status.
pub(crate) fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn failure(reason: &str, error: &ApplyError) -> plan::Event {
    plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message: error.told(),
    }
}

/// Writes to the API server.
pub struct Applier {
    client: Client,
    stores: Stores,
    news: events::Queue,
    metrics: Arc<Metrics>,
    children: Semaphore,
    failures: EventDedup<JobSet>,
    /// Services that are there and are not theirs.
    in_the_way: EventDedup<JobSet>,
}

impl Applier {
    /// An applier, and what publishes its events for as long as it lives. What it writes shows in
    /// `stores` at once.
    #[must_use]
    pub fn new(client: Client, stores: Stores, metrics: Arc<Metrics>) -> (Self, events::Publisher) {
        let (news, publisher) = events::queue(client.clone());
        let children = Semaphore::new(PARALLELISM);
        (
            Self {
                client,
                stores,
                news,
                metrics,
                children,
                failures: EventDedup::default(),
                in_the_way: EventDedup::default(),
            },
            publisher,
        )
    }

    /// Carries out a plan that was made for this JobSet, with the Jobs that it creates apart.
    ///
    /// # Errors
    /// [`ApplyError`] for the first step that failed.
    pub(crate) async fn apply(
        &self,
        jobset: &JobSet,
        plan: Plan,
        new_jobs: Vec<NewJob>,
    ) -> Result<(), ApplyError> {
        let key = ObjectRef::from_obj(jobset);
        self.delete_jobs(&key, &plan.delete_jobs).await?;
        if let Some(service) = plan.create_service {
            let created = self.create_service(jobset, &key, *service).await;
            self.tell_of_failure(jobset, reasons::HEADLESS_SERVICE_CREATION_FAILED, &created);
            created?;
        }
        if !plan.create_claims.is_empty() {
            let created = self.create_claims(&key, plan.create_claims).await;
            self.tell_of_failure(jobset, reasons::PVC_CREATION_FAILED, &created);
            created?;
        }
        if !new_jobs.is_empty() {
            let created = self.create_jobs(jobset, &key, new_jobs).await;
            if let Err(error) = &created {
                // At each try, as upstream does: what is the same is one event that counts them.
                self.tell(jobset, failure(reasons::JOB_CREATION_FAILED, error));
            }
            created?;
        }
        self.change_jobs(&key, plan.change_jobs).await?;
        if plan.delete_jobset {
            self.delete_jobset(jobset).await?;
        }
        let Some(status) = plan.status else { return Ok(()) };
        match self.write_status(jobset, *status).await {
            // Nothing was left to wait for its end.
            Err(ApplyError::Write { error, .. }) if plan.delete_jobset && is_status(&error, 404) => {
                return Ok(());
            }
            written => written?,
        }
        if let Some(state) = &plan.finished {
            self.metrics.finished(jobset, state);
        }
        for event in plan.events {
            tracing::info!(reason = event.reason, note = event.message, "jobset changed");
            self.tell(jobset, event);
        }
        Ok(())
    }

    fn tell_of_failure(&self, jobset: &JobSet, reason: &str, result: &Result<(), ApplyError>) {
        let Err(error) = result else { return };
        for event in self.failures.news(jobset, vec![failure(reason, error)]) {
            self.tell(jobset, event);
        }
    }

    /// Publishes an event about a JobSet.
    pub(crate) fn tell(&self, jobset: &JobSet, event: plan::Event) {
        self.news.add(events::regarding(jobset), event);
    }

    /// All that was to be done has been done, or the JobSet is gone: a failure of whatever kind is
    /// news.
    pub(crate) fn succeeded(&self, key: &ObjectRef<JobSet>) {
        self.failures.forget(key);
    }

    /// How soon to look again at a JobSet that waits for something that no watch shows.
    pub(crate) fn looks_again(&self, jobset: &JobSet) -> Option<Duration> {
        let waits = !jobset.is_finished() && self.in_the_way.goes_on(&ObjectRef::from_obj(jobset));
        waits.then_some(IN_THE_WAY)
    }

    /// The JobSet is gone.
    pub(crate) fn forget(&self, key: &ObjectRef<JobSet>) {
        self.succeeded(key);
        self.in_the_way.forget(key);
    }

    async fn delete_jobset(&self, jobset: &JobSet) -> Result<(), ApplyError> {
        let api: Api<JobSet> = Api::namespaced(self.client.clone(), jobset.ns());
        let exactly = Preconditions {
            uid: jobset.metadata.uid.clone(),
            resource_version: None,
        };
        self.metrics.wrote("JobSet", "delete");
        match api
            .delete(jobset.name(), &DeleteParams::foreground().preconditions(exactly))
            .await
        {
            Ok(_) => {
                tracing::info!("time to live is over, jobset deleted");
                Ok(())
            }
            Err(error) if is_status(&error, 404) => Ok(()),
            Err(error) => Err(ApplyError::write(format!("jobset {}", jobset.name()), error)),
        }
    }

    /// Writes the whole status, on top of exactly the version that was decided on.
    async fn write_status(
        &self,
        jobset: &JobSet,
        status: lockstep_api::JobSetStatus,
    ) -> Result<(), ApplyError> {
        // The status endpoint looks at nothing but this.
        let mut update = JobSet {
            status: Some(status),
            ..JobSet::default()
        };
        update.metadata.name.clone_from(&jobset.metadata.name);
        update.metadata.namespace.clone_from(&jobset.metadata.namespace);
        update.metadata.uid.clone_from(&jobset.metadata.uid);
        update
            .metadata
            .resource_version
            .clone_from(&jobset.metadata.resource_version);
        self.metrics.wrote("JobSet", "status");
        let written = self.replace_status(&update).await;
        let written = written
            .map_err(|error| ApplyError::write(format!("status of jobset {}", jobset.name()), error))?;
        self.stores.wrote_packed(written);
        Ok(())
    }

    /// Replaces a status. The answer is as long as the JobSet, and is not read but kept.
    async fn replace_status(&self, update: &JobSet) -> kube::Result<PackedJobSet> {
        let body = serde_json::to_vec(update).map_err(kube::Error::SerdeError)?;
        let request = Request::new(JobSet::url_path(&(), Some(update.ns())))
            .replace_subresource("status", update.name(), &PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }
}
