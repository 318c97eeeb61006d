//! The task that decides about all gangs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::{JobSet, JobSetSpec};
use lockstep_core::gang::{self, Decision, GroupPolicy, PodGroupRef, World};
use lockstep_core::jobset::limits::Size;
use lockstep_core::jobset::plan::Event;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::PodGroups;
use super::metrics::GangMetrics;
use super::task::{Done, Key, Task, carry_out};
use super::watch::Watched;
use super::write_failures::WriteFailures;
use super::writer::Writer;
use crate::controllers::restart::pace;
use crate::k8s::apply::events;
use crate::k8s::watch::Stores;
use crate::k8s::watch::decode;
use crate::k8s::watch::light::weight;
use crate::k8s::watch::namespace_budget::Budget;
use crate::k8s::watch::notify::Notified;
use crate::telemetry::metrics::Metrics;

#[cfg(test)]
mod tests;

/// Between two decisions, or longer where they take long: what comes meanwhile is decided about at once.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a status is written of which only the message has changed.
const REPEAT: Duration = Duration::from_secs(10);
/// How often a PodGroup is made that is not known to be gone.
const MAKE_AGAIN: Duration = Duration::from_secs(300);
/// JobSets that are written at the same time.
const AT_ONCE: usize = 32;

/// Starts gangs.
pub(crate) struct Controller {
    writer: Writer,
    publisher: events::Publisher,
    view: View,
}

/// What is known of JobSets with gangs.
struct View {
    stores: Stores,
    jobsets: BTreeMap<Key, Known>,
    room: Budget,
    /// JobSets for which there is no room, and what they weigh.
    without_room: BTreeMap<Key, usize>,
    /// When these are looked at again.
    look_again: Instant,
    /// What users are to be told of them.
    news: Vec<(ObjectReference, Event)>,
    /// When the message of a JobSet was last written.
    written: HashMap<Key, Instant>,
    /// The PodGroups of a JobSet that were made, by name.
    groups: HashMap<Key, HashMap<String, Made>>,
    write_failures: WriteFailures,
}

/// A PodGroup that was made, or found.
struct Made {
    /// As far as it is known.
    policy: Option<GroupPolicy>,
    at: Instant,
}

impl Made {
    fn is(&self, wanted: &PodGroupRef) -> bool {
        !wanted.exact || self.policy == Some(wanted.policy)
    }
}

struct Known {
    jobset: Arc<JobSet>,
    jobs: Vec<Arc<Job>>,
    /// What it takes, with its Jobs.
    weight: usize,
}

/// How often JobSets are looked at again for which there was no room.
const NO_ROOM: Duration = Duration::from_secs(30);

impl Controller {
    pub(crate) fn new(client: Client, stores: Stores, pod_groups: PodGroups, metrics: Arc<Metrics>) -> Self {
        let (news, publisher) = events::queue(client.clone());
        let gangs = GangMetrics::register(&metrics);
        Self {
            view: View {
                stores: stores.clone(),
                jobsets: BTreeMap::new(),
                room: stores.budgets().gangs.clone(),
                without_room: BTreeMap::new(),
                look_again: Instant::now(),
                news: Vec::new(),
                written: HashMap::new(),
                groups: HashMap::new(),
                write_failures: WriteFailures::default(),
            },
            writer: Writer {
                client,
                stores,
                watched: Watched::default(),
                pod_groups,
                metrics,
                gangs,
                news,
            },
            publisher,
        }
    }

    /// Starts the gangs of the JobSets that `changes` names, until `shutdown` is cancelled; then finishes what is under way.
    pub(crate) async fn run(self, changes: Notified<ObjectRef<JobSet>>, shutdown: CancellationToken) {
        let Self {
            writer,
            publisher,
            view,
        } = self;
        let decide = async move {
            let mut watches = JoinSet::new();
            let end = shutdown.child_token();
            follow(&writer, view, changes, &mut watches, &end).await;
            end.cancel();
            while watches.join_next().await.is_some() {}
        };
        tokio::join!(decide, publisher.run());
    }
}

async fn follow(
    writer: &Writer,
    mut view: View,
    mut changes: Notified<ObjectRef<JobSet>>,
    watches: &mut JoinSet<()>,
    end: &CancellationToken,
) {
    let mut wake: Option<Instant> = None;
    let mut took = Duration::ZERO;
    let mut served = writer.pod_groups.changes().fuse();
    loop {
        let timer = async {
            match wake {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let mut changed = Vec::new();
        tokio::select! {
            () = end.cancelled() => return,
            key = changes.next() => match key {
                Some(key) => changed.push(key),
                None => return,
            },
            () = writer.watched.changed.notified() => {}
            Some(()) = served.next() => {}
            () = timer => {}
        }
        while let Some(Some(key)) = changes.next().now_or_never() {
            changed.push(key);
        }
        let began = Instant::now();
        let again = pace::apart(took, || {
            changed.iter().for_each(|key| view.look(key));
            view.look_again()
        });
        for (regarding, event) in view.news.drain(..) {
            writer.news.add(regarding, event);
        }
        if view.jobsets.is_empty() {
            took = began.elapsed();
            writer.gangs.waiting(0);
            wake = again;
            let rest = tokio::time::sleep(pace::rest(took));
            if end.run_until_cancelled(rest).await.is_none() {
                return;
            }
            continue;
        }
        if watches.is_empty() {
            writer.watched.start(&writer.client, watches, end);
        }
        let decided = pace::apart(took, || view.decide(writer));
        took = began.elapsed();
        let pause = PAUSE.max(pace::rest(took));
        let Some(decided) = decided else {
            wake = again;
            if end.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            continue;
        };
        let done = act(writer, &mut view, decided.jobsets).await;
        // What was written may let something else be done, which the watches need not tell first.
        let at_once = done.then_some(Duration::ZERO);
        wake = [
            decided.wake,
            view.next_message(),
            view.write_failures.next(),
            at_once,
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|after| Instant::now() + after)
        .into_iter()
        .chain(again)
        .min();
        if end.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// What is to be done, and how soon to look again.
struct Decided {
    jobsets: Vec<Decision>,
    wake: Option<Duration>,
}

impl View {
    /// Looks again at JobSets for which there was no room, where there may be some now; returns when that is due next.
    fn look_again(&mut self) -> Option<Instant> {
        if self.without_room.is_empty() {
            return None;
        }
        if self.look_again <= Instant::now() {
            self.look_again = Instant::now() + NO_ROOM;
            for (key, weight) in self.without_room.clone() {
                if self.room.has(&key.0, weight) {
                    self.look(&object(&key));
                }
            }
        }
        Some(self.look_again)
    }

    /// Looks at a JobSet again. One that is kept is not dropped for what it weighs, but beyond a quarter more than there is: what a gang that starts is told makes it heavier.
    fn look(&mut self, object: &ObjectRef<JobSet>) {
        let key = (object.namespace.clone().unwrap_or_default(), object.name.clone());
        let Some((jobset, jobs)) = self.stores.gang(object) else {
            self.drop(&key);
            self.without_room.remove(&key);
            self.written.remove(&key);
            self.groups.remove(&key);
            self.write_failures.forget(object);
            return;
        };
        // Nothing is decided about one that is suspended.
        let (jobset, jobs) = match jobset.is_suspended() {
            true => (Arc::new(suspended(&jobset)), Vec::new()),
            false => (jobset, jobs),
        };
        let weight = weight_of(&jobset, jobs.len());
        let before = self.jobsets.get(&key).map(|known| known.weight);
        if self.room.takes(&key.0, before, weight) {
            self.without_room.remove(&key);
            self.jobsets.insert(key, Known { jobset, jobs, weight });
            return;
        }
        self.drop(&key);
        if self.without_room.insert(key, weight).is_none() {
            let why = "the JobSets with gangs of this namespace take more memory than the control plane has for them; the gangs of this one wait until others have gone (the share grows with the control plane's memory limit)";
            self.news
                .push(decode::fault(&*jobset, decode::NO_ROOM, why.to_owned()));
        }
    }

    fn drop(&mut self, key: &Key) {
        if let Some(known) = self.jobsets.remove(key) {
            self.room.release(&key.0, known.weight);
        }
    }

    /// Decides about all gangs; `None`: not all of the cluster is known yet.
    fn decide(&self, writer: &Writer) -> Option<Decided> {
        let world = writer.watched.with(|cluster| {
            cluster.is_ready().then(|| {
                let members = |known: &Known| {
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

    /// How soon a message may be written again that may have been held back.
    fn next_message(&self) -> Option<Duration> {
        let ages = self.written.values().map(Instant::elapsed);
        ages.filter_map(|age| REPEAT.checked_sub(age)).min()
    }
}

impl View {
    /// What of a decision is to be done now: not again what was done, and messages not all the time.
    fn task(&mut self, mut decision: Decision) -> Option<Task> {
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
            let is_asked_for = decision.groups.iter().any(|group| group.name == *name);
            is_asked_for && !decision.discard.contains(name) && made.at.elapsed() < MAKE_AGAIN
        });
        let is_made = |group: &PodGroupRef| made.get(&group.name).is_some_and(|made| made.is(group));
        decision.groups.retain(|group| !is_made(group));
        // What is discarded is so before a write.
        if decision.write.is_none() && decision.ungate.is_empty() && decision.groups.is_empty() {
            return None;
        }
        let jobset = Arc::clone(&known.jobset);
        Some(Task {
            key,
            jobset,
            decision,
        })
    }

    /// Remembers when a message is written.
    fn begins(&mut self, task: &Task) {
        if task.writes_message() {
            self.written.insert(task.key.clone(), Instant::now());
        }
    }

    /// Returns what the user of the JobSet is to be told.
    fn done(&mut self, done: Done) -> Vec<(Arc<JobSet>, Event)> {
        let now = Instant::now();
        if done.held_up {
            self.written.remove(&done.key);
        }
        let object = object(&done.key);
        for what in &done.worked {
            self.write_failures.worked(&object, what);
        }
        self.write_failures.settled(&object, done.conflicted);
        let mut news = Vec::new();
        if let Some(known) = self.jobsets.get(&done.key) {
            let told = done
                .failures
                .into_iter()
                .filter_map(|failure| self.write_failures.add(&known.jobset, failure));
            news.extend(told.map(|event| (Arc::clone(&known.jobset), event)));
        }
        if let Some(made) = self.groups.get_mut(&done.key) {
            let groups = done.groups.into_iter();
            made.extend(groups.map(|(name, policy)| (name, Made { policy, at: now })));
        }
        // What was written is decided on next, whether or not the watch shows it yet.
        self.look(&object);
        news
    }
}

/// What a JobSet takes, in kB: itself, one for each of its Jobs that is there, and of what it asks for a quarter for each Job and a sixteenth for each pod, of which decisions
/// make lists. Nothing of that is decided about one that is suspended.
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

fn object((namespace, name): &Key) -> ObjectRef<JobSet> {
    ObjectRef::new(name).within(namespace)
}

/// Carries out decisions. True: something was done.
async fn act(writer: &Writer, view: &mut View, decisions: Vec<Decision>) -> bool {
    let mut tasks: Vec<Task> = decisions.into_iter().filter_map(|one| view.task(one)).collect();
    // Messages make no gang wait that can start: it is looked again at once.
    if !tasks.iter().all(Task::only_tells) {
        tasks.retain(|task| !task.only_tells());
    }
    tasks.iter().for_each(|task| view.begins(task));
    let done: Vec<Done> = stream::iter(tasks)
        .map(|task| carry_out(writer, task))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let any = !done.is_empty();
    for done in done {
        for (jobset, event) in view.done(done) {
            writer.news.add(events::regarding(&*jobset), event);
        }
    }
    any
}
