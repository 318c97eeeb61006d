//! Starts and stops group tasks as JobSets come and go.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::jobset::in_place::{self, Agents};
use lockstep_core::jobset::limits::{self, Size};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::board::Board;
use super::budget::{Budget, Demand};
use super::clock::Clock;
use super::pod_replacer;
use super::recorder::RestartRecorder;
use super::task::{self, Assignment, Context, End};
use crate::hub::Registry;
use crate::k8s::backwards::Backwards;
use crate::k8s::watch::Stores;
use crate::k8s::watch::light::{light, weight};
use crate::k8s::watch::notify::Notified;

/// Reports of JobSets that never became groups are dropped after this long.
const SWEEP: Duration = Duration::from_secs(600);

/// A node whose daemon has been away for longer than this, and whose reports are all dropped, is
/// forgotten. Most likely it was removed.
const AWAY: Duration = Duration::from_secs(3600);

/// How often JobSets without room to become groups are checked again.
const NO_ROOM: Duration = Duration::from_secs(30);

/// The usual weight of a JobSet, and what each of its pods adds.
const USUAL: usize = 64;
const USUAL_POD: usize = 8;

/// When a group is checked again after it ended because the API server did not know its JobSet.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// How long a new leader waits until all groups are taken over, and how often it checks.
const TAKEOVER: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);
/// JobSets that it checks before it yields to other tasks.
const AT_ONCE: usize = 100;

/// Runs one task per group.
pub struct Manager {
    context: Context,
    registry: Arc<Registry>,
    groups: HashMap<ObjectRef<JobSet>, TaskHandle>,
    budget: Budget<ObjectRef<JobSet>>,
    /// JobSets that would be groups, but have no room.
    without_room: BTreeSet<(String, String)>,
    tasks: JoinSet<(ObjectRef<JobSet>, u64)>,
    /// The runtime that the tasks run on.
    on: Handle,
    /// How many tasks were started.
    started: u64,
    shutdown: CancellationToken,
}

/// What all groups share.
pub struct Dependencies {
    /// The client of the API server.
    pub client: kube::Client,
    /// The caches of the watches.
    pub stores: Stores,
    /// The node daemons and their reports.
    pub registry: Arc<Registry>,
    /// Publishes restarts as logs, events, metrics and traces.
    pub recorder: RestartRecorder,
    /// How agents get into containers.
    pub agents: Agents,
    /// True if execution attempts are counted (KEP-1282).
    pub counts_attempts: bool,
    /// Set if lost pods are replaced here and not by the Job controller.
    pub replaces_pods: bool,
    /// Takes reports of an API server that has gone back to an older state.
    pub backwards: Backwards,
    /// The state of all groups, for the platform API.
    pub board: Arc<Board>,
}

/// The running task of a group.
struct TaskHandle {
    uid: String,
    /// Distinguishes this task from others of the same JobSet.
    serial: u64,
    changed: Arc<Notify>,
    stop: CancellationToken,
}

impl Manager {
    /// A manager without groups. Its tasks run on the runtime that calls this, not on the one that
    /// polls the manager. They end with `shutdown`.
    #[must_use]
    pub fn new(dependencies: Dependencies, shutdown: CancellationToken) -> Self {
        let Dependencies {
            client,
            stores,
            registry,
            recorder,
            agents,
            counts_attempts,
            replaces_pods,
            backwards,
            board,
        } = dependencies;
        let context = Context {
            client,
            stores,
            clock: Clock::start(),
            recorder,
            agents,
            counts_attempts,
            replacement_permits: replaces_pods.then(pod_replacer::permits),
            board,
            backwards,
            registry: Arc::clone(&registry),
        };
        Self {
            context,
            registry,
            groups: HashMap::new(),
            budget: Budget::default(),
            without_room: BTreeSet::new(),
            tasks: JoinSet::new(),
            on: Handle::current(),
            started: 0,
            shutdown,
        }
    }

    /// Starts and stops the tasks of the JobSets that `changes` names until `shutdown` is
    /// cancelled, then waits for all tasks. Workers keep running.
    pub async fn run(mut self, mut changes: Notified<ObjectRef<JobSet>>) {
        let mut sweep = tokio::time::interval(SWEEP);
        let mut no_room = tokio::time::interval(NO_ROOM);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => break,
                key = changes.next() => match key {
                    Some(key) => self.refresh(key),
                    None => break,
                },
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok((key, serial)) => self.ended(key, serial),
                    Err(error) => tracing::error!(%error, "group task failed"),
                },
                _ = sweep.tick() => {
                    self.registry.sweep(SWEEP);
                    self.registry.forget_nodes(AWAY);
                }
                _ = no_room.tick() => {
                    for (namespace, name) in self.without_room.clone() {
                        self.refresh(ObjectRef::new(&name).within(&namespace));
                    }
                }
            }
        }
        self.shutdown.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    fn refresh(&mut self, key: ObjectRef<JobSet>) {
        let jobset = group_of(&self.context.stores, &self.context.agents, &key);
        let jobset = self.with_room(&key, jobset);
        match (jobset, self.groups.get(&key)) {
            (Some(jobset), Some(group)) if group.uid == jobset.uid_str() => group.changed.notify_one(),
            (Some(jobset), _) => {
                self.end(&key);
                self.start(key, &jobset);
            }
            (None, Some(_)) => self.end(&key),
            (None, None) => {}
        }
    }

    /// The JobSet, if there is room for its group.
    fn with_room(&mut self, key: &ObjectRef<JobSet>, jobset: Option<JobSet>) -> Option<JobSet> {
        let name = || (key.namespace.clone().unwrap_or_default(), key.name.clone());
        let Some(jobset) = jobset else {
            self.budget.release(key);
            self.without_room.remove(&name());
            return None;
        };
        let pods = self.context.stores.pods_of(key).len();
        // A JobSet that is larger than usual for its pods pays for its own memory.
        let usual = pods.saturating_mul(USUAL_POD).saturating_add(USUAL);
        let own = weight(&jobset).saturating_sub(usual);
        let own = u64::try_from(own).unwrap_or(u64::MAX);
        let workers = Size::of(&jobset).workers.saturating_add(own);
        // While its Jobs are recreated, a group has no pods for a moment.
        let is_group = self
            .groups
            .get(key)
            .is_some_and(|group| group.uid == jobset.uid_str());
        let demand = Demand { workers, pods };
        let has_room = match is_group {
            true => self.budget.keeps(key.clone(), jobset.ns(), demand),
            false => self.budget.takes(key.clone(), jobset.ns(), demand),
        };
        if has_room {
            self.without_room.remove(&name());
            return Some(jobset);
        }
        if self.without_room.insert(name()) {
            tracing::warn!(
                namespace = jobset.ns(),
                jobset = jobset.name(),
                workers,
                pods,
                "no room for a group that has almost no pods; it is coordinated once its pods exist"
            );
        }
        None
    }

    fn start(&mut self, key: ObjectRef<JobSet>, jobset: &JobSet) {
        let uid = jobset.uid_str().to_owned();
        let changed = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let assignment = Assignment {
            key: key.clone(),
            uid: uid.clone(),
            link: self.registry.claim(&uid),
            changed: Arc::clone(&changed),
            stop: stop.clone(),
            shutdown: self.shutdown.clone(),
        };
        // The span has the highest level, so that every log line names its group.
        let span = tracing::error_span!("group", namespace = jobset.ns(), jobset = jobset.name());
        let (stopped, shutdown) = (stop.clone(), self.shutdown.clone());
        self.started += 1;
        let serial = self.started;
        let (context, of) = (self.context.clone(), key.clone());
        let looked_after = async move {
            let end = task::run(context, assignment).await;
            let pause = async {
                match end {
                    // The group is taken over again later, if the JobSet still exists.
                    End::Gone => tokio::time::sleep(GIVEN_UP).await,
                    // Another task would stop workers for a restart whose status cannot be stored.
                    End::Pruned => std::future::pending().await,
                    End::Stopped => {}
                }
            };
            tokio::select! {
                () = stopped.cancelled() => {}
                () = shutdown.cancelled() => {}
                () = pause => {}
            }
            (of, serial)
        };
        self.tasks.spawn_on(looked_after.instrument(span), &self.on);
        let group = TaskHandle {
            uid,
            serial,
            changed,
            stop,
        };
        self.groups.insert(key, group);
    }

    /// Handles the end of a task. If it ended by itself, the JobSet is checked again.
    fn ended(&mut self, key: ObjectRef<JobSet>, serial: u64) {
        if self.groups.get(&key).is_some_and(|group| group.serial == serial) {
            self.end(&key);
            self.refresh(key);
        }
    }

    fn end(&mut self, key: &ObjectRef<JobSet>) {
        if let Some(group) = self.groups.remove(key) {
            group.stop.cancel();
            tracing::info!(
                namespace = key.namespace,
                jobset = key.name,
                "stopped coordinating the group"
            );
        }
    }
}

/// True if the JobSet's workers are restarted together now.
#[must_use]
pub fn is_group(jobset: &JobSet, agents: &Agents) -> bool {
    jobset.is_managed_here()
        && !jobset.is_finished()
        && !jobset.is_deleting()
        && in_place::mode(jobset, agents).is_some_and(|group| group.level.is_some())
        // Kubernetes restarts the workers of a JobSet over the limits.
        && !limits::is_over(jobset)
}

/// The JobSet, if it is a group and none of its pods contains upstream's agent.
fn group_of(stores: &Stores, agents: &Agents, key: &ObjectRef<JobSet>) -> Option<JobSet> {
    if stores.is_seen_in_part(key) {
        return None;
    }
    let jobset = light(stores.in_place(key).filter(|jobset| is_group(jobset, agents))?);
    let pods = stores.pods_of(key);
    // The reconciler checks the same pods.
    let reports_by_annotation = pods.iter().any(|pod| pod.summary.agent.attempt.is_some());
    (!reports_by_annotation).then_some(jobset)
}

/// Resolves when each group in the stores is on the board, so that no reader takes a group for gone
/// while it is taken over. It waits at most [`TAKEOVER`]. Cancel-safe.
pub async fn taken_over(stores: Stores, agents: Agents, board: Arc<Board>) {
    let listed = stores.jobsets.state();
    let mut awaited: Vec<ObjectRef<JobSet>> = listed.iter().map(|jobset| jobset.key()).collect();
    let is_awaited = |key: &ObjectRef<JobSet>| {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        !board.has_group(namespace, &key.name) && group_of(&stores, &agents, key).is_some()
    };
    let all = async {
        while !awaited.is_empty() {
            let mut left = Vec::new();
            for some in awaited.chunks(AT_ONCE) {
                left.extend(some.iter().filter(|key| is_awaited(key)).cloned());
                tokio::task::yield_now().await;
            }
            awaited = left;
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(TAKEOVER, all).await.is_err() {
        tracing::warn!("some groups have not been taken over yet");
    }
}
