//! What the controller knows of JobSets with gangs, and of what it has written.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::{JobSet, JobSetSpec};
use lockstep_core::gang::{self, Decision, GroupPolicy, PodGroupRef, World};
use lockstep_core::jobset::limits::Size;
use lockstep_core::jobset::plan::Event;
use tokio::time::Instant;

use crate::controllers::gang::task::{Key, Outcome, Task};
use crate::controllers::gang::write_failures::WriteFailures;
use crate::controllers::gang::writer::Writer;
use crate::k8s::watch::Stores;
use crate::k8s::watch::decode;
use crate::k8s::watch::light::weight;
use crate::k8s::watch::namespace_budget::Budget;

/// How often a status is written if only its message has changed.
pub(super) const REPEAT: Duration = Duration::from_secs(10);
/// How often a PodGroup is created again, in case it was deleted.
const MAKE_AGAIN: Duration = Duration::from_secs(300);
/// How often JobSets without room are checked again.
pub(super) const NO_ROOM: Duration = Duration::from_secs(30);

/// What is known of JobSets with gangs.
pub(super) struct View {
    stores: Stores,
    pub(super) jobsets: BTreeMap<Key, GangJobSet>,
    pub(super) room: Budget,
    /// JobSets without room, and their weight.
    pub(super) without_room: BTreeMap<Key, usize>,
    /// When these are checked again.
    look_again: Instant,
    /// Events about them.
    pub(super) events: Vec<(ObjectReference, Event)>,
    /// When the message of a JobSet was last written.
    written: HashMap<Key, Instant>,
    /// The PodGroups of a JobSet that exist, by name.
    groups: HashMap<Key, HashMap<String, MadePodGroup>>,
    pub(super) write_failures: WriteFailures,
}

/// A PodGroup that was created or found.
pub(super) struct MadePodGroup {
    /// `None` if it is not known.
    policy: Option<GroupPolicy>,
    at: Instant,
}

impl MadePodGroup {
    fn is(&self, wanted: &PodGroupRef) -> bool {
        !wanted.exact || self.policy == Some(wanted.policy)
    }
}

pub(super) struct GangJobSet {
    jobset: Arc<JobSet>,
    jobs: Vec<Arc<Job>>,
    /// The weight of the JobSet and its Jobs.
    weight: usize,
}

/// What to do, and how soon to decide again.
pub(super) struct Decided {
    pub(super) jobsets: Vec<Decision>,
    pub(super) wake: Option<Duration>,
}

impl View {
    /// No JobSet is known.
    pub(super) fn new(stores: Stores) -> Self {
        Self {
            jobsets: BTreeMap::new(),
            room: stores.budgets().gangs.clone(),
            stores,
            without_room: BTreeMap::new(),
            look_again: Instant::now(),
            events: Vec::new(),
            written: HashMap::new(),
            groups: HashMap::new(),
            write_failures: WriteFailures::default(),
        }
    }

    /// Forgets which PodGroups exist: the API server serves another version, or none.
    pub(super) fn forget_pod_groups(&mut self) {
        self.groups.clear();
    }

    /// Checks JobSets without room again, if that is due. Returns when it is due next.
    pub(super) fn look_again(&mut self) -> Option<Instant> {
        if self.without_room.is_empty() {
            return None;
        }
        if self.look_again <= Instant::now() {
            self.look_again = Instant::now() + NO_ROOM;
            for (key, weight) in self.without_room.clone() {
                if self.room.has(&key.0, weight) {
                    self.refresh(&object(&key));
                }
            }
        }
        Some(self.look_again)
    }

    /// Reads a JobSet again. One that is kept already may exceed the room by a quarter before it is
    /// dropped, because the status of a starting gang makes it heavier.
    pub(super) fn refresh(&mut self, object: &ObjectRef<JobSet>) {
        let key = (object.namespace.clone().unwrap_or_default(), object.name.clone());
        let Some((jobset, jobs)) = self.stores.gang(object) else {
            self.drop(&key);
            self.without_room.remove(&key);
            self.written.remove(&key);
            self.groups.remove(&key);
            self.write_failures.forget(object);
            return;
        };
        // A suspended JobSet needs no decision.
        let (jobset, jobs) = match jobset.is_suspended() {
            true => (Arc::new(suspended(&jobset)), Vec::new()),
            false => (jobset, jobs),
        };
        let weight = weight_of(&jobset, jobs.len());
        let before = self.jobsets.get(&key).map(|known| known.weight);
        if self.room.takes(&key.0, before, weight) {
            self.without_room.remove(&key);
            self.jobsets.insert(key, GangJobSet { jobset, jobs, weight });
            return;
        }
        self.drop(&key);
        if self.without_room.insert(key, weight).is_none() {
            let why = "the JobSets with gangs of this namespace take more memory than the control plane has for them; the gangs of this one wait until others have gone (the share grows with the control plane's memory limit)";
            self.events
                .push(decode::fault(&*jobset, decode::NO_ROOM, why.to_owned()));
        }
    }

    fn drop(&mut self, key: &Key) {
        if let Some(known) = self.jobsets.remove(key) {
            self.room.release(&key.0, known.weight);
        }
    }

    /// Decides about all gangs. Returns `None` if not all of the cluster is known yet.
    pub(super) fn decide(&self, writer: &Writer) -> Option<Decided> {
        let world = writer.watched.with(|cluster| {
            cluster.is_ready().then(|| {
                let members = |known: &GangJobSet| {
                    let uid = known.jobset.metadata.uid.as_deref().unwrap_or_default();
                    gang::members(&known.jobset, &known.jobs, &cluster.members(uid))
                };
                World {
                    nodes: cluster.nodes().clone(),
                    jobsets: self.jobsets.values().filter_map(members).collect(),
                    pod_groups_gone: writer.pod_groups.are_gone(),
                }
            })
        })?;
        let now = Timestamp::now();
        let decisions = gang::decide(&world, now);
        writer.gangs.waiting(decisions.waiting);
        let wake = decisions
            .wake_at
            .map(|at| now.duration_until(at).max(jiff::SignedDuration::ZERO));
        Some(Decided {
            jobsets: decisions.jobsets,
            wake: wake.and_then(|wake| wake.try_into().ok()),
        })
    }

    /// How soon a message that was held back can be written.
    pub(super) fn next_message(&self) -> Option<Duration> {
        let ages = self.written.values().map(Instant::elapsed);
        ages.filter_map(|age| REPEAT.checked_sub(age)).min()
    }

    /// The part of a decision to carry out now, without what is done already and without messages
    /// that would come too soon.
    pub(super) fn task(&mut self, mut decision: Decision) -> Option<Task> {
        let key = (decision.namespace.clone(), decision.name.clone());
        let known = self.jobsets.get(&key)?;
        if self.write_failures.keeps_off(&object(&key)) {
            return None;
        }
        if decision.write.as_ref().is_some_and(|write| !write.urgent) {
            let before = self.written.get(&key);
            if before.is_some_and(|at| at.elapsed() < REPEAT) {
                decision.write = None;
            }
        }
        let made = self.groups.entry(key.clone()).or_default();
        made.retain(|name, made| {
            let is_asked_for = decision.pod_groups.iter().any(|group| group.name == *name);
            is_asked_for && !decision.discard.contains(name) && made.at.elapsed() < MAKE_AGAIN
        });
        let is_made = |group: &PodGroupRef| made.get(&group.name).is_some_and(|made| made.is(group));
        decision.pod_groups.retain(|group| !is_made(group));
        // PodGroups are discarded only before another write.
        if decision.write.is_none() && decision.ungate.is_empty() && decision.pod_groups.is_empty() {
            return None;
        }
        let jobset = Arc::clone(&known.jobset);
        Some(Task {
            key,
            jobset,
            decision,
        })
    }

    /// Records that a message is being written.
    pub(super) fn begins(&mut self, task: &Task) {
        if task.writes_message() {
            self.written.insert(task.key.clone(), Instant::now());
        }
    }

    /// Applies the outcome of a task. Returns events for the user of the JobSet.
    pub(super) fn done(&mut self, done: Outcome) -> Vec<(Arc<JobSet>, Event)> {
        let now = Instant::now();
        if done.held_up {
            self.written.remove(&done.key);
        }
        let object = object(&done.key);
        for what in &done.worked {
            self.write_failures.worked(&object, what);
        }
        if done.conflicted {
            self.write_failures.conflicted(&object);
        } else {
            self.write_failures.settled(&object);
        }
        let mut events = Vec::new();
        if let Some(known) = self.jobsets.get(&done.key) {
            let new = done
                .failures
                .into_iter()
                .filter_map(|failure| self.write_failures.add(&known.jobset, failure));
            events.extend(new.map(|event| (Arc::clone(&known.jobset), event)));
        }
        if let Some(made) = self.groups.get_mut(&done.key) {
            let groups = done.groups.into_iter();
            made.extend(groups.map(|(name, policy)| (name, MadePodGroup { policy, at: now })));
        }
        // The next decision takes the write into account, even if the watch does not show it yet.
        self.refresh(&object);
        events
    }
}

/// The weight of a JobSet in kB: its own size, one for each existing Job, a quarter for each Job
/// that it asks for, and a sixteenth for each pod, because decisions make lists of them. A
/// suspended JobSet asks for none.
fn weight_of(jobset: &JobSet, jobs: usize) -> usize {
    let asked = Size::of(jobset);
    let asked = usize::try_from(asked.jobs / 4 + asked.workers / 16).unwrap_or(usize::MAX);
    weight(jobset).saturating_add(jobs).saturating_add(asked)
}

/// What is kept of a JobSet while it is suspended.
fn suspended(jobset: &JobSet) -> JobSet {
    JobSet {
        metadata: jobset.metadata.clone(),
        spec: JobSetSpec {
            suspend: Some(true),
            ..JobSetSpec::default()
        },
        status: None,
    }
}

pub(super) fn object((namespace, name): &Key) -> ObjectRef<JobSet> {
    ObjectRef::new(name).within(namespace)
}
