//! The loop that brings every RayCronJob closer to what it asks for.

use std::sync::Arc;

use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use lockstep_api::ray::{RayCronJob, RayJob, keys};
use lockstep_core::observed::is_controlled_by;
use lockstep_core::plan::{self, JobRef, Severity};
use lockstep_core::ray::cron::{CronPlan, ObservedCron, plan};
use tokio_util::sync::CancellationToken;

use super::CONCURRENCY;
use super::apply::{self, RayError};
use super::kuberay::KubeRay;
use super::ledger::Ledger;
use crate::watch::notify::Notified;
use crate::work::{self, Reconcile};

/// Looks at RayCronJobs and acts.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) crons: Store<RayCronJob>,
    pub(super) jobs: Store<RayJob>,
    pub(super) kuberay: Arc<KubeRay>,
    pub(super) ledger: Ledger<RayCronJob>,
}

impl Reconciler {
    /// Reconciles the RayCronJobs that `changes` names until `shutdown`; then finishes what is under way.
    pub(super) async fn run(self, changes: Notified<ObjectRef<RayCronJob>>, shutdown: CancellationToken) {
        // What runs is not known before.
        let _ = shutdown.run_until_cancelled(self.jobs.wait_until_ready()).await;
        let crons = self.crons.clone();
        work::run(Arc::new(self), crons, changes, CONCURRENCY, shutdown).await;
    }

    /// What the watches show.
    async fn observe(&self, cron: &Arc<RayCronJob>) -> Result<ObservedCron, RayError> {
        let is_own = |job: &&Arc<RayJob>| is_controlled_by(&job.metadata, cron.uid_str());
        // Asked only while it matters.
        let open = !cron.is_claimed() && cron.managed_by_another().is_none();
        Ok(ObservedCron {
            cron: Arc::clone(cron),
            jobs: self.jobs.state().iter().filter(is_own).cloned().collect(),
            kuberay: open && self.kuberay.runs().await.map_err(RayError::of("leases"))?,
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
                self.ledger
                    .tell_of_refusal(cron, warning("FailedCreate", message));
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
            self.ledger.tell(cron, event);
        }
        if let Some(notice) = plan.notice {
            self.ledger.tell_once(cron, notice);
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

impl Reconcile for Reconciler {
    type Object = RayCronJob;
    type Error = RayError;

    #[tracing::instrument(name = "reconcile", skip_all, fields(namespace = cron.ns(), raycronjob = cron.name()))]
    async fn reconcile(&self, cron: &Arc<RayCronJob>) -> Result<Action, RayError> {
        self.ledger.begins(cron);
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
        let (after, left_alone) = (plan.requeue_after, plan.notice.is_some());
        self.ledger.decided(cron, plan.deadline);
        self.apply(cron, plan).await?;
        Ok(self.ledger.worked(cron, after, left_alone))
    }

    fn failed(&self, cron: &RayCronJob, error: &RayError) -> Action {
        self.ledger.failed(cron, error)
    }

    fn gone(&self, namespace: &str, name: &str) {
        self.ledger.gone(namespace, name);
    }
}

fn warning(reason: &str, message: String) -> plan::Event {
    plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message,
    }
}
