//! The nodes, what pods use of them, and the pods of gangs, as the watches show them.
//!
//! Promises: the controller's own writes show at once. An older state never replaces a newer one. A
//! pod that has ended or is gone uses nothing. A new list replaces everything at once. Pods of
//! gangs, their needs and what bound pods take have memory limits in each namespace. A pod whose
//! needs are beyond them counts as one that may run anywhere, a pod of a gang beyond them as one
//! that is in no gang, and a bound pod beyond them as one that takes nothing.

mod needs_room;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::runtime::watcher::Event;
use lockstep_api::annotations;
use lockstep_core::gang::{Footprint, Needs, Node, Pod};

use super::lean_objects::{SeenNode, SeenPod};
use crate::k8s::watch::cache_entry::version;
use needs_room::NeedsRoom;

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
    listed_pods: HashMap<Uid, TrackedPod>,
    /// Large needs of listed pods: those of the last pod of each JobSet.
    listed_needs: HashMap<Uid, Arc<Needs>>,
    listed_room: NeedsRoom,
    ready: Ready,
    room: NeedsRoom,
}

/// Which lists have been complete once.
#[derive(Debug, Default)]
struct Ready {
    nodes: bool,
    pods: bool,
}

#[derive(Debug, Default)]
struct Nodes {
    /// Nodes without their pods.
    bare: BTreeMap<String, Node>,
    /// What pods use of each node, by the pod's UID. It includes nodes that the watch does not show
    /// yet.
    taken: HashMap<String, HashMap<Uid, Footprint>>,
    /// `bare` minus what pods use.
    loaded: BTreeMap<String, Node>,
}

#[derive(Debug, Default)]
struct Pods {
    known: HashMap<Uid, PodEntry>,
    /// The pods of gangs, by the UID of their JobSet.
    members: HashMap<Uid, BTreeMap<Uid, Arc<Pod>>>,
}

/// Where a pod is found in the other maps.
#[derive(Debug)]
struct PodEntry {
    revision: u64,
    namespace: String,
    /// The node that it uses.
    node: Option<String>,
    /// The UID of its JobSet, if it is in a gang.
    jobset: Option<Uid>,
    /// The room that it takes as a pod of a gang.
    room: TakenRoom,
    /// The room that it takes as a bound pod, in bytes.
    bound: usize,
}

/// The room that a pod of a gang takes, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct TakenRoom {
    /// Without the long lists of its needs.
    member: usize,
    /// These lists, unless other pods share them.
    needs: usize,
}

/// What is kept of a pod.
#[derive(Debug, PartialEq)]
struct TrackedPod {
    revision: u64,
    namespace: String,
    footprint: Option<Footprint>,
    member: Option<Pod>,
}

impl TrackedPod {
    /// `None` if the pod uses nothing and is in no gang.
    fn of(SeenPod(pod): &SeenPod) -> Option<(Uid, Self)> {
        let annotations = pod.metadata.annotations.as_ref();
        let in_gang = annotations.is_some_and(|annotations| annotations.contains_key(annotations::GANG));
        let kept = Self {
            revision: version(&pod.metadata),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            footprint: Footprint::of(pod),
            member: in_gang.then(|| Pod::of(pod)).flatten(),
        };
        kept.is_of_interest()
            .then(|| pod.metadata.uid.clone())
            .flatten()
            .map(|uid| (uid, kept))
    }

    fn is_of_interest(&self) -> bool {
        self.footprint.is_some() || self.member.is_some()
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
    /// Returns the room that it takes; `None` if there is none.
    fn join(&mut self, uid: &str, mut pod: Pod, room: &mut NeedsRoom) -> Option<TakenRoom> {
        // Most pods of a gang have the same needs.
        let siblings = self.members.get(&pod.jobset_uid);
        let siblings = siblings.into_iter().flat_map(BTreeMap::values);
        let same = siblings.take(2).find(|sibling| sibling.needs == pod.needs);
        let shared = same.map(|sibling| Arc::clone(&sibling.needs));
        let member = room.admit(&pod, shared.is_some())?;
        let needs = match shared {
            Some(shared) => {
                pod.needs = shared;
                0
            }
            None => room.take(&mut pod),
        };
        let siblings = self.members.entry(pod.jobset_uid.clone()).or_default();
        siblings.insert(uid.to_owned(), Arc::new(pod));
        Some(TakenRoom { member, needs })
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

/// True if this is the known pod, which is kept without its lists.
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
    /// True if both lists have been complete once.
    pub(super) fn is_ready(&self) -> bool {
        self.ready.nodes && self.ready.pods
    }

    /// The nodes minus what pods use, by name.
    pub(super) fn nodes(&self) -> &BTreeMap<String, Node> {
        &self.nodes.loaded
    }

    /// The pods of the gangs of a JobSet, by its UID.
    pub(super) fn members(&self, jobset: &str) -> Vec<Arc<Pod>> {
        let members = self.pods.members.get(jobset);
        members.into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Updates the nodes. Returns true if something has changed.
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
                // Every kubelet reports every few minutes, usually without a change.
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

    /// Updates the pods. Returns true if something has changed.
    pub(super) fn apply_pod(&mut self, event: &Event<SeenPod>) -> bool {
        match event {
            Event::Init => {
                self.listed_pods.clear();
                self.listed_needs.clear();
                self.listed_room = NeedsRoom::default();
                false
            }
            Event::InitApply(pod) => {
                let kept = TrackedPod::of(pod).map(|(uid, kept)| (uid, self.listed(kept)));
                let has_room = |(_, kept): &(Uid, TrackedPod)| kept.is_of_interest();
                self.listed_pods.extend(kept.filter(has_room));
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

    /// Applies the API server's answer to a write. An unknown pod is gone.
    pub(super) fn wrote_pod(&mut self, pod: &SeenPod) {
        let uid = pod.0.metadata.uid.as_deref().unwrap_or_default();
        if self.pods.known.contains_key(uid) {
            self.saw(pod);
        }
    }

    fn saw(&mut self, pod: &SeenPod) -> bool {
        let uid = pod.0.metadata.uid.as_deref().unwrap_or_default();
        let seen = TrackedPod::of(pod);
        match (self.pods.known.get(uid), &seen) {
            (None, None) => return false,
            (Some(known), _) if known.revision > version(&pod.0.metadata) => return false,
            (Some(known), Some((_, kept))) if self.is_same(uid, known, kept) => return false,
            _ => {}
        }
        let was_known = self.pods.known.contains_key(uid);
        let before = self.remove(uid);
        let after = seen.and_then(|(uid, kept)| self.put(uid, kept));
        for node in before
            .iter()
            .chain(after.iter().filter(|after| before.as_ref() != Some(after)))
        {
            self.nodes.reload(node);
        }
        was_known || self.pods.known.contains_key(uid)
    }

    /// Adds a pod of a list. It takes room, as it does after the list. If it needs the same as the
    /// last pod of its JobSet, the two share these needs.
    fn listed(&mut self, mut kept: TrackedPod) -> TrackedPod {
        let namespace = &kept.namespace;
        let binds = |footprint: &Footprint| self.listed_room.bind(namespace, footprint).is_some();
        kept.footprint = kept.footprint.filter(binds);
        // Needs that no other pod shares take room after the list.
        let has_room = |pod: &Pod| self.listed_room.admit(pod, true).is_some();
        kept.member = kept.member.filter(has_room);
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

    /// True if nothing but the pod's revision has changed.
    fn is_same(&self, uid: &str, known: &PodEntry, seen: &TrackedPod) -> bool {
        let node = known.node.as_ref();
        let footprint = node.and_then(|node| self.nodes.taken.get(node)?.get(uid));
        let jobset = known.jobset.as_ref();
        let member = jobset.and_then(|jobset| self.pods.members.get(jobset)?.get(uid));
        let is_same_member = match (member, &seen.member) {
            (Some(known), Some(seen)) => {
                let has_room = || self.room.room.has(&seen.namespace, seen.needs.bytes());
                known.as_ref() == seen || is_same_in_short(known, seen) && !has_room()
            }
            (None, Some(seen)) => !self.room.admits(seen),
            (known, seen) => known.is_none() && seen.is_none(),
        };
        let is_same_footprint = match (footprint, &seen.footprint) {
            (None, Some(footprint)) => !self.room.binds(&seen.namespace, footprint),
            (known, seen) => known == seen.as_ref(),
        };
        is_same_footprint && is_same_member
    }

    /// Adds a pod, unless there is no room, and returns its node.
    fn put(&mut self, uid: Uid, kept: TrackedPod) -> Option<String> {
        let mut known = PodEntry {
            revision: kept.revision,
            namespace: kept.namespace,
            node: None,
            jobset: None,
            room: TakenRoom::default(),
            bound: 0,
        };
        if let Some(footprint) = kept.footprint
            && let Some(bytes) = self.room.bind(&known.namespace, &footprint)
        {
            known.bound = bytes;
            known.node = Some(footprint.node.clone());
            self.nodes.take(&uid, footprint);
        }
        if let Some(member) = kept.member {
            let jobset = member.jobset_uid.clone();
            if let Some(room) = self.pods.join(&uid, member, &mut self.room) {
                known.room = room;
                known.jobset = Some(jobset);
            }
        }
        let node = known.node.clone();
        if known.node.is_some() || known.jobset.is_some() {
            self.pods.known.insert(uid, known);
        }
        node
    }

    /// Removes a pod, and returns its node.
    fn remove(&mut self, uid: &str) -> Option<String> {
        let known = self.pods.known.remove(uid)?;
        let jobset = known.jobset.as_ref();
        let pod = jobset.and_then(|jobset| self.pods.leave(uid, jobset));
        if let Some(pod) = pod {
            self.room.dismiss(&pod, known.room.member);
            if known.room.needs > 0 {
                self.room.give_back(pod, known.room.needs);
            }
        }
        let node = known.node?;
        self.room.unbind(&known.namespace, known.bound);
        self.nodes.give_back(uid, &node);
        Some(node)
    }
}
