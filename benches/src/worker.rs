//! A simulated worker that stops and starts at once. Phases without duration are not reported.
//!
//! ```text
//!    ┌──────────────────────higher generation h───────────────┐
//!    │                                                        v
//!  Fresh ──named──> Running(g) ──higher generation h──> Parked(h) ──release──> Running(h)
//!                       └──fails──> Exited(g) ──higher generation h──────^
//! ```
//! If the higher generation is already released, it runs at once.

use std::sync::Arc;
use std::time::Duration;

use lockstep_node_daemon::clock::unix_nanos;
use lockstep_node_daemon::worker::driver::{Closed, Handle, NotLinked};
use lockstep_node_daemon::worker::facts::Input;
use lockstep_node_daemon::worker::types::{
    AgentPhase, AgentState, ContainerId, Epoch, Exit, Generation, Heartbeat, LinkId, PodUid, Progress, Target,
};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};

use crate::tally::Tally;

/// Exit by SIGKILL, which has no back-off.
const KILLED: Exit = Exit { code: 137, signal: 9 };

/// How often a worker says which step it has done, once it does.
const STEP: Duration = Duration::from_secs(1);

/// What a worker is told from outside.
pub(crate) struct Orders {
    /// To fail.
    pub(crate) failure: Arc<Notify>,
    /// To say once a second which step it has done, at this part of the second.
    pub(crate) steps: watch::Receiver<bool>,
    pub(crate) says_at: Duration,
}

impl Orders {
    /// To fail, and nothing else.
    pub(crate) fn to_fail(failure: Arc<Notify>) -> Self {
        Self {
            failure,
            steps: watch::channel(false).1,
            says_at: Duration::ZERO,
        }
    }
}

/// The container of a worker.
pub(crate) struct WorkerContainer {
    pub(crate) pod: PodUid,
    pub(crate) id: ContainerId,
    pub(crate) name: String,
}

/// State of a worker.
pub(crate) struct Worker {
    id: ContainerId,
    link: LinkId,
    handle: Handle,
    targets: watch::Receiver<Option<Target>>,
    tally: Arc<Tally>,
    orders: Orders,
    phase: AgentPhase,
    generation: Generation,
    /// Highest epoch and count of restarts seen.
    seen: (Epoch, u64),
    /// The last value, which is sent as the termination grace period.
    last_value: u32,
    revision: u64,
    progress: Progress,
}

impl Worker {
    /// Connects to the daemon like a new agent.
    pub(crate) async fn register(
        handle: Handle,
        container: WorkerContainer,
        tally: Arc<Tally>,
        orders: Orders,
    ) -> Result<Self, NotLinked> {
        let id = container.id;
        let link = LinkId(1);
        let registered = Input::Registered {
            pod: container.pod,
            id: id.clone(),
            name: container.name,
            link,
            pid: 1,
        };
        let targets = handle.linked(registered, link, String::new()).await?;
        let mut worker = Self {
            id,
            link,
            handle,
            targets,
            tally,
            orders,
            phase: AgentPhase::Fresh,
            generation: Generation::default(),
            seen: (Epoch::default(), 0),
            last_value: 0,
            revision: 0,
            progress: Progress::default(),
        };
        worker.report().await?;
        Ok(worker)
    }

    /// Runs until its daemon ends.
    pub(crate) async fn run(mut self) -> Result<(), Closed> {
        let mut step = interval(STEP);
        step.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let says_steps = *self.orders.steps.borrow();
            tokio::select! {
                Ok(()) = self.orders.steps.changed() => step.reset_after(self.orders.says_at),
                _ = step.tick(), if says_steps => self.step().await?,
                changed = self.targets.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let target = self.targets.borrow_and_update().clone();
                    if let Some(target) = target {
                        self.apply(&target).await?;
                    }
                }
                () = self.orders.failure.notified() => {
                    self.phase = AgentPhase::Exited(KILLED);
                    self.tally.fails();
                    self.report().await?;
                }
            }
        }
    }

    async fn apply(&mut self, target: &Target) -> Result<(), Closed> {
        self.tally.count_message();
        if target.grace_ms != self.last_value {
            self.last_value = target.grace_ms;
            self.tally.has(self.last_value);
        }
        self.seen = (
            self.seen.0.max(target.epoch),
            self.seen.1.max(target.counted_restarts),
        );
        let before = (self.phase, self.generation);
        if target.generation > self.generation {
            self.generation = target.generation;
            if self.phase != AgentPhase::Fresh || !target.start_fresh {
                self.phase = AgentPhase::Parked;
            }
        }
        let starts = match self.phase {
            AgentPhase::Fresh => target.start_fresh,
            AgentPhase::Parked => target.release && target.generation == self.generation,
            _ => false,
        };
        if starts {
            self.phase = AgentPhase::Running;
            self.progress = Progress::default();
            self.tally.runs(self.generation.0);
        }
        if before == (self.phase, self.generation) {
            return Ok(());
        }
        self.report().await
    }

    /// Says that another step is done.
    async fn step(&mut self) -> Result<(), Closed> {
        if self.phase != AgentPhase::Running {
            return Ok(());
        }
        self.progress.step = Some(self.progress.step.unwrap_or_default() + 1);
        self.report().await
    }

    async fn report(&mut self) -> Result<(), Closed> {
        self.revision += 1;
        let state = AgentState {
            phase: self.phase,
            generation: self.generation,
            epoch: self.seen.0,
            counted_restarts: self.seen.1,
            revision: self.revision,
            since: unix_nanos(),
            detail: String::new(),
            needs_host_kill: false,
            host_kill_before: None,
            heartbeat: Heartbeat::Well,
            starts: None,
            standbys: None,
            progress: self.progress.clone(),
        };
        let state = Input::State(self.id.clone(), self.link, state);
        self.handle.tell(state).await
    }
}
