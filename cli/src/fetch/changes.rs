//! When it is worth to look again: as watches of the API server and of the platform API tell, and as the clock does where one of them is not
//! to be had.

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

/// How often to look while a watch is missing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often to look all the same: a watch may be silent for other reasons than that nothing happens.
const RESYNC_INTERVAL: Duration = Duration::from_secs(30);
/// What comes within this time is returned_at at batch_until.
const BATCH_WINDOW: Duration = Duration::from_millis(100);
/// How long a missing watch is left alone.
const RECONNECT_AFTER: Duration = Duration::from_secs(10);

/// One of the watches, and whether it has brought something; else it is missing.
type WatchUpdate = (usize, bool);

/// Tells of changes.
pub(crate) struct Changes {
    watches: SelectAll<BoxStream<'static, WatchUpdate>>,
    missing: BTreeSet<usize>,
    /// When they were begun.
    begun_at: Instant,
    /// When they were returned_at at last.
    returned_at: Instant,
    /// Something has come: until when the rest is waited for.
    batch_until: Option<Instant>,
}

impl Changes {
    /// Of the JobSets, Jobs and pods of this scope, and of what the platform API says of them.
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

    /// Of one JobSet, and of what the platform API says of it.
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
            begun_at: Instant::now(),
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
                // Whoever leads next is asked for anew.
                let end = futures::stream::once(std::future::ready((number, false)));
                self.watches.push(updates.chain(end).boxed());
            }
            Err(_) => {
                self.missing.insert(number);
            }
        }
    }

    /// Whether a watch is missing for so long that it is worth to begin all of them anew.
    pub(crate) fn are_stale(&self) -> bool {
        !self.missing.is_empty() && self.begun_at.elapsed() >= RECONNECT_AFTER
    }

    /// Waits for a change, or for the time to look all the same. Cancel-safe: what has come is not forgotten.
    pub(crate) async fn next(&mut self) {
        if self.batch_until.is_none() {
            self.wait().await;
        }
        tokio::time::sleep_until(*self.batch_until.get_or_insert_with(Instant::now)).await;
        while let Some(Some(updates)) = self.watches.next().now_or_never() {
            self.record(updates);
        }
        self.batch_until = None;
        self.returned_at = Instant::now();
    }

    /// Until something has come, or the time has.
    async fn wait(&mut self) {
        loop {
            let until = self.returned_at
                + if self.missing.is_empty() {
                    RESYNC_INTERVAL
                } else {
                    POLL_INTERVAL
                };
            match tokio::time::timeout_at(until, self.watches.next()).await {
                Ok(Some(updates)) => {
                    if self.record(updates) {
                        self.batch_until = Some(Instant::now() + BATCH_WINDOW);
                        return;
                    }
                }
                Ok(None) => tokio::time::sleep_until(until).await,
                Err(_) => return,
            }
        }
    }

    /// Whether it is a change.
    fn record(&mut self, (number, is_change): WatchUpdate) -> bool {
        if is_change {
            self.missing.remove(&number);
        } else {
            self.missing.insert(number);
        }
        is_change
    }
}

/// A watch of objects, without what they say. It goes on by itself after a loss.
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
            begun_at: Instant::now(),
            returned_at: Instant::now(),
            batch_until: None,
        }
    }

    /// Timers go by milliseconds.
    fn is_about(took: Duration, expected: Duration) -> bool {
        took.abs_diff(expected) < Duration::from_millis(50)
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_looked_at_at_once_and_silence_after_a_while() {
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
    async fn where_a_watch_is_missing_the_clock_tells() {
        let mut changes = changes(futures::stream::iter([(0, false)]).chain(futures::stream::pending()));
        let begun = Instant::now();
        for _ in 0..10 {
            changes.next().await;
        }
        assert!(is_about(begun.elapsed(), 10 * POLL_INTERVAL));
        assert!(changes.are_stale());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_something_else_meanwhile_misses_nothing() {
        let mut changes = changes(futures::stream::iter([(0, true)]).chain(futures::stream::pending()));
        let begun = Instant::now();
        assert!(
            tokio::time::timeout(BATCH_WINDOW / 2, changes.next())
                .await
                .is_err()
        );
        changes.next().await;
        assert!(is_about(begun.elapsed(), BATCH_WINDOW));
        // Nor is the time to look put off for ever.
        let begun = Instant::now();
        while tokio::time::timeout(Duration::from_secs(1), changes.next())
            .await
            .is_err()
        {}
        assert!(is_about(begun.elapsed(), RESYNC_INTERVAL));
    }
}
