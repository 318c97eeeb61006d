//! Watches the pods of a namespace from creation to removal, and reports which gangs held nodes in
//! part for too long.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use lockstep_api::labels;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pool::{Set, node};

/// What the watcher has seen of one gang.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// When the number of created pods reached its minimum.
    pub(crate) created: Option<Instant>,
    /// When its whole minimum was bound for the first time.
    pub(crate) started: Option<Instant>,
    /// The longest time for which only part of the minimum was bound.
    pub(crate) longest_partial: Duration,
    /// When the last of its pods released its node.
    pub(crate) ended: Option<Instant>,
    partial_since: Option<Instant>,
    /// The whole minimum was bound, and some of it is still bound.
    whole: bool,
}

#[derive(Default)]
struct State {
    minimums: HashMap<String, usize>,
    seen: BTreeMap<String, Seen>,
    /// All pods that ever existed, by JobSet and UID.
    pods: HashMap<String, HashSet<String>>,
    /// The pods that are bound or have succeeded, by JobSet and UID.
    bound: HashMap<String, HashMap<String, Bound>>,
}

/// A pod that is bound, and has not failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    HoldsNode,
    Succeeded,
}

/// Watches until it is dropped.
pub(crate) struct Watcher {
    state: Arc<Mutex<State>>,
    /// Signals each event.
    changes: watch::Receiver<()>,
    task: JoinHandle<()>,
}

impl Watcher {
    /// Watches these sets. None of their pods is optional.
    pub(crate) fn start(pods: Api<Pod>, sets: &[Set]) -> Self {
        let state = Arc::new(Mutex::new(State {
            minimums: sets.iter().map(|set| (set.name.clone(), set.minimum())).collect(),
            ..State::default()
        }));
        let shared = Arc::clone(&state);
        let (changed, changes) = watch::channel(());
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(watcher(pods, watcher::Config::default()));
            while let Some(event) = events.next().await {
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                        let now = match (node(&pod), phase) {
                            (None, _) | (_, Some("Failed")) => None,
                            (Some(_), Some("Succeeded")) => Some(Bound::Succeeded),
                            (Some(_), _) => Some(Bound::HoldsNode),
                        };
                        state.saw(&pod, now);
                    }
                    Ok(Event::Delete(pod)) => state.saw(&pod, None),
                    Ok(Event::Init | Event::InitDone) => {}
                    Err(error) => eprintln!("the watcher: {error}"),
                }
                drop(state);
                changed.send_replace(());
            }
        });
        Self { state, changes, task }
    }

    /// Returns as soon as the whole minimum of a set is bound.
    pub(crate) async fn until_started(&self, set: &str, within: Duration) -> Result<()> {
        let mut changes = self.changes.clone();
        let started = async {
            while !self.lock().has_started(set) {
                changes.changed().await.context("the watcher has ended")?;
            }
            Ok(())
        };
        let in_time = tokio::time::timeout(within, started).await;
        in_time.with_context(|| format!("{set} has not started within {within:?}"))?
    }

    /// What the watcher has seen so far, by set.
    pub(crate) fn seen(&self) -> BTreeMap<String, Seen> {
        let mut state = self.lock();
        for seen in state.seen.values_mut() {
            seen.add_partial();
        }
        state.seen.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seen {
    fn add_partial(&mut self) {
        let partial = self.partial_since.map(|since| since.elapsed());
        self.longest_partial = self.longest_partial.max(partial.unwrap_or_default());
    }
}

impl State {
    fn has_started(&self, set: &str) -> bool {
        self.seen.get(set).is_some_and(|seen| seen.started.is_some())
    }

    /// A pod is bound like this now, or not at all.
    fn saw(&mut self, pod: &Pod, now: Option<Bound>) {
        let Some(set) = pod.labels().get(labels::JOBSET_NAME) else {
            return;
        };
        let Some(minimum) = self.minimums.get(set) else {
            return;
        };
        let bound = self.bound.entry(set.clone()).or_default();
        let uid = pod.uid().unwrap_or_default();
        let pods = self.pods.entry(set.clone()).or_default();
        pods.insert(uid.clone());
        let has_come = pods.len() >= *minimum;
        let before = match now {
            Some(now) => bound.insert(uid, now),
            None => bound.remove(&uid),
        };
        let seen = self.seen.entry(set.clone()).or_default();
        if has_come {
            seen.created.get_or_insert_with(Instant::now);
        }
        if before == Some(Bound::HoldsNode) && now != Some(Bound::HoldsNode) {
            seen.ended = Some(Instant::now());
        }
        if bound.len() >= *minimum {
            seen.add_partial();
            seen.whole = true;
            seen.partial_since = None;
            seen.started.get_or_insert_with(Instant::now);
        } else if !bound.values().any(|bound| *bound == Bound::HoldsNode) {
            seen.add_partial();
            seen.whole = false;
            seen.partial_since = None;
        } else if !seen.whole {
            seen.partial_since.get_or_insert_with(Instant::now);
        }
    }
}
