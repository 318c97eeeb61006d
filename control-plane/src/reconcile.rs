//! The loop that brings every JobSet closer to what it asks for: look, decide, act, again.
//!
//! Promises: decisions about one JobSet are made one at a time; what failed is tried again, ever more slowly; a shutdown lets what is
//! under way finish.

mod counts;

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use kube::Client;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{applier, watcher};
use lockstep_api::JobSet;
use lockstep_core::observed::Setting;
use lockstep_core::reconcile::plan;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::apply::{Applier, ApplyError};
use crate::metrics::{Metrics, Outcome};
use crate::retry::{Failures, delay};
use crate::watch::notify::Notified;
use crate::watch::recent::BELIEVED;
use crate::watch::{PackedJobSet, Stores, packed};

use counts::Counts;

/// JobSets that are worked on at the same time.
const CONCURRENCY: u16 = 32;

/// Why a JobSet could not be brought closer to what it asks for.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct ReconcileError(#[from] ApplyError);

/// Reconciles the JobSets that `changes` names until `shutdown` is cancelled, then finishes what is under way.
pub async fn run(
    client: Client,
    stores: Stores,
    metrics: Arc<Metrics>,
    setting: Setting,
    changes: Notified<ObjectRef<JobSet>>,
    shutdown: CancellationToken,
) {
    let (applier, publisher) = Applier::new(client, stores.clone(), Arc::clone(&metrics));
    let reconciler = Arc::new(Reconciler {
        stores,
        applier,
        metrics,
        setting,
        failures: Failures::default(),
        counts: Counts::default(),
    });
    tokio::join!(reconciler.follow(changes, shutdown), publisher.run());
}

/// Looks at JobSets and acts.
struct Reconciler {
    stores: Stores,
    applier: Applier,
    metrics: Arc<Metrics>,
    setting: Setting,
    failures: Failures<ObjectRef<JobSet>>,
    counts: Counts,
}

impl Reconciler {
    async fn follow(self: Arc<Self>, changes: Notified<ObjectRef<JobSet>>, shutdown: CancellationToken) {
        let store = self.stores.jobsets.clone();
        let queue = changes
            .map(|key| Ok::<_, watcher::Error>(packed(&key)))
            .take_until(shutdown.cancelled_owned());
        let results = applier(
            |jobset: Arc<PackedJobSet>, this: Arc<Self>| {
                async move { this.reconcile(&jobset.key()).await }.boxed()
            },
            |jobset, error, this| this.failed(&jobset.key(), error),
            Arc::clone(&self),
            store,
            queue,
            controller::Config::default().concurrency(CONCURRENCY),
        );
        // Other failures have been told of where they happened.
        let mut results = std::pin::pin!(results);
        while let Some(result) = results.next().await {
            if let Err(controller::Error::ObjectNotFound(gone)) = result {
                let key = ObjectRef::new(&gone.name).within(gone.namespace.as_deref().unwrap_or_default());
                self.failures.forget(&key);
                self.counts.forget(&key);
            }
        }
    }

    #[tracing::instrument(name = "reconcile", skip_all, fields(namespace = key.namespace, jobset = key.name))]
    async fn reconcile(&self, key: &ObjectRef<JobSet>) -> Result<Action, ReconcileError> {
        let started = std::time::Instant::now();
        let Some((observed, unconfirmed)) = self.stores.observe(key, &self.setting, jiff::Timestamp::now())
        else {
            self.failures.forget(key);
            self.counts.forget(key);
            return Ok(Action::await_change());
        };
        let mut plan = plan(&observed);
        let held = self.counts.hold_back(key, &observed.jobset, &mut plan);
        let requeue_after = plan
            .requeue_after
            .and_then(|after| Duration::try_from(after).ok());
        let result = if plan.is_empty() {
            Ok(())
        } else {
            self.applier.apply(&observed.jobset, plan).await
        };
        self.metrics.reconciled(Outcome::of(&result), started.elapsed());
        result?;
        self.failures.forget(key);
        let look_again = if unconfirmed { Some(BELIEVED) } else { None };
        let requeue_after = [requeue_after, look_again, held].into_iter().flatten().min();
        Ok(requeue_after.map_or_else(Action::await_change, Action::requeue))
    }

    fn failed(&self, key: &ObjectRef<JobSet>, error: &ReconcileError) -> Action {
        let failures = self.failures.add(key.clone());
        let delay = delay(failures);
        let (namespace, name) = (key.namespace.as_deref(), &key.name);
        if matches!(error.0, ApplyError::Conflict(_)) {
            tracing::debug!(namespace, jobset = name, %error, ?delay, "will decide anew");
        } else {
            tracing::warn!(namespace, jobset = name, %error, failures, ?delay, "reconcile failed, will retry");
        }
        Action::requeue(delay)
    }
}
