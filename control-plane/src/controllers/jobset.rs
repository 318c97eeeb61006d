//! The loop that brings every JobSet closer to what it asks for: look, decide, act, again.
//!
//! Promises: decisions about one JobSet are made one at a time; what failed is tried again, ever more slowly, and not at each change;
//! a shutdown lets what is under way finish.

mod counts;
mod long;

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
use crate::telemetry::metrics::{Metrics, Outcome, Queue};

use counts::Counts;
use long::{Decided, IN_PART, Look, Looked, Looks};

/// JobSets that are worked on at the same time.
const CONCURRENCY: u16 = 32;

/// Why a JobSet could not be brought closer to what it asks for.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct ReconcileError(#[from] ApplyError);

/// What there is to work with.
pub(crate) struct Means {
    pub(crate) setting: Setting,
    pub(crate) pod_groups: PodGroups,
    /// Knows which node daemons are connected.
    pub(crate) registry: Arc<Registry>,
}

/// Reconciles the JobSets that `changes` names until `shutdown` is cancelled, then finishes what is under way.
pub(crate) async fn run(
    client: Client,
    stores: Stores,
    metrics: Arc<Metrics>,
    means: Means,
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
        means,
        failures: Failures::default(),
        complaints: EventDedup::default(),
        counts: Counts::default(),
        looks: Looks::default(),
    });
    let queue = reconciler.queue.clone();
    let changes = changes.map(|key| {
        queue.named(&key);
        packed(&key)
    });
    let work = controller_loop::run(reconciler, jobsets, changes, CONCURRENCY, shutdown);
    tokio::join!(work, publisher.run());
}

/// Looks at JobSets and acts.
struct Reconciler {
    stores: Stores,
    applier: Applier,
    queue: Queue,
    metrics: Arc<Metrics>,
    means: Means,
    failures: Failures<ObjectRef<JobSet>>,
    complaints: EventDedup<JobSet>,
    counts: Counts,
    looks: Looks,
}

impl Reconcile for Reconciler {
    type Object = PackedJobSet;
    type Error = ReconcileError;

    #[tracing::instrument(level = "error", name = "reconcile", skip_all, fields(namespace = jobset.meta().namespace, jobset = jobset.meta().name))]
    async fn reconcile(&self, jobset: &Arc<PackedJobSet>) -> Result<Action, ReconcileError> {
        let key = &jobset.key();
        let work = self.queue.begin(key.clone());
        let looked = self.look(key).await;
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
            tracing::debug!(namespace, jobset = name, %error, ?delay, "will decide anew");
        } else {
            tracing::warn!(namespace, jobset = name, %error, failures, ?delay, "reconcile failed, will retry");
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
    /// Looks at a JobSet once and acts; says after which time to look again.
    async fn look(&self, key: &ObjectRef<JobSet>) -> Result<Option<Duration>, ReconcileError> {
        let started = std::time::Instant::now();
        if let Some(left) = self.failures.rests(key) {
            return Ok(Some(left));
        }
        let attended = self.means.registry.is_attended();
        let look = Look {
            stores: self.stores.clone(),
            setting: self.means.setting.clone(),
            pod_groups: self.means.pod_groups.are_served(),
            is_attended: attended.unwrap_or(true),
        };
        let decided = match self.looks.decide(key, look).await {
            Looked::Decided(decided) => decided,
            Looked::Busy(later) => return Ok(Some(later)),
            Looked::InPart => {
                self.tell_in_part(key);
                return Ok(Some(IN_PART));
            }
            Looked::Gone => {
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
        // Whether anybody but kubelet restarts its containers matters to those that restart in place alone.
        let ask_again = attended.err().filter(|_| jobset.in_place());
        let held = self.counts.hold_back(key, &jobset, &mut plan);
        let requeue_after = plan
            .requeue_after
            .and_then(|after| Duration::try_from(after).ok());
        let complaints = std::mem::take(&mut plan.complaints);
        for event in self.complaints.news(&jobset, complaints) {
            tracing::info!(reason = event.reason, note = event.message, "jobset has a fault");
            self.applier.tell(&jobset, event);
        }
        let result = if plan.is_empty() && new_jobs.is_empty() {
            Ok(())
        } else {
            self.applier.apply(&jobset, plan, new_jobs).await
        };
        let look_again = if unconfirmed { Some(BELIEVED) } else { None };
        let in_the_way = self.applier.looks_again(&jobset);
        let all = [requeue_after, look_again, held, ask_again, in_the_way];
        let requeue_after = all.into_iter().flatten().min();
        self.metrics
            .reconciled(Outcome::from(&result), requeue_after.is_some(), started.elapsed());
        result?;
        self.failures.forget(key);
        self.applier.succeeded(key);
        Ok(requeue_after)
    }

    /// Tells the user of a JobSet of which Jobs are left out, and nothing is done until they are seen.
    fn tell_in_part(&self, key: &ObjectRef<JobSet>) {
        let Some(jobset) = self.stores.without_spec(key) else {
            return;
        };
        let event = Event {
            severity: Severity::Warning,
            reason: NO_ROOM.to_owned(),
            message: "the Jobs of this namespace take more memory than the control plane has for them: some of this JobSet's are not seen, and it is left alone until others are \
                      removed (the share grows with the control plane's memory limit)"
                .to_owned(),
        };
        for event in self.complaints.news(&jobset, vec![event]) {
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
