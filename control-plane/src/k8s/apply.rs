//! Carries out plans.
//!
//! Promises: the steps of a plan run in order, and none runs after a step that failed. Every write
//! names the object that was decided on (by UID or resourceVersion), so the API server refuses a
//! decision that was made on stale caches. Events and metrics report only what was written. A
//! Service or claim that cannot be created is reported once per reason; Jobs that cannot be created
//! are reported at each try.

mod children;
mod event_dedup;
pub mod events;
mod job_changes;
mod new_job;
mod recorder;
mod refused_templates;
mod resources;

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Api, DeleteParams, PostParams, Preconditions, Request};
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource};
use lockstep_api::{JobSet, events as reasons};
use lockstep_core::jobset::plan::{self, Plan, Severity};
use lockstep_process::turns::Turns;
use thiserror::Error;

use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::{PackedJobSet, Stores};
use crate::telemetry::metrics::{Metrics, Outcome};
pub(crate) use event_dedup::{AGAIN, EventDedup};
pub(crate) use new_job::NewJob;
use refused_templates::RefusedTemplates;

#[cfg(test)]
mod tests;

/// How many child objects are written concurrently, over all JobSets.
const PARALLELISM: u32 = 50;
/// The same, for JobSets of one namespace. Others need not wait until a tenant's 20,000 Jobs are
/// created.
const OF_ONE: u32 = 16;

/// How often to check whether a foreign Service with the name of a JobSet's Service still exists.
/// No watch shows it.
const IN_THE_WAY: Duration = Duration::from_secs(60);

/// Why a plan was not fully applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// Another client wrote in between; the next decision uses the current state.
    #[error("{0} has changed in the meantime")]
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
        /// The API server's error.
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
        /// The API server's error.
        error: kube::Error,
    },
    /// The resources of a suspended JobSet have changed, and its Job does not take them.
    #[error(
        "resources of job {job:?} not changed: {}. An API server without the feature gate \
         MutablePodResourcesForSuspendedJobs refuses each change",
        error_message(error)
    )]
    PropagateResources {
        /// Name of the Job.
        job: String,
        /// The API server's error.
        error: kube::Error,
    },
    /// Another write failed.
    #[error("{what}: {}", error_message(error))]
    Write {
        /// What was to be written.
        what: String,
        /// The API server's error.
        error: kube::Error,
    },
}

impl From<&Result<(), ApplyError>> for Outcome {
    /// The outcome of applying a plan.
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

    /// The message of the event about this error, worded as upstream's events are.
    fn event_message(&self) -> String {
        match self {
            Self::CreateService { error, .. } | Self::CreateClaim { error, .. } => error_message(error),
            Self::Conflict(_)
            | Self::CreateJobs(_)
            | Self::PropagateResources { .. }
            | Self::Write { .. } => self.to_string(),
        }
    }
}

/// An error as text. For an answer of the API server it is only the message, which may list each
/// line of a large object, so it is cut to the length of an event note.
pub(crate) fn error_message(error: &kube::Error) -> String {
    recorder::short(match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    })
}

/// True if the API server answered with this HTTP status.
pub(crate) fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn failure(reason: &str, error: &ApplyError) -> plan::Event {
    plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message: error.event_message(),
    }
}

/// Applies plans by writing to the API server.
pub struct Applier {
    client: Client,
    stores: Stores,
    events: events::Queue,
    metrics: Arc<Metrics>,
    children: Turns,
    failures: EventDedup<JobSet>,
    refused: RefusedTemplates,
    /// Foreign Services that have the name of a JobSet's Service.
    in_the_way: EventDedup<JobSet>,
}

impl Applier {
    /// An applier, and the publisher that writes its events until the applier is dropped. Its
    /// writes show in `stores` at once.
    #[must_use]
    pub fn new(client: Client, stores: Stores, metrics: Arc<Metrics>) -> (Self, events::Publisher) {
        let (events, publisher) = events::queue(client.clone());
        let children = Turns::new(PARALLELISM, OF_ONE);
        (
            Self {
                client,
                stores,
                events,
                metrics,
                children,
                failures: EventDedup::default(),
                refused: RefusedTemplates::default(),
                in_the_way: EventDedup::default(),
            },
            publisher,
        )
    }

    /// Applies a plan for this JobSet. The Jobs to create are passed separately.
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
        // Jobs that cannot be created keep none from being suspended.
        let resumptions = self.patch_jobs(&key, plan.change_jobs).await?;
        if let Some(service) = plan.create_service {
            let created = self.create_service(jobset, &key, *service).await;
            self.report_failure(jobset, reasons::HEADLESS_SERVICE_CREATION_FAILED, &created);
            created?;
        }
        if !plan.create_claims.is_empty() {
            let created = self.create_claims(&key, plan.create_claims).await;
            self.report_failure(jobset, reasons::PVC_CREATION_FAILED, &created);
            created?;
        }
        if !new_jobs.is_empty() {
            let created = self.create_jobs(jobset, &key, new_jobs).await;
            if let Err(error) = &created {
                // At each try, as upstream does. Equal failures become one event that counts them.
                self.tell(jobset, failure(reasons::JOB_CREATION_FAILED, error));
            }
            created?;
        }
        let resumed = self.resume_jobs(&key, resumptions).await;
        if matches!(resumed, Err(ApplyError::PropagateResources { .. })) {
            self.report_failure(jobset, reasons::FAILED_RESOURCE_PROPAGATION, &resumed);
        }
        resumed?;
        if plan.delete_jobset {
            self.delete_jobset(jobset).await?;
        }
        let Some(status) = plan.status else { return Ok(()) };
        match self.write_status(jobset, *status).await {
            // No finalizer held the JobSet back, so it is already gone.
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

    fn report_failure(&self, jobset: &JobSet, reason: &str, result: &Result<(), ApplyError>) {
        let Err(error) = result else { return };
        for event in self.failures.to_send(jobset, vec![failure(reason, error)]) {
            self.tell(jobset, event);
        }
    }

    /// Publishes an event about a JobSet.
    pub(crate) fn tell(&self, jobset: &JobSet, event: plan::Event) {
        self.events.add(events::regarding(jobset), event);
    }

    /// The plan was applied completely, or the JobSet is gone. The next failure of any kind is
    /// reported again.
    pub(crate) fn succeeded(&self, key: &ObjectRef<JobSet>) {
        self.failures.forget(key);
    }

    /// How soon to recheck a JobSet that waits for something that no watch shows.
    pub(crate) fn recheck_after(&self, jobset: &JobSet) -> Option<Duration> {
        let waits = !jobset.is_finished() && self.in_the_way.is_ongoing(&ObjectRef::from_obj(jobset));
        waits.then_some(IN_THE_WAY)
    }

    /// The JobSet is gone.
    pub(crate) fn forget(&self, key: &ObjectRef<JobSet>) {
        self.succeeded(key);
        self.refused.forget(key);
        self.in_the_way.forget(key);
    }

    async fn delete_jobset(&self, jobset: &JobSet) -> Result<(), ApplyError> {
        let api: Api<Lean<JobSet>> = Api::namespaced(self.client.clone(), jobset.ns());
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
                tracing::info!("ttl expired, jobset deleted");
                Ok(())
            }
            Err(error) if is_status(&error, 404) => Ok(()),
            Err(error) => Err(ApplyError::write(format!("jobset {}", jobset.name()), error)),
        }
    }

    /// Writes the whole status, on top of the exact version that was decided on.
    async fn write_status(
        &self,
        jobset: &JobSet,
        status: lockstep_api::JobSetStatus,
    ) -> Result<(), ApplyError> {
        // The status endpoint reads only these fields.
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

    /// Replaces a status. The answer is as large as the JobSet; it is stored without being parsed.
    async fn replace_status(&self, update: &JobSet) -> kube::Result<PackedJobSet> {
        let body = serde_json::to_vec(update).map_err(kube::Error::SerdeError)?;
        let request = Request::new(JobSet::url_path(&(), Some(update.ns())))
            .replace_subresource("status", update.name(), &PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }
}
