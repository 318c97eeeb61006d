//! Creates Services, volume claims and Jobs, and deletes Jobs.

use futures::StreamExt;
use futures::stream;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::Resource;
use kube::api::{Api, DeleteParams, PostParams, Preconditions, Request};
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::jobset::network;
use lockstep_core::jobset::owner::is_controlled_by;
use lockstep_core::jobset::plan::JobRef;

use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::lean::fetch::{self, SelectorSeen};

use super::new_job::NewJob;
use super::refused_templates::{OfTemplate, Order, TemplateRefusals};
use super::{Applier, ApplyError, OF_ONE, error_message, is_status};

/// How many failures of Jobs one event lists: there may be 500, each as long as an event may be.
const LISTED_FAILURES: usize = 3;

pub(super) type Key = ObjectRef<JobSet>;

pub(super) fn namespace(key: &Key) -> &str {
    key.namespace.as_deref().unwrap_or_default()
}

/// The first of these failures.
pub(super) fn first_of(errors: Vec<ApplyError>) -> Result<(), ApplyError> {
    errors.into_iter().next().map_or(Ok(()), Err)
}

impl Applier {
    /// Runs `write` for all items concurrently. All are tried, even if some fail.
    pub(super) async fn each<T, F>(&self, key: &Key, items: Vec<T>, write: impl Fn(T) -> F) -> Vec<ApplyError>
    where
        F: Future<Output = Result<(), ApplyError>>,
    {
        let write = &write;
        let writes = stream::iter(items).map(|item| async move {
            let _turn = self.children.take(namespace(key), 1).await;
            write(item).await.err()
        });
        writes
            .buffer_unordered(OF_ONE as usize)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    /// Runs `write` for all Jobs concurrently, but for those whose [template is
    /// refused](super::refused_templates). Also returns how many were left out.
    pub(super) async fn each_unless_refused<T, F>(
        &self,
        key: &Key,
        jobs: Vec<T>,
        refusals: &TemplateRefusals,
        write: impl Fn(T) -> F,
    ) -> (Vec<ApplyError>, usize)
    where
        T: OfTemplate,
        F: Future<Output = Result<(), ApplyError>>,
    {
        let write = &write;
        let send = async |(job, is_probe): (T, bool)| {
            let replicated_job = job.replicated_job().to_owned();
            if refusals.skips(&replicated_job, is_probe) {
                return Ok(());
            }
            let name = job.job().to_owned();
            let written = write(job).await;
            if is_probe {
                match &written {
                    Ok(()) => refusals.accepted(&replicated_job),
                    Err(_) => refusals.still_refused(&name, &replicated_job),
                }
            }
            written
        };
        let Order { first, then } = refusals.order(jobs);
        let mut errors = self.each(key, first, send).await;
        errors.extend(self.each(key, then, send).await);
        (errors, self.refused.end(key, refusals))
    }

    pub(super) async fn delete_jobs(&self, key: &Key, jobs: &[JobRef]) -> Result<(), ApplyError> {
        let api: Api<Lean<Job>> = Api::namespaced(self.client.clone(), namespace(key));
        let delete = |job| self.delete_job(&api, key, job);
        first_of(self.each(key, jobs.iter().collect(), delete).await)
    }

    async fn delete_job(&self, api: &Api<Lean<Job>>, key: &Key, job: &JobRef) -> Result<(), ApplyError> {
        let exactly = Preconditions {
            uid: Some(job.uid.clone()),
            resource_version: None,
        };
        self.metrics.wrote("Job", "delete");
        match api
            .delete(&job.name, &DeleteParams::foreground().preconditions(exactly))
            .await
        {
            Ok(deleted) => {
                tracing::info!(job = job.name, "job deleted");
                if let Some(job) = deleted.left() {
                    self.stores.wrote_job(key, job);
                }
                Ok(())
            }
            // Gone, or recreated: the Job to delete is deleted.
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
            Err(error) => Err(ApplyError::write(format!("deleting job {}", job.name), error)),
        }
    }

    /// Creates the Service. An existing one is accepted, no matter which client created it; an
    /// event reports one that does not select this JobSet's pods.
    pub(super) async fn create_service(
        &self,
        jobset: &JobSet,
        key: &Key,
        service: Service,
    ) -> Result<(), ApplyError> {
        let api: Api<Lean<Service>> = Api::namespaced(self.client.clone(), namespace(key));
        self.metrics.wrote("Service", "create");
        let name = service.metadata.name.clone().unwrap_or_default();
        let service = Lean(service);
        let wrong = match api.create(&PostParams::default(), &service).await {
            Ok(created) => {
                self.stores.wrote_service(key, created);
                None
            }
            Err(error) if is_status(&error, 409) || is_status(&error, 403) => {
                let services: Api<Service> = Api::namespaced(self.client.clone(), namespace(key));
                let there = fetch::get::<SelectorSeen, _>(&services, &name).await;
                let there = there.ok().flatten();
                if there.is_none() && !is_status(&error, 409) {
                    return Err(ApplyError::CreateService { name, error });
                }
                self.stores.wrote_service(key, service);
                there.and_then(|there| network::in_the_way_event(jobset, &there))
            }
            Err(error) => return Err(ApplyError::CreateService { name, error }),
        };
        for event in self.in_the_way.to_send(jobset, wrong.into_iter().collect()) {
            tracing::info!(
                reason = event.reason,
                note = event.message,
                "jobset has a problem"
            );
            self.tell(jobset, event);
        }
        Ok(())
    }

    /// Creates claims. An existing one is accepted, no matter which client created it.
    pub(super) async fn create_claims(
        &self,
        key: &Key,
        claims: Vec<PersistentVolumeClaim>,
    ) -> Result<(), ApplyError> {
        let api: Api<Lean<PersistentVolumeClaim>> = Api::namespaced(self.client.clone(), namespace(key));
        let create = |claim| self.create_claim(&api, key, claim);
        first_of(self.each(key, claims, create).await)
    }

    async fn create_claim(
        &self,
        api: &Api<Lean<PersistentVolumeClaim>>,
        key: &Key,
        claim: PersistentVolumeClaim,
    ) -> Result<(), ApplyError> {
        self.metrics.wrote("PersistentVolumeClaim", "create");
        let name = claim.metadata.name.clone().unwrap_or_default();
        let claim = Lean(claim);
        match api.create(&PostParams::default(), &claim).await {
            Ok(created) => self.stores.wrote_claim(key, created),
            Err(error) if is_there(api, &name, &error).await => self.stores.wrote_claim(key, claim),
            Err(error) => return Err(ApplyError::CreateClaim { name, error }),
        }
        Ok(())
    }

    pub(super) async fn create_jobs(
        &self,
        jobset: &JobSet,
        key: &Key,
        jobs: Vec<NewJob>,
    ) -> Result<(), ApplyError> {
        let api: Api<Lean<Job>> = Api::namespaced(self.client.clone(), namespace(key));
        let refusals = &self.refused.begin(key);
        let create = |job| self.create_job(&api, jobset, key, refusals, job);
        let (errors, skipped) = self.each_unless_refused(key, jobs, refusals, create).await;
        if errors.is_empty() {
            return Ok(());
        }
        let mut errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        // Equal failures produce equal text, in whatever order they came.
        errors.sort();
        let others = errors.len().saturating_sub(LISTED_FAILURES);
        errors.truncate(LISTED_FAILURES);
        if skipped > 0 {
            // How many were sent beside these depends on chance.
            errors.push("and other jobs were not tried".to_owned());
        } else if others > 0 {
            errors.push(format!("and {others} more"));
        }
        Err(ApplyError::CreateJobs(errors.join("\n")))
    }

    async fn create_job(
        &self,
        api: &Api<Lean<Job>>,
        jobset: &JobSet,
        key: &Key,
        refusals: &TemplateRefusals,
        job: NewJob,
    ) -> Result<(), ApplyError> {
        let NewJob {
            name,
            replicated_job,
            body,
        } = job;
        let failed = |error: &kube::Error| {
            Err(ApplyError::CreateJobs(format!(
                "job \"{name}\" creation failed with error: {}",
                error_message(error)
            )))
        };
        self.metrics.wrote("Job", "create");
        match self.send_job(key, body).await {
            Ok(created) => {
                tracing::info!(job = name, "job created");
                self.stores.wrote_job(key, created);
                Ok(())
            }
            // The Job may be ours while the caches lag behind.
            Err(error) if is_status(&error, 409) => match api.get_opt(&name).await {
                Ok(Some(existing)) if is_controlled_by(existing.meta(), jobset.uid_str()) => {
                    self.stores.wrote_job(key, existing);
                    Ok(())
                }
                Ok(_) => failed(&error),
                Err(error) => failed(&error),
            },
            Err(error) => {
                refusals.failed(&name, &replicated_job, &error);
                failed(&error)
            }
        }
    }

    async fn send_job(&self, key: &Key, body: serde_json::Result<Vec<u8>>) -> kube::Result<Lean<Job>> {
        let request = Request::new(Job::url_path(&(), key.namespace.as_deref()))
            .create(&PostParams::default(), body.map_err(kube::Error::SerdeError)?)
            .map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }
}

/// True if the object that could not be created exists already. With an exhausted quota the API
/// server reports the quota before it looks at the name.
async fn is_there<K>(api: &Api<K>, name: &str, error: &kube::Error) -> bool
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    is_status(error, 409) || is_status(error, 403) && matches!(api.get_opt(name).await, Ok(Some(_)))
}
