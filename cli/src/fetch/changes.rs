//! When to poll again: when a watch of the API server or of the platform API reports a change, and
//! at intervals while a watch is missing.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Config;
use kube::runtime::{WatchStreamExt as _, watcher};
use lockstep_api::{JobSet, labels};
use tokio::time::Instant;

use super::{Cluster, Platform, Scope};

/// How often to poll while a watch is missing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often to poll even if all watches are silent: a watch may fail without an error.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// Changes within this time are handled together.
const BATCH_WINDOW: Duration = Duration::from_millis(100);
/// Delay before missing watches are opened again.
const RECONNECT_AFTER: Duration = Duration::from_secs(10);

/// The number of a watch, and true if it delivered something; false if it is missing.
type WatchUpdate = (usize, bool);

/// Reports changes.
pub(crate) struct Changes {
    watches: SelectAll<BoxStream<'static, WatchUpdate>>,
    missing: BTreeSet<usize>,
    /// When the watches were opened.
    opened_at: Instant,
    /// When [`Self::next`] last returned.
    returned_at: Instant,
    /// After a change: until when to wait for more.
    batch_until: Option<Instant>,
}

impl Changes {
    /// Changes of the JobSets, Jobs and pods of this scope, and of their groups in the platform
    /// API.
    pub(crate) async fn of(cluster: &Cluster, scope: &Scope, platform: Option<&Platform>) -> Self {
        let mut changes = Self::of_jobsets(cluster, scope);
        let children = match scope {
            Scope::One(name) => format!("{}={name}", labels::JOBSET_NAME),
            _ => labels::JOBSET_NAME.to_owned(),
        };
        let children = Config::default().labels(&children);
        changes
            .watches
            .push(watch::<Job>(1, cluster, scope, children.clone()));
        changes.watches.push(watch::<Pod>(2, cluster, scope, children));
        if let Some(platform) = platform {
            changes.add(3, cluster, scope, platform).await;
        }
        changes
    }

    /// Changes of one JobSet, and of its group in the platform API.
    pub(crate) async fn of_one(cluster: &Cluster, name: &str, platform: Option<&Platform>) -> Self {
        let scope = Scope::One(name.to_owned());
        let mut changes = Self::of_jobsets(cluster, &scope);
        if let Some(platform) = platform {
            changes.add(1, cluster, &scope, platform).await;
        }
        changes
    }

    fn of_jobsets(cluster: &Cluster, scope: &Scope) -> Self {
        let which = match scope {
            Scope::One(name) => Config::default().fields(&format!("metadata.name={name}")),
            _ => Config::default(),
        };
        let mut watches = SelectAll::new();
        watches.push(watch::<JobSet>(0, cluster, scope, which));
        Self {
            watches,
            missing: BTreeSet::new(),
            opened_at: Instant::now(),
            returned_at: Instant::now(),
            batch_until: None,
        }
    }

    async fn add(&mut self, number: usize, cluster: &Cluster, scope: &Scope, platform: &Platform) {
        let (namespace, name) = match scope {
            Scope::One(name) => (cluster.namespace.as_str(), name.as_str()),
            Scope::Namespace => (cluster.namespace.as_str(), ""),
            Scope::Everywhere => ("", ""),
        };
        match platform.watch(namespace, name).await {
            Ok(events) => {
                let updates = events.map(move |event| (number, event.is_ok()));
                // The stream ends when the leader changes, and must be opened again.
                let end = futures::stream::once(std::future::ready((number, false)));
                self.watches.push(updates.chain(end).boxed());
            }
            Err(_) => {
                self.missing.insert(number);
            }
        }
    }

    /// True if a watch has been missing long enough to open all of them again.
    pub(crate) fn are_stale(&self) -> bool {
        !self.missing.is_empty() && self.opened_at.elapsed() >= RECONNECT_AFTER
    }

    /// Waits for a change, or until the next poll is due. Cancel-safe: no change is lost.
    pub(crate) async fn next(&mut self) {
        if self.batch_until.is_none() {
            self.wait().await;
        }
        tokio::time::sleep_until(*self.batch_until.get_or_insert_with(Instant::now)).await;
        while let Some(Some(update)) = self.watches.next().now_or_never() {
            self.record(update);
        }
        self.batch_until = None;
        self.returned_at = Instant::now();
    }

    /// Waits for the first change, or until the next poll is due.
    async fn wait(&mut self) {
        loop {
            let until = self.returned_at
                + if self.missing.is_empty() {
                    RESYNC_INTERVAL
                } else {
                    POLL_INTERVAL
                };
            match tokio::time::timeout_at(until, self.watches.next()).await {
                Ok(Some(update)) => {
                    if self.record(update) {
                        self.batch_until = Some(Instant::now() + BATCH_WINDOW);
                        return;
                    }
                }
                Ok(None) => tokio::time::sleep_until(until).await,
                Err(_) => return,
            }
        }
    }

    /// Notes which watches are missing. Returns true if the update is a change.
    fn record(&mut self, (number, is_change): WatchUpdate) -> bool {
        if is_change {
            self.missing.remove(&number);
        } else {
            self.missing.insert(number);
        }
        is_change
    }
}

/// A watch of the metadata of objects. It reconnects by itself.
fn watch<K>(number: usize, cluster: &Cluster, scope: &Scope, which: Config) -> BoxStream<'static, WatchUpdate>
where
    K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    watcher(cluster.api::<PartialObjectMeta<K>>(scope), which)
        .default_backoff()
        .map(move |event| (number, event.is_ok()))
        .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(updates: impl futures::Stream<Item = WatchUpdate> + Send + 'static) -> Changes {
        let mut watches = SelectAll::new();
        watches.push(updates.boxed());
        Changes {
            watches,
            missing: BTreeSet::new(),
            opened_at: Instant::now(),
            returned_at: Instant::now(),
            batch_until: None,
        }
    }

    /// True if the durations are equal within 50 ms.
    fn is_about(took: Duration, expected: Duration) -> bool {
        took.abs_diff(expected) < Duration::from_millis(50)
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_reported_at_once_and_silence_after_a_while() {
        let silent = futures::stream::pending();
        let mut changes = changes(futures::stream::iter([(0, true), (0, true)]).chain(silent));
        let begun = Instant::now();
        changes.next().await;
        assert!(is_about(begun.elapsed(), BATCH_WINDOW));
        changes.next().await;
        assert!(is_about(begun.elapsed(), BATCH_WINDOW + RESYNC_INTERVAL));
        assert!(!changes.are_stale());
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_watch_means_polling() {
        let mut changes = changes(futures::stream::iter([(0, false)]).chain(futures::stream::pending()));
        let begun = Instant::now();
        for _ in 0..10 {
            changes.next().await;
        }
        assert!(is_about(begun.elapsed(), 10 * POLL_INTERVAL));
        assert!(changes.are_stale());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_wait_loses_no_change() {
        let mut changes = changes(futures::stream::iter([(0, true)]).chain(futures::stream::pending()));
        let begun = Instant::now();
        assert!(
            tokio::time::timeout(BATCH_WINDOW / 2, changes.next())
                .await
                .is_err()
        );
        changes.next().await;
        assert!(is_about(begun.elapsed(), BATCH_WINDOW));
        // Nor is the next poll postponed forever.
        let begun = Instant::now();
        while tokio::time::timeout(Duration::from_secs(1), changes.next())
            .await
            .is_err()
        {}
        assert!(is_about(begun.elapsed(), RESYNC_INTERVAL));
    }
}
