//! The loop of every controller that brings objects of one kind closer to what they ask for.
//!
//! Promises: one object is looked at by one task at a time; a shutdown lets what is under way
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

/// Looks at objects of one kind and acts.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// What the cache holds of an object.
    type Object: Resource<DynamicType: Clone + Debug + Default + Eq + Hash + Unpin + Send + Sync>
        + Clone
        + Debug
        + Send
        + Sync
        + 'static;
    /// Why an object could not be brought closer to what it asks for.
    type Error: Error + Send + 'static;

    /// Looks at an object once and acts; says when to look again.
    fn reconcile(
        &self,
        object: &Arc<Self::Object>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;

    /// Tells of a failure; says when to try again.
    fn failed(&self, object: &Self::Object, error: &Self::Error) -> Action;

    /// An object is no longer there.
    fn gone(&self, namespace: &str, name: &str);
}

/// Reconciles the objects that `changes` names, so many at the same time, until `shutdown`; then
/// finishes what is under way.
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
    // Other failures have been told of where they happened.
    let mut results = std::pin::pin!(results);
    while let Some(result) = results.next().await {
        if let Err(controller::Error::ObjectNotFound(gone)) = result {
            reconciler.gone(gone.namespace.as_deref().unwrap_or_default(), &gone.name);
        }
    }
}
