//! The loop that every controller shares.
//!
//! Promises: one object is reconciled by one task at a time, and a shutdown lets running reconciles
//! finish.

use std::error::Error;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures::{FutureExt, Stream, StreamExt};
use kube::Resource;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{applier, watcher};
use tokio_util::sync::CancellationToken;

/// Reconciles objects of one kind.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// What the cache holds of an object.
    type Object: Resource<DynamicType: Clone + Debug + Default + Eq + Hash + Unpin + Send + Sync>
        + Clone
        + Debug
        + Send
        + Sync
        + 'static;
    /// Why a reconcile failed.
    type Error: Error + Send + 'static;

    /// Reconciles an object once; returns when to do so again.
    fn reconcile(
        &self,
        object: &Arc<Self::Object>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// Reports a failure; returns when to retry.
    fn failed(&self, object: &Self::Object, error: &Self::Error) -> Action;

    /// Cleans up after an object that is gone.
    fn gone(&self, namespace: &str, name: &str);
}

/// Reconciles the objects that `changes` names, up to `concurrency` at a time, until `shutdown`;
/// then lets running reconciles finish.
pub(crate) async fn run<R: Reconcile>(
    reconciler: Arc<R>,
    objects: Store<R::Object>,
    changes: impl Stream<Item = ObjectRef<R::Object>>,
    concurrency: u16,
    shutdown: CancellationToken,
) {
    let queue = changes
        .map(Ok::<_, watcher::Error>)
        .take_until(shutdown.cancelled_owned());
    let results = applier(
        |object: Arc<R::Object>, this: Arc<R>| async move { this.reconcile(&object).await }.boxed(),
        |object, error, this| this.failed(&object, error),
        Arc::clone(&reconciler),
        objects,
        queue,
        controller::Config::default().concurrency(concurrency),
    );
    // Other failures are reported where they happen.
    let mut results = std::pin::pin!(results);
    while let Some(result) = results.next().await {
        if let Err(controller::Error::ObjectNotFound(gone)) = result {
            reconciler.gone(gone.namespace.as_deref().unwrap_or_default(), &gone.name);
        }
    }
}
