//! The pods of this node that have workers, and their sandboxes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::Effects;
use super::super::types::{Generation, Pod, PodUid, SandboxId};
use super::Table;

#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) pod: Pod,
    pub(super) sandboxes: BTreeSet<SandboxId>,
    /// First listed at this tick: its absence from a later listing means that it is gone.
    pub(super) listed: Option<u64>,
    /// By container name, the last generation for which a container without its agent was stopped,
    /// or at which its group ran beside it.
    pub(super) stopped: BTreeMap<String, Generation>,
}

/// How the daemon learned of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodSource {
    /// A listing through CRI, or NRI's complete one.
    Listing,
    /// A single event.
    Event,
}

impl Table {
    pub(super) fn add_pod(&mut self, sandbox: SandboxId, pod: Pod, source: PodSource, effects: &mut Effects) {
        let uid = pod.uid.clone();
        let tick = self.tick;
        if !self.pods.contains_key(&uid) {
            effects.pods_known.push(uid.clone());
        }
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| PodEntry {
            pod: pod.clone(),
            sandboxes: BTreeSet::new(),
            listed: None,
            stopped: BTreeMap::new(),
        });
        entry.pod = pod;
        entry.sandboxes.insert(sandbox);
        if source == PodSource::Listing {
            entry.listed.get_or_insert(tick);
        }
        // Agents may have connected before the pod was known.
        for id in self.workers_of(&uid) {
            self.refresh(&id, effects);
            self.retarget(&id, effects);
        }
    }

    pub(super) fn remove_sandbox(&mut self, sandbox: &SandboxId, uid: &PodUid, effects: &mut Effects) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.sandboxes.remove(sandbox);
            if entry.sandboxes.is_empty() {
                self.drop_pod(uid, effects);
            }
        }
    }

    pub(super) fn drop_pod(&mut self, uid: &PodUid, effects: &mut Effects) {
        for id in self.workers_of(uid) {
            self.drop_worker(id, effects);
        }
        let Some(entry) = self.pods.remove(uid) else {
            return;
        };
        effects.pods_gone.push(uid.clone());
        let group = entry.pod.group;
        if !self.pods.values().any(|other| other.pod.group == group) {
            self.groups.remove(&group);
        }
    }
}
