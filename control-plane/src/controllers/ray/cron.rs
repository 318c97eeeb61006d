//! The loop that brings every RayCronJob closer to its spec.

use std::sync::Arc;

use kube::api::{Api, ListParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use lockstep_api::ray::{RayCronJob, RayJob, keys};
use lockstep_core::jobset::owner::is_controlled_by;
use lockstep_core::jobset::plan::{self, JobRef, Severity};
use lockstep_core::ray::cron::{CronPlan, ObservedCron, plan};
use tokio_util::sync::CancellationToken;

use super::CONCURRENCY;
use super::apply::{self, RayError, Text};
use super::kuberay::KubeRay;
use super::packed::{LargeTurns, Packed};
use super::retry_state::RetryState;
use super::turns::{NEXT_TURN, Turns};
use super::watch::PAGE;
use crate::k8s::client::pages;
use crate::k8s::controller_loop::{self, Reconcile};
use crate::k8s::watch::notify::Notified;

/// Reconciles RayCronJobs.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) crons: Store<Packed<RayCronJob>>,
    pub(super) jobs: Store<Packed<RayJob>>,
    pub(super) kuberay: Arc<KubeRay>,
    pub(super) large: LargeTurns,
    /// Limits how many are reconciled at once.
    pub(super) at_work: Turns,
    pub(super) retry_state: RetryState<RayCronJob>,
}

impl Reconciler {
    /// Reconciles the RayCronJobs that `changes` names until `shutdown`. Then it finishes work in
    /// progress.
    pub(super) async fn run(
        self,
        changes: Notified<ObjectRef<Packed<RayCronJob>>>,
        shutdown: CancellationToken,
    ) {
        // Running jobs are not known before.
        let _ = shutdown.run_until_cancelled(self.jobs.wait_until_ready()).await;
        let crons = self.crons.clone();
        controller_loop::run(Arc::new(self), crons, changes, CONCURRENCY, shutdown).await;
    }

    /// An observation from the caches, without the spec.
    async fn observe(&self, packed: &Packed<RayCronJob>) -> Result<ObservedCron, RayError> {
        let cron = packed.without_spec();
        let jobs = self.jobs.state();
        let own = jobs
            .iter()
            .filter(|job| job.meta().namespace == cron.metadata.namespace)
            .filter(|job| is_controlled_by(job.meta(), cron.uid_str()));
        // KubeRay is looked up only while that matters.
        let open = !cron.is_claimed() && cron.managed_by_another().is_none();
        Ok(ObservedCron {
            jobs: own.map(|job| Arc::new(job.without_spec())).collect(),
            kuberay: open
                && self
                    .kuberay
                    .runs(cron.ns())
                    .await
                    .map_err(RayError::of("leases"))?,
            now: jiff::Timestamp::now(),
            cron: Arc::new(cron),
        })
    }

    /// Reads the RayCronJob and its jobs from the API server. Returns `None` if it is gone, or can
    /// no longer be read.
    async fn read(&self, observed: &mut ObservedCron) -> Result<Option<Packed<RayCronJob>>, RayError> {
        let (name, namespace) = (observed.cron.name(), observed.cron.ns());
        let crons: Api<Packed<RayCronJob>> = Api::namespaced(self.client.clone(), namespace);
        let of_crons = RayError::of(format!("RayCronJob {name}"));
        let found = crons.get_opt(name).await.map_err(of_crons)?;
        let Some(cron) = found.filter(|cron| cron.unfit().is_none()) else {
            return Ok(None);
        };
        observed.jobs = self.jobs_of(namespace, name, observed.cron.uid_str()).await?;
        Ok(Some(cron))
    }

    /// The readable jobs of a RayCronJob without their specs, read from the API server.
    async fn jobs_of(&self, namespace: &str, name: &str, uid: &str) -> Result<Vec<Arc<RayJob>>, RayError> {
        let jobs: Api<Packed<RayJob>> = Api::namespaced(self.client.clone(), namespace);
        let labels = format!("{}={name}", keys::CRON_JOB_NAME);
        let mut page = ListParams::default().labels(&labels).limit(PAGE);
        let mut found = Vec::new();
        loop {
            let of_jobs = RayError::of(format!("RayJobs of RayCronJob {name}"));
            let listed = jobs.list(&page).await.map_err(of_jobs)?;
            let readable = listed.items.iter().filter(|job| job.unfit().is_none());
            let own = readable.filter(|job| is_controlled_by(job.meta(), uid));
            found.extend(own.map(|job| Arc::new(job.without_spec())));
            match pages::after(page, &listed.metadata) {
                Some(next) => page = next,
                None => return Ok(found),
            }
        }
    }

    async fn apply(
        &self,
        cron: &RayCronJob,
        plan: CronPlan,
        job: Option<(String, Text)>,
    ) -> Result<(), RayError> {
        self.delete(cron, &plan.replace).await?;
        if let Some((name, job)) = job {
            let created = apply::create(&self.client, job).await;
            if let Err(error) = &created {
                let message = match error {
                    RayError::Conflict(_) => format!("RayJob {name} exists and belongs to another owner"),
                    error => format!("Error creating job: {error}"),
                };
                self.retry_state
                    .publish_refusal(cron, warning("FailedCreate", message));
            }
            created?;
        }
        if let Some(status) = plan.status {
            apply::write_status::<RayCronJob>(&self.client, &cron.metadata, &status).await?;
        }
        self.delete(cron, &plan.forget).await?;
        for event in plan.events {
            self.retry_state.publish(cron, event);
        }
        if let Some(notice) = plan.notice {
            self.retry_state.publish_once(cron, notice);
        }
        Ok(())
    }

    async fn delete(&self, cron: &RayCronJob, jobs: &[JobRef]) -> Result<(), RayError> {
        for job in jobs {
            apply::delete::<RayJob>(&self.client, cron.ns(), job).await?;
        }
        Ok(())
    }
}

/// Decides on the whole RayCronJob. Its spec is kept only in the text of the RayJob to create,
/// which is returned with its name.
async fn decide(
    packed: &Packed<RayCronJob>,
    observed: &mut ObservedCron,
) -> (CronPlan, Option<(String, Text)>) {
    let _alone = packed.alone().await;
    observed.cron = Arc::new(packed.read());
    // The turn may have come late.
    observed.now = jiff::Timestamp::now();
    let mut plan = plan(observed);
    let job = plan.create.take();
    let job = job.map(|job| (job.name().to_owned(), Text::of(&*job)));
    observed.cron = Arc::new(packed.without_spec());
    (plan, job)
}

impl Reconcile for Reconciler {
    type Object = Packed<RayCronJob>;
    type Error = RayError;

    #[tracing::instrument(level = "error", name = "reconcile", skip_all, fields(namespace = packed.namespace(), raycronjob = packed.name_any()))]
    async fn reconcile(&self, packed: &Arc<Packed<RayCronJob>>) -> Result<Action, RayError> {
        if let Some(left) = self.retry_state.rests(&**packed) {
            return Ok(Action::requeue(left));
        }
        let Some(_share) = self.at_work.take(&packed.namespace().unwrap_or_default()) else {
            return Ok(Action::requeue(NEXT_TURN));
        };
        let Ok(_turn) = packed.turn(&self.large) else {
            return Ok(Action::requeue(NEXT_TURN));
        };
        self.retry_state.begins(&**packed);
        let mut observed = self.observe(packed).await?;
        let (mut plan, mut job) = decide(packed, &mut observed).await;
        if job.take().is_some() {
            // The watches may be behind. Only the API server knows which jobs were started, and
            // which run.
            let Some(read) = self.read(&mut observed).await? else {
                return Ok(Action::await_change());
            };
            (plan, job) = decide(&read, &mut observed).await;
        }
        let cron = &*observed.cron;
        let (after, has_notice) = (plan.requeue_after, plan.notice.is_some());
        self.retry_state.decided(cron, plan.deadline);
        self.apply(cron, plan, job).await?;
        Ok(self.retry_state.worked(cron, after, has_notice))
    }

    fn failed(&self, cron: &Packed<RayCronJob>, error: &RayError) -> Action {
        self.retry_state.failed(&cron.without_spec(), error)
    }

    fn gone(&self, namespace: &str, name: &str) {
        self.retry_state.gone(namespace, name);
    }
}

fn warning(reason: &str, message: String) -> plan::Event {
    plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message,
    }
}
