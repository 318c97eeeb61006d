//! The nodes, what is taken of them, and the pods of gangs, as the watches show them.
//!
//! Promises: what this process has written itself shows at once; an older state never takes the place of a newer one; a pod that has ended or
//! is gone takes nothing; a new list takes the place of everything that was known before, at once; what pods state that they need has a bound in each
//! namespace, beyond which a pod may go anywhere, as far as is known here.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use kube::runtime::watcher::Event;
use lockstep_api::annotations;
use lockstep_core::gang::{Footprint, Needs, Node, Pod};

use super::lean_objects::{SeenNode, SeenPod};
use crate::k8s::memory_limit;
use crate::k8s::watch::namespace_budget::Budget;
use crate::k8s::watch::own_writes::version;

#[cfg(test)]
mod tests;

/// The UID of an object.
type Uid = String;

/// What the watches of nodes and pods show.
#[derive(Debug, Default)]
pub(super) struct Cluster {
    nodes: Nodes,
    pods: Pods,
    listed_nodes: BTreeMap<String, Node>,
    listed_pods: HashMap<Uid, Kept>,
    /// What those need, where it is much: the last of each JobSet.
    listed_needs: HashMap<Uid, Arc<Needs>>,
    listed_room: NeedsRoom,
    ready: Ready,
    room: NeedsRoom,
}

/// Room for what pods of gangs need of nodes, where they state long lists, in bytes.
#[derive(Debug)]
struct NeedsRoom {
    room: Budget,
    /// What was taken for pods that are gone, and others have in common with them: namespace and bytes.
    shared: Vec<(Weak<Needs>, String, usize)>,
}

impl Default for NeedsRoom {
    fn default() -> Self {
        let memory = memory_limit::limit();
        Self {
            room: Budget::new(memory / 64, memory / 16),
            shared: Vec::new(),
        }
    }
}

impl NeedsRoom {
    /// Takes room for what a pod needs, and returns how much, or leaves its lists out.
    fn take(&mut self, pod: &mut Pod) -> usize {
        let bytes = pod.needs.bytes();
        if bytes == 0 || self.room.takes(&pod.namespace, None, bytes) {
            return bytes;
        }
        self.sweep();
        if self.room.takes(&pod.namespace, None, bytes) {
            return bytes;
        }
        pod.needs = Arc::new(pod.needs.in_short());
        0
    }

    /// A pod is gone for which room was taken: others may still need the very same.
    fn give_back(&mut self, pod: Arc<Pod>, bytes: usize) {
        let (needs, namespace) = (Arc::downgrade(&pod.needs), pod.namespace.clone());
        drop(pod);
        if needs.strong_count() == 0 {
            self.room.release(&namespace, bytes);
            return;
        }
        self.shared.push((needs, namespace, bytes));
        if self.shared.len() >= MOST_SHARED {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        let room = &self.room;
        self.shared.retain(|(needs, namespace, bytes)| {
            let is_there = needs.strong_count() > 0;
            if !is_there {
                room.release(namespace, *bytes);
            }
            is_there
        });
    }
}

/// So many that are gone are looked at again at the latest.
const MOST_SHARED: usize = 1_024;

/// Which lists were complete once.
#[derive(Debug, Default)]
struct Ready {
    nodes: bool,
    pods: bool,
}

#[derive(Debug, Default)]
struct Nodes {
    /// As they are without any pod.
    bare: BTreeMap<String, Node>,
    /// What is taken of nodes, also of those that are not known (yet), by the pod's UID.
    taken: HashMap<String, HashMap<Uid, Footprint>>,
    /// `bare` with what is taken of them.
    loaded: BTreeMap<String, Node>,
}

#[derive(Debug, Default)]
struct Pods {
    known: HashMap<Uid, Known>,
    /// Those of gangs, by the UID of their JobSet.
    members: HashMap<Uid, BTreeMap<Uid, Arc<Pod>>>,
}

/// Where a pod is to be found here.
#[derive(Debug)]
struct Known {
    revision: u64,
    /// The node that it takes something of.
    node: Option<String>,
    /// The UID of its JobSet, where it is in a gang.
    jobset: Option<Uid>,
    /// The room that was taken for what it needs.
    bytes: usize,
}

/// What is kept of a pod.
#[derive(Debug, PartialEq)]
struct Kept {
    revision: u64,
    footprint: Option<Footprint>,
    member: Option<Pod>,
}

impl Kept {
    /// `None`: it takes nothing and is in no gang.
    fn of(SeenPod(pod): &SeenPod) -> Option<(Uid, Self)> {
        let annotations = pod.metadata.annotations.as_ref();
        let in_gang = annotations.is_some_and(|annotations| annotations.contains_key(annotations::GANG));
        let kept = Self {
            revision: version(&pod.metadata),
            footprint: Footprint::of(pod),
            member: in_gang.then(|| Pod::of(pod)).flatten(),
        };
        let of_interest = kept.footprint.is_some() || kept.member.is_some();
        Some((pod.metadata.uid.clone()?, kept)).filter(|_| of_interest)
    }
}

impl Nodes {
    fn reload(&mut self, name: &str) {
        let Some(bare) = self.bare.get(name) else {
            self.loaded.remove(name);
            return;
        };
        let mut loaded = bare.clone();
        for footprint in self.taken.get(name).into_iter().flat_map(HashMap::values) {
            loaded.take(footprint);
        }
        self.loaded.insert(name.to_owned(), loaded);
    }

    fn reload_all(&mut self) {
        self.loaded.clear();
        let names: Vec<String> = self.bare.keys().cloned().collect();
        for name in names {
            self.reload(&name);
        }
    }

    fn take(&mut self, uid: &str, footprint: Footprint) {
        let taken = self.taken.entry(footprint.node.clone()).or_default();
        taken.insert(uid.to_owned(), footprint);
    }

    fn give_back(&mut self, uid: &str, node: &str) {
        if let Some(taken) = self.taken.get_mut(node) {
            taken.remove(uid);
            if taken.is_empty() {
                self.taken.remove(node);
            }
        }
    }
}

impl Pods {
    /// Returns the room that what it needs takes.
    fn join(&mut self, uid: &str, mut pod: Pod, room: &mut NeedsRoom) -> usize {
        let siblings = self.members.entry(pod.jobset_uid.clone()).or_default();
        // Most pods of a gang need the same.
        let same = siblings.values().map(|sibling| &sibling.needs);
        if let Some(needs) = same.take(2).find(|needs| **needs == pod.needs) {
            pod.needs = Arc::clone(needs);
            siblings.insert(uid.to_owned(), Arc::new(pod));
            return 0;
        }
        let bytes = room.take(&mut pod);
        siblings.insert(uid.to_owned(), Arc::new(pod));
        bytes
    }

    /// Returns the pod.
    fn leave(&mut self, uid: &str, jobset: &str) -> Option<Arc<Pod>> {
        let siblings = self.members.get_mut(jobset)?;
        let pod = siblings.remove(uid);
        if siblings.is_empty() {
            self.members.remove(jobset);
        }
        pod
    }
}

/// Whether a pod is as it is kept without its lists.
fn is_same_in_short(known: &Pod, seen: &Pod) -> bool {
    let needs = Arc::clone(&known.needs);
    let is_short = seen.needs.bytes() > 0 && *needs == seen.needs.in_short();
    is_short
        && *known
            == Pod {
                needs,
                ..seen.clone()
            }
}

impl Cluster {
    /// Whether both lists were complete once.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.nodes && self.ready.pods
    }

    /// The nodes, with what is taken of them, by name.
    pub(super) fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes.loaded
    }

    /// The pods of the gangs of a JobSet, by its UID.
    pub(super) fn members(&self, jobset: &str) -> Vec<Arc<Pod>> {
        let members = self.pods.members.get(jobset);
        members.into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Updates the nodes. True: something is different.
    pub(super) fn apply_node(&mut self, event: &Event<SeenNode>) -> bool {
        let named = |SeenNode(node): &SeenNode| node.metadata.name.clone().unwrap_or_default();
        match event {
            Event::Init => {
                self.listed_nodes.clear();
                false
            }
            Event::InitApply(node) => {
                self.listed_nodes.insert(named(node), Node::of(&node.0));
                false
            }
            Event::InitDone => {
                self.nodes.bare = std::mem::take(&mut self.listed_nodes);
                self.nodes.reload_all();
                self.ready.nodes = true;
                true
            }
            Event::Apply(node) => {
                let (name, node) = (named(node), Node::of(&node.0));
                // Kubelets report every few minutes, mostly that nothing has changed.
                if self.nodes.bare.get(&name) == Some(&node) {
                    return false;
                }
                self.nodes.bare.insert(name.clone(), node);
                self.nodes.reload(&name);
                true
            }
            Event::Delete(node) => {
                let name = named(node);
                self.nodes.bare.remove(&name);
                self.nodes.reload(&name);
                true
            }
        }
    }

    /// Updates the pods. True: something is different.
    pub(super) fn apply_pod(&mut self, event: &Event<SeenPod>) -> bool {
        match event {
            Event::Init => {
                self.listed_pods.clear();
                self.listed_needs.clear();
                self.listed_room = NeedsRoom::default();
                false
            }
            Event::InitApply(pod) => {
                let kept = Kept::of(pod).map(|(uid, kept)| (uid, self.listed(kept)));
                self.listed_pods.extend(kept);
                false
            }
            Event::InitDone => {
                self.pods = Pods::default();
                self.room = NeedsRoom::default();
                self.listed_needs.clear();
                self.nodes.taken.clear();
                for (uid, kept) in std::mem::take(&mut self.listed_pods) {
                    self.put(uid, kept);
                }
                self.nodes.reload_all();
                self.ready.pods = true;
                true
            }
            Event::Apply(pod) => self.saw(pod),
            Event::Delete(SeenPod(pod)) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let known = self.pods.known.contains_key(uid);
                if let Some(node) = self.remove(uid) {
                    self.nodes.reload(&node);
                }
                known
            }
        }
    }

    /// What the API server has answered to a write. A pod that is not known is gone.
    pub(super) fn wrote_pod(&mut self, pod: &SeenPod) {
        let uid = pod.0.metadata.uid.as_deref().unwrap_or_default();
        if self.pods.known.contains_key(uid) {
            self.saw(pod);
        }
    }

    fn saw(&mut self, pod: &SeenPod) -> bool {
        let uid = pod.0.metadata.uid.as_deref().unwrap_or_default();
        let seen = Kept::of(pod);
        match (self.pods.known.get(uid), &seen) {
            (None, None) => return false,
            (Some(known), _) if known.revision > version(&pod.0.metadata) => return false,
            (Some(known), Some((_, kept))) if self.is_same(uid, known, kept) => return false,
            _ => {}
        }
        let before = self.remove(uid);
        let after = seen.and_then(|(uid, kept)| self.put(uid, kept));
        for node in before
            .iter()
            .chain(after.iter().filter(|after| before.as_ref() != Some(after)))
        {
            self.nodes.reload(node);
        }
        true
    }

    /// A pod of a list: what it needs is shared with the one before of its JobSet where it is the same, and has room, as it has later.
    fn listed(&mut self, mut kept: Kept) -> Kept {
        let Some(pod) = kept.member.as_mut().filter(|pod| pod.needs.bytes() > 0) else {
            return kept;
        };
        match self.listed_needs.get(&pod.jobset_uid) {
            Some(needs) if *needs == pod.needs => pod.needs = Arc::clone(needs),
            _ => {
                self.listed_room.take(pod);
                self.listed_needs
                    .insert(pod.jobset_uid.clone(), Arc::clone(&pod.needs));
            }
        }
        kept
    }

    /// Whether what is known of a pod is what is seen, but for the revision.
    fn is_same(&self, uid: &str, known: &Known, seen: &Kept) -> bool {
        let node = known.node.as_ref();
        let footprint = node.and_then(|node| self.nodes.taken.get(node)?.get(uid));
        let jobset = known.jobset.as_ref();
        let member = jobset.and_then(|jobset| self.pods.members.get(jobset)?.get(uid));
        let is_same_member = match (member, &seen.member) {
            (Some(known), Some(seen)) => {
                let has_room = || self.room.room.has(&seen.namespace, seen.needs.bytes());
                known.as_ref() == seen || is_same_in_short(known, seen) && !has_room()
            }
            (known, seen) => known.is_none() && seen.is_none(),
        };
        footprint == seen.footprint.as_ref() && is_same_member
    }

    /// Puts a pod in; returns its node.
    fn put(&mut self, uid: Uid, kept: Kept) -> Option<String> {
        let mut known = Known {
            bytes: 0,
            revision: kept.revision,
            node: kept.footprint.as_ref().map(|footprint| footprint.node.clone()),
            jobset: kept.member.as_ref().map(|member| member.jobset_uid.clone()),
        };
        let node = known.node.clone();
        if let Some(footprint) = kept.footprint {
            self.nodes.take(&uid, footprint);
        }
        if let Some(member) = kept.member {
            known.bytes = self.pods.join(&uid, member, &mut self.room);
        }
        self.pods.known.insert(uid, known);
        node
    }

    /// Takes a pod out; returns its node.
    fn remove(&mut self, uid: &str) -> Option<String> {
        let known = self.pods.known.remove(uid)?;
        let jobset = known.jobset.as_ref();
        let pod = jobset.and_then(|jobset| self.pods.leave(uid, jobset));
        if let Some(pod) = pod.filter(|_| known.bytes > 0) {
            self.room.give_back(pod, known.bytes);
        }
        let node = known.node?;
        self.nodes.give_back(uid, &node);
        Some(node)
    }
}
