//! The loop that brings every RayCronJob closer to what it asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{applier, watcher};
use kube::{Client, Resource};
use lockstep_api::ray::{RayCronJob, RayJob, keys};
use lockstep_core::observed::is_controlled_by;
use lockstep_core::plan::{self, JobRef, Severity};
use lockstep_core::ray::cron::{CronPlan, ObservedCron, plan};
use tokio_util::sync::CancellationToken;

use super::apply::{self, RayError};
use super::kuberay::KubeRay;
use crate::apply::events::Queue;
use crate::retry::{Failures, delay};
use crate::watch::notify::Notified;

/// RayCronJobs that are worked on at the same time.
const CONCURRENCY: u16 = 16;
/// How soon to look again at one that is left to another controller, which may go.
const LEFT_ALONE: Duration = Duration::from_secs(60);

type Key = ObjectRef<RayCronJob>;

/// Looks at RayCronJobs and acts.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) crons: Store<RayCronJob>,
    pub(super) jobs: Store<RayJob>,
    pub(super) news: Queue,
    pub(super) kuberay: KubeRay,
    pub(super) failures: Failures<Key>,
    /// The notices that were published, by RayCronJob.
    pub(super) told: Mutex<HashMap<Key, plan::Event>>,
}

impl Reconciler {
    /// Reconciles the RayCronJobs that `changes` names until `shutdown`; then finishes what is under way.
    pub(super) async fn run(self, changes: Notified<Key>, shutdown: CancellationToken) {
        // What runs is not known before.
        let _ = shutdown.run_until_cancelled(self.jobs.wait_until_ready()).await;
        let store = self.crons.clone();
        let this = Arc::new(self);
        let queue = changes
            .map(Ok::<_, watcher::Error>)
            .take_until(shutdown.cancelled_owned());
        let results = applier(
            |cron: Arc<RayCronJob>, this: Arc<Self>| async move { this.reconcile(&cron).await }.boxed(),
            |cron, error, this| this.failed(&cron, error),
            Arc::clone(&this),
            store,
            queue,
            controller::Config::default().concurrency(CONCURRENCY),
        );
        let mut results = std::pin::pin!(results);
        while let Some(result) = results.next().await {
            if let Err(controller::Error::ObjectNotFound(gone)) = result {
                let key = Key::new(&gone.name).within(gone.namespace.as_deref().unwrap_or_default());
                this.failures.forget(&key);
                this.told
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&key);
            }
        }
    }

    #[tracing::instrument(name = "reconcile", skip_all, fields(namespace = cron.ns(), raycronjob = cron.name()))]
    async fn reconcile(&self, cron: &Arc<RayCronJob>) -> Result<Action, RayError> {
        let mut observed = self.observe(cron).await?;
        if plan(&observed).create.is_some() {
            // The watches may be behind: what was started before, and what runs, is known to the API server alone.
            let Some(read) = self.read(observed).await? else {
                return Ok(Action::await_change());
            };
            observed = read;
        }
        let plan = plan(&observed);
        let cron = &*observed.cron;
        let requeue_after = plan
            .requeue_after
            .and_then(|after| Duration::try_from(after).ok());
        let otherwise = plan.notice.is_some().then_some(LEFT_ALONE);
        self.apply(cron, plan).await?;
        self.failures.forget(&ObjectRef::from_obj(cron));
        let requeue_after = requeue_after.or(otherwise);
        Ok(requeue_after.map_or_else(Action::await_change, Action::requeue))
    }

    /// What the watches show.
    async fn observe(&self, cron: &Arc<RayCronJob>) -> Result<ObservedCron, RayError> {
        let is_own = |job: &&Arc<RayJob>| is_controlled_by(&job.metadata, cron.uid_str());
        // Asked only while it matters.
        let open = !cron.is_claimed() && cron.managed_by_another().is_none();
        let kuberay = match open {
            true => self.kuberay.runs().await.map_err(RayError::of("leases"))?,
            false => false,
        };
        Ok(ObservedCron {
            cron: Arc::clone(cron),
            jobs: self.jobs.state().iter().filter(is_own).cloned().collect(),
            kuberay,
            now: jiff::Timestamp::now(),
        })
    }

    /// The same, as the API server has it. `None`: it is gone.
    async fn read(&self, observed: ObservedCron) -> Result<Option<ObservedCron>, RayError> {
        let (name, namespace) = (observed.cron.name(), observed.cron.ns());
        let crons: Api<RayCronJob> = Api::namespaced(self.client.clone(), namespace);
        let of_crons = RayError::of(format!("RayCronJob {name}"));
        let Some(cron) = crons.get_opt(name).await.map_err(of_crons)? else {
            return Ok(None);
        };
        let jobs: Api<DeserializeGuard<RayJob>> = Api::namespaced(self.client.clone(), namespace);
        let named = ListParams::default().labels(&format!("{}={name}", keys::CRON_JOB_NAME));
        let of_jobs = RayError::of(format!("RayJobs of RayCronJob {name}"));
        let jobs = jobs.list(&named).await.map_err(of_jobs)?;
        let readable = jobs.items.into_iter().filter_map(|job| job.0.ok());
        let own = readable.filter(|job| is_controlled_by(&job.metadata, cron.uid_str()));
        Ok(Some(ObservedCron {
            jobs: own.map(Arc::new).collect(),
            cron: Arc::new(cron),
            ..observed
        }))
    }

    async fn apply(&self, cron: &RayCronJob, plan: CronPlan) -> Result<(), RayError> {
        self.delete(cron, &plan.replace).await?;
        if let Some(job) = &plan.create {
            let created = apply::create(&self.client, &**job).await;
            if let Err(error) = &created {
                let message = match error {
                    RayError::Conflict(_) => format!("there is a RayJob {} of somebody else", job.name()),
                    error => format!("Error creating job: {error}"),
                };
                self.tell_once(cron, warning("FailedCreate", message));
            }
            created?;
        }
        if let Some(status) = plan.status {
            let update = RayCronJob {
                status: Some(*status),
                ..cron.clone()
            };
            apply::write_status(&self.client, &update).await?;
        }
        self.delete(cron, &plan.forget).await?;
        for event in plan.events {
            self.tell(cron, event);
        }
        if let Some(notice) = plan.notice {
            self.tell_once(cron, notice);
        }
        Ok(())
    }

    async fn delete(&self, cron: &RayCronJob, jobs: &[JobRef]) -> Result<(), RayError> {
        for job in jobs {
            apply::delete::<RayJob>(&self.client, cron.ns(), job).await?;
        }
        Ok(())
    }

    fn tell(&self, cron: &RayCronJob, event: plan::Event) {
        tracing::info!(reason = event.reason, note = event.message, "raycronjob changed");
        self.news.add(cron.object_ref(&()), event);
    }

    /// Tells it unless it was the last that was told so.
    fn tell_once(&self, cron: &RayCronJob, notice: plan::Event) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let before = told.insert(ObjectRef::from_obj(cron), notice.clone());
        drop(told);
        if before.as_ref() != Some(&notice) {
            self.tell(cron, notice);
        }
    }

    fn failed(&self, cron: &RayCronJob, error: &RayError) -> Action {
        let delay = delay(self.failures.add(ObjectRef::from_obj(cron)));
        let (namespace, name) = (cron.ns(), cron.name());
        if matches!(error, RayError::Conflict(_)) {
            tracing::debug!(namespace, raycronjob = name, %error, ?delay, "will decide anew");
        } else {
            tracing::warn!(namespace, raycronjob = name, %error, ?delay, "reconcile failed, will retry");
        }
        Action::requeue(delay)
    }
}

fn warning(reason: &str, message: String) -> plan::Event {
    plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message,
    }
}
