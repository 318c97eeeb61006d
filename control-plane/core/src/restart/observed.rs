//! What the coordinator sees: pods and Jobs from the API server, reports from the node daemons, and what is durable.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::WorkerRestartRequest;
pub use lockstep_protocol::{Exit, Heartbeat};

use super::{Epoch, Generation, Identity, Incarnation, RestartLevel, UnixNanos};

/// Everything that one decision is made from. Built anew for each step; the coordinator keeps no other view of the world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The workers that the created Jobs of the current recreation should have.
    pub workers: BTreeMap<Identity, Worker>,
    /// Pods of earlier recreations that still exist. New workers wait until there are none.
    pub old_pods: usize,
    /// One of them.
    pub old_pod: Option<PodFact>,
    /// Names of the replicatedJobs whose Jobs have all finished.
    pub finished_stages: BTreeSet<String>,
    /// Jobs of replicatedJobs that have none on purpose: nobody has lost their workers.
    pub unwanted_jobs: BTreeSet<String>,
    /// Jobs whose gang has yet to come together: no worker of theirs is expected.
    pub waiting_jobs: BTreeSet<String>,
    /// The newest report of each incarnation, with the node that sent it. Only of pods that exist (live or terminal), belong to the current
    /// recreation and are bound to the node that reports them.
    pub reports: BTreeMap<Incarnation, Report>,
    /// Nodes whose daemon has sent a snapshot to this leader.
    pub heard_nodes: BTreeSet<String>,
    /// What the API server has confirmed of `status.inPlaceRestart`.
    pub durable: Durable,
    /// What the JobSet's spec and annotations say.
    pub policy: Policy,
    /// Whether `spec.suspend` is set.
    pub suspended: bool,
    /// Token of the latest restart that a person or a platform has asked for.
    pub manual_request: Option<String>,
    /// The latest restart of some workers alone that a person or a platform has asked for.
    pub worker_restart_request: Option<WorkerRestartRequest>,
}

/// One expected worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worker {
    /// Name of the replicatedJob: the stage.
    pub stage: String,
    /// Live (not terminal) pods of this index, normally one.
    pub pods: Vec<PodFact>,
    /// Whether the Job counts this index as completed.
    pub completed: bool,
    /// Whether the Job counts this index as failed for good: the others go on without it.
    pub failed: bool,
    /// Whether the Job has failed, or its controller is about to fail it and ends its pods.
    pub ending: bool,
    /// Whether the Job may succeed before all of its workers have: its pods are then ended.
    pub ends_early: bool,
    /// Whether its Job takes the deletion of its pod for a failure: by `backoffLimitPerIndex`, or a rule of the podFailurePolicy that fits how agents
    /// and workers end then. Nobody deletes it for a restart.
    pub keeps_pod: bool,
    /// When the Job controller fails the Job because its time is over, and ends its pods.
    pub ends_at: Option<UnixNanos>,
    /// How long the Job controller waits before it replaces a lost pod, milliseconds, as far as the Job's status tells.
    pub back_off_ms: u64,
    /// Whether it is above the minimum of its gang, or of a set whose size changes: it may never come, and joins when it does.
    pub optional: bool,
    /// How it is restarted in place: `Process`, or `Container` where it has no agent.
    pub level: RestartLevel,
    /// Whether it cannot be restarted in place at all: its pod was changed after its template was judged, so that it has no agent.
    pub stays_down: bool,
    /// What its failures concern.
    pub scope: Scope,
}

/// What a failure, and the restart that it leads to, concerns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All workers of the group.
    #[default]
    Group,
    /// The worker that has failed, alone.
    Worker,
}

impl Scope {
    /// The name used in annotations, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Worker => "worker",
        }
    }
}

/// What matters of one live pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFact {
    /// UID of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Node that it is bound to, if any.
    pub node: Option<String>,
    /// Whether kubelet reports it as Running.
    pub running: bool,
    /// Whether Kubernetes has marked it as not ready because its node does not report any more.
    pub node_lost: bool,
    /// Whether it is being deleted.
    pub deleting: bool,
}

/// Phase of an incarnation as its daemon reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The agent has registered and has never started its worker. Without an agent: the worker runs, and belongs to no generation yet.
    Fresh,
    /// The worker process is being started.
    Starting,
    /// The worker process runs.
    Running,
    /// Signalled for a restart; processes remain.
    Stopping,
    /// No process remains; waits for a release of the report's generation.
    Parked,
    /// The worker exited by itself, not 0.
    Exited(Exit),
    /// The worker exited 0 before any stop signal.
    Done,
    /// The daemon, or the link to it, is away. Evidence of nothing.
    Unlinked,
    /// The container is gone, as observed by the daemon.
    Lost(Exit),
}

/// The newest report of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which worker this is an incarnation of.
    pub identity: Identity,
    /// Node whose daemon reported it.
    pub node: String,
    /// Name of the pod, for people.
    pub pod_name: String,
    /// Its phase.
    pub phase: Phase,
    /// The count that it runs or parks at.
    pub generation: Generation,
    /// Highest counter that its agent has seen.
    pub counter: u32,
    /// When the phase was entered, or the heartbeat was missed, by the node's clock.
    pub since: UnixNanos,
    /// What its heartbeat says; meaningful where it runs.
    pub heartbeat: Heartbeat,
    /// Of a container that ended, was made without its agent and was never stopped for a restart: the generation at which its group was released while
    /// it ran.
    pub released_at: Option<Generation>,
}

impl Report {
    /// Becomes the newer one. False: they are the same.
    pub fn follow(&mut self, newer: &Self) -> bool {
        let Self {
            identity,
            node,
            pod_name,
            phase,
            generation,
            counter,
            since,
            heartbeat,
            released_at,
        } = newer;
        if (&self.identity, &self.node, &self.pod_name) != (identity, node, pod_name) {
            self.clone_from(newer);
            return true;
        }
        let news = (*phase, *generation, *counter, *since, *heartbeat, *released_at);
        let known = (
            self.phase,
            self.generation,
            self.counter,
            self.since,
            self.heartbeat,
            self.released_at,
        );
        (
            self.phase,
            self.generation,
            self.counter,
            self.since,
            self.heartbeat,
            self.released_at,
        ) = news;
        news != known
    }
}

/// `status.inPlaceRestart`, as far as decisions depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durable {
    /// Epoch under which it was written.
    pub epoch: Epoch,
    /// Desired generation.
    pub generation: Generation,
    /// The highest generation given, to all or to one worker alone; 0: none above `generation`.
    pub latest: Generation,
    /// Workers that are being restarted alone, and the generation that each is to run.
    pub worker_restarts: BTreeMap<Identity, Generation>,
    /// The last generation that all workers have run.
    pub released: Generation,
    /// Counted restarts so far.
    pub counter: u32,
    /// Stages all of whose workers have run since they were (re)created.
    pub started: BTreeSet<String>,
    /// The optional workers that have run since they were (re)created, as [`Identity::place`] names them. Others are not waited for.
    pub joined: BTreeSet<String>,
    /// Phase at the time of the write.
    pub phase: DurablePhase,
    /// Cause of the last restart.
    pub cause: Option<Cause>,
    /// Token of the latest manual request that has been acted upon.
    pub handled_request: Option<String>,
    /// The latest request to restart some workers alone that has been acted upon, as its annotation has it.
    pub handled_worker_restart: Option<String>,
    /// The highest level that the latest restart has taken, so far.
    pub level: Option<RestartLevel>,
}

/// The states of the coordinator, as they stand in the status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DurablePhase {
    /// All released workers run the same generation.
    #[default]
    InSync,
    /// A restart in place is under way: workers stop, park at the desired generation and are released.
    Stopping,
    /// The child Jobs are made anew.
    Recreating,
    /// maxRestarts is exhausted.
    Failed,
}

/// Why a group restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Kind of evidence.
    pub reason: Reason,
    /// The worker concerned.
    pub identity: Option<Identity>,
    /// Name of its pod, empty where unknown.
    pub pod: String,
    /// Its node, empty where unknown.
    pub node: String,
    /// How it ended, where known.
    pub exit: Option<Exit>,
    /// When it happened by the node's clock, where known.
    pub at: Option<UnixNanos>,
}

/// Kinds of evidence that start a restart or a recreation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The worker process exited by itself.
    WorkerExited,
    /// The container went away under the worker.
    ContainerLost,
    /// The pod was deleted, evicted or failed.
    PodLost,
    /// Not all workers were running again within `inplace-timeout`.
    TimedOut,
    /// A worker of an unfinished stage is already done and cannot be run again in place.
    WorkDone,
    /// A worker's pod was changed so that it has no agent, and nobody starts it at a release.
    StaysDown,
    /// Somebody has asked for it.
    ManualRequest,
    /// A report contradicts the protocol.
    ProtocolError,
    /// The Job controller would replace a lost pod only after `inplace-timeout`.
    ReplacementLate,
    /// The worker runs, but has given no heartbeat within `lockstep.dev/heartbeat-timeout`.
    HeartbeatMissed,
    /// The worker was started, but was not up within `lockstep.dev/ready-timeout`.
    ReadyTimeout,
    /// The worker exited by itself soon after a restart in place that was to answer its failure: its pod is made anew.
    FailedAgain,
    /// The same soon after its pod was made anew: so are all Jobs.
    FailedInNewPod,
    /// A worker failed soon after a restart in place, and `maxRestarts` is used up: all Jobs are made anew once.
    LastResort,
}

impl Reason {
    /// The name used in status, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WorkerExited => "WorkerExited",
            Self::ContainerLost => "ContainerLost",
            Self::PodLost => "PodLost",
            Self::TimedOut => "TimedOut",
            Self::WorkDone => "WorkDone",
            Self::StaysDown => "StaysDown",
            Self::ManualRequest => "ManualRequest",
            Self::ProtocolError => "ProtocolError",
            Self::ReplacementLate => "ReplacementLate",
            Self::HeartbeatMissed => "HeartbeatMissed",
            Self::ReadyTimeout => "ReadyTimeout",
            Self::FailedAgain => "FailedAgain",
            Self::FailedInNewPod => "FailedInNewPod",
            Self::LastResort => "LastResort",
        }
    }

    /// The reason of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [
            Self::WorkerExited,
            Self::ContainerLost,
            Self::PodLost,
            Self::TimedOut,
            Self::WorkDone,
            Self::StaysDown,
            Self::ManualRequest,
            Self::ProtocolError,
            Self::ReplacementLate,
            Self::HeartbeatMissed,
            Self::ReadyTimeout,
            Self::FailedAgain,
            Self::FailedInNewPod,
            Self::LastResort,
        ]
        .into_iter()
        .find(|reason| reason.as_str() == name)
    }
}

/// Limits and codes from the JobSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `failurePolicy.maxRestarts`.
    pub max_restarts: u32,
    /// Annotation `inplace-timeout`: bounds first failure to all running, milliseconds.
    pub timeout_ms: u64,
    /// How long a new leader waits for the daemons of a group before it decides without them, milliseconds.
    pub recovery_ms: u64,
    /// Longest wait before a group that fails again and again is released, milliseconds; 0: it never waits.
    pub max_backoff_ms: u64,
    /// Exit codes that Kubernetes has to see.
    pub terminal: Vec<TerminalRule>,
    /// Whether the control plane replaces lost pods itself, and does not wait for the Job controller.
    pub replaces_pods: bool,
    /// Annotation `escalate-after`.
    pub escalate_after: Option<EscalateAfter>,
}

/// When the pod of a worker is deleted because the worker fails too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EscalateAfter {
    /// The failure that is one too many.
    pub failures: u32,
    /// Within which time, milliseconds.
    pub within_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_restarts: 0,
            timeout_ms: 60_000,
            recovery_ms: 15_000,
            max_backoff_ms: 60_000,
            terminal: Vec::new(),
            replaces_pods: true,
            escalate_after: None,
        }
    }
}

/// One onExitCodes rule of a child Job's podFailurePolicy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TerminalRule {
    /// Child Job that the rule belongs to.
    pub job: String,
    /// Container that it is limited to.
    pub container: Option<String>,
    /// Whether the rule matches every code except these.
    pub negated: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
    /// What Kubernetes does about it.
    pub action: TerminalAction,
}

/// Action of a podFailurePolicy rule, as far as restarts are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TerminalAction {
    /// FailJob: the JobSet's own failure policy decides.
    FailJob,
    /// FailIndex: the worker leaves the group.
    FailIndex,
    /// Ignore or Count: the pod is lost and replaced.
    Replace,
}

impl Policy {
    /// What Kubernetes does about `code` in this worker, if a rule names it. The first rule that matches wins, as in the Job controller.
    #[must_use]
    pub fn terminal_action(&self, identity: &Identity, code: i32) -> Option<TerminalAction> {
        self.terminal
            .iter()
            .find(|rule| {
                *rule.job == *identity.job
                    && rule
                        .container
                        .as_ref()
                        .is_none_or(|container| **container == *identity.container)
                    && code != 0
                    && rule.codes.contains(&code) != rule.negated
            })
            .map(|rule| rule.action)
    }
}
