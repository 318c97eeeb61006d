//! The loop that brings every JobSet closer to its spec: observe, decide, act, repeat.
//!
//! Promises: decisions about one JobSet are made one at a time. Failures are retried with growing
//! pauses, not at each change. A shutdown lets work in progress finish.

mod counts;
mod decider;
mod permits;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, Resource};
use lockstep_api::JobSet;
use lockstep_core::jobset::observed::Setting;
use lockstep_core::jobset::plan::{Event, Severity};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::controllers::gang::PodGroups;
use crate::hub::Registry;
use crate::k8s::apply::{Applier, ApplyError, EventDedup};
use crate::k8s::controller_loop::{self, Reconcile};
use crate::k8s::retry::{Failures, delay};
use crate::k8s::watch::decode::NO_ROOM;
use crate::k8s::watch::notify::Notified;
use crate::k8s::watch::own_writes::BELIEVED;
use crate::k8s::watch::{PackedJobSet, Stores, packed};
use crate::telemetry::log_limit::beginning;
use crate::telemetry::metrics::{Metrics, Outcome, Queue};

use counts::Counts;
use decider::{Decided, Decider, Decision, DecisionInput, IN_PART};
use permits::{LATER, PERMITS, Permits};

/// Why a JobSet could not be reconciled.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct ReconcileError(#[from] ApplyError);

/// What the reconciler works with.
pub(crate) struct Dependencies {
    pub(crate) setting: Setting,
    pub(crate) pod_groups: PodGroups,
    /// The connected node daemons.
    pub(crate) registry: Arc<Registry>,
}

/// Reconciles the JobSets that `changes` names until `shutdown` is cancelled, then finishes work in
/// progress.
pub(crate) async fn run(
    client: Client,
    stores: Stores,
    metrics: Arc<Metrics>,
    dependencies: Dependencies,
    changes: Notified<ObjectRef<JobSet>>,
    shutdown: CancellationToken,
) {
    let (applier, publisher) = Applier::new(client, stores.clone(), Arc::clone(&metrics));
    let jobsets = stores.jobsets.clone();
    let reconciler = Arc::new(Reconciler {
        stores,
        applier,
        queue: metrics.queue(),
        metrics,
        dependencies,
        failures: Failures::default(),
        complaints: EventDedup::default(),
        counts: Counts::default(),
        decider: Decider::default(),
        permits: Permits::new(shutdown.clone()),
    });
    let queue = reconciler.queue.clone();
    let changes = changes.map(|key| {
        queue.named(&key);
        packed(&key)
    });
    let work = controller_loop::run(reconciler, jobsets, changes, PERMITS, shutdown);
    tokio::join!(work, publisher.run());
}

/// Reconciles JobSets.
struct Reconciler {
    stores: Stores,
    applier: Applier,
    queue: Queue,
    metrics: Arc<Metrics>,
    dependencies: Dependencies,
    failures: Failures<ObjectRef<JobSet>>,
    complaints: EventDedup<JobSet>,
    counts: Counts,
    decider: Decider,
    permits: Permits,
}

impl Reconcile for Reconciler {
    type Object = PackedJobSet;
    type Error = ReconcileError;

    #[tracing::instrument(level = "error", name = "reconcile", skip_all, fields(namespace = jobset.meta().namespace, jobset = jobset.meta().name))]
    async fn reconcile(&self, jobset: &Arc<PackedJobSet>) -> Result<Action, ReconcileError> {
        let key = &jobset.key();
        let Some(_permit) = self
            .permits
            .take(key.namespace.as_deref().unwrap_or_default())
            .await
        else {
            return Ok(Action::requeue(LATER));
        };
        let work = self.queue.begin(key.clone());
        let looked = self.reconcile_once(key).await;
        drop(work);
        Ok(looked?.map_or_else(Action::await_change, |after| {
            self.queue.again(key, after);
            Action::requeue(after)
        }))
    }

    fn failed(&self, jobset: &PackedJobSet, error: &ReconcileError) -> Action {
        let key = jobset.key();
        let failures = self.failures.add(key.clone());
        let delay = delay(failures);
        let (namespace, name) = (key.namespace.as_deref(), &key.name);
        if matches!(error.0, ApplyError::Conflict(_)) {
            tracing::debug!(namespace, jobset = name, %error, ?delay, "will decide again");
        } else {
            // The event has all of it.
            let error = error.to_string();
            let error = beginning(&error);
            tracing::warn!(
                namespace,
                jobset = name,
                error,
                failures,
                ?delay,
                "reconcile failed, will retry"
            );
        }
        self.queue.retry(&key, delay);
        Action::requeue(delay)
    }

    fn gone(&self, namespace: &str, name: &str) {
        let key = ObjectRef::new(name).within(namespace);
        self.queue.taken(&key);
        self.forget(&key);
    }
}

impl Reconciler {
    /// Reconciles a JobSet once. Returns how soon to reconcile it again.
    async fn reconcile_once(&self, key: &ObjectRef<JobSet>) -> Result<Option<Duration>, ReconcileError> {
        let started = std::time::Instant::now();
        if let Some(left) = self.failures.rests(key) {
            return Ok(Some(left));
        }
        let attended = self.dependencies.registry.is_attended();
        let input = DecisionInput {
            stores: self.stores.clone(),
            setting: self.dependencies.setting.clone(),
            pod_groups: self.dependencies.pod_groups.are_served(),
            is_attended: attended.unwrap_or(true),
        };
        let decided = match self.decider.decide(key, input).await {
            Decision::Decided(decided) => decided,
            Decision::Busy(later) => return Ok(Some(later)),
            Decision::InPart => {
                self.tell_in_part(key);
                return Ok(Some(IN_PART));
            }
            Decision::Gone => {
                self.forget(key);
                return Ok(None);
            }
        };
        let Decided {
            jobset,
            unconfirmed,
            mut plan,
            new_jobs,
        } = *decided;
        // Only JobSets that restart in place need an agent or a node daemon.
        let ask_again = attended.err().filter(|_| jobset.in_place());
        let held = self.counts.hold_back(key, &jobset, &mut plan);
        let requeue_after = plan
            .requeue_after
            .and_then(|after| Duration::try_from(after).ok());
        let complaints = std::mem::take(&mut plan.complaints);
        for event in self.complaints.to_send(&jobset, complaints) {
            tracing::info!(
                reason = event.reason,
                note = event.message,
                "jobset has a problem"
            );
            self.applier.tell(&jobset, event);
        }
        let result = if plan.is_empty() && new_jobs.is_empty() {
            Ok(())
        } else {
            self.applier.apply(&jobset, plan, new_jobs).await
        };
        let look_again = if unconfirmed { Some(BELIEVED) } else { None };
        let in_the_way = self.applier.recheck_after(&jobset);
        let all = [requeue_after, look_again, held, ask_again, in_the_way];
        let requeue_after = all.into_iter().flatten().min();
        self.metrics
            .reconciled(Outcome::from(&result), requeue_after.is_some(), started.elapsed());
        result?;
        self.failures.forget(key);
        self.applier.succeeded(key);
        Ok(requeue_after)
    }

    /// Publishes an event: some Jobs or pods of the JobSet are left out of the cache, so nothing
    /// is done.
    fn tell_in_part(&self, key: &ObjectRef<JobSet>) {
        let Some(jobset) = self.stores.without_spec(key) else {
            return;
        };
        let event = Event {
            severity: Severity::Warning,
            reason: NO_ROOM.to_owned(),
            message: "the Jobs or pods of this namespace take more memory than the control plane has for them: some Jobs or pods of this JobSet are ignored, and it is left unchanged, even if it is \
                      suspended, until others are deleted (the share grows with the control plane's memory limit)"
                .to_owned(),
        };
        for event in self.complaints.to_send(&jobset, vec![event]) {
            self.applier.tell(&jobset, event);
        }
    }

    fn forget(&self, key: &ObjectRef<JobSet>) {
        self.failures.forget(key);
        self.applier.forget(key);
        self.complaints.forget(key);
        self.counts.forget(key);
    }
}
