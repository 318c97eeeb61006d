//! Kills processes of a container from the host when its agent may not: root without CAP_KILL
//! cannot signal a child of another uid.
//!
//! It kills what descends from the agent, is in the container's cgroup, and was started before the
//! agent asked. Sessions of `kubectl exec` survive: their parent is the shim. The next worker
//! survives: it starts later, once nothing is left.
//!
//! Standbys descend from the agent too. Those that had been started before it asked are killed like
//! all others, and the next start is cold. Nobody waits for them but this kill: nothing is left of
//! them for it to see once they have ended. A kill may still be under way when the agent no longer
//! needs it, so an agent must not release a standby that is older than its request: the daemon
//! would kill a worker.
//!
//! A process may end between the look and the signal, and its PID may then belong to a process of
//! any container. So each process is held by a pidfd, looked at once more, and signalled through
//! the pidfd. On a node without pidfds (Linux before 5.3) nothing is killed from the host: the
//! worker is not parked in time, and the restart takes the next level.
//!
//! A process that poses as an agent may ask without end, for each container of its pod. It waits
//! only for others of its own namespace.

mod pidfd;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_process::rate_limit::{Rate, RateLimit, SharedRateLimit};
use lockstep_process::turns::{Turn, Turns};
use tracing::{debug, error, warn};

use self::pidfd::{KillError, PidFd};
use self::tree::{Lookup, Ticks, Tree, select_doomed};
use crate::clock::boot_nanos;
use crate::worker::facts::HostKill;
use crate::worker::types::{BootNanos, ContainerId};

/// Most rounds for one request: a process may fork while it is being killed.
const ROUNDS: usize = 100;
/// After this many rounds without a new process to kill, the rest is up to the kernel.
const IDLE_ROUNDS: usize = 10;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// Rate of looks at one container, however often its agent asks. A kill that works takes less than
/// the burst.
const LOOKS: Rate = Rate {
    burst: 20,
    every: Duration::from_secs(1),
};
/// Rate of log lines about failed kills, for all containers together: peers decide how often kills
/// fail. Requests are logged with the worker's other lines.
const LINES: Rate = Rate {
    burst: 64,
    every: Duration::from_secs(1),
};
/// Time between two checks of the limit on looks.
const NO_LOOK: Duration = Duration::from_millis(50);
/// Unit of the start times in `/proc`: `USER_HZ` is 100 wherever Kubernetes runs.
const TICK_NANOS: u64 = 10_000_000;

/// Kills by `/proc`.
#[derive(Debug, Clone)]
pub struct ProcKiller {
    tree: Tree,
    /// [`PidFd::open`], or what stands in for it.
    open: fn(i32) -> Result<PidFd, KillError>,
    /// Pending requests: for each container, kill what was started before this time. `None`: the
    /// agent no longer asks, but a task still works on the container. A container has one task,
    /// however often its agent changes its mind.
    asked: Arc<Mutex<BTreeMap<ContainerId, Option<Ticks>>>>,
    /// Limits looks at each container whose agent asked recently.
    looks: Arc<Mutex<BTreeMap<ContainerId, RateLimit>>>,
    /// One look at a time, so that all of them take at most one core. A namespace has at most one
    /// turn, so others wait for at most one of its looks.
    turns: Arc<Turns>,
    lines: Arc<SharedRateLimit>,
}

impl ProcKiller {
    /// `proc_root` is `/proc`, or what stands in for it.
    #[must_use]
    pub fn new(proc_root: PathBuf) -> Self {
        Self {
            tree: Tree::new(proc_root),
            open: PidFd::open,
            asked: Arc::default(),
            looks: Arc::default(),
            turns: Arc::new(Turns::new(1, 1)),
            lines: Arc::new(SharedRateLimit::new(LINES)),
        }
    }

    fn asked(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Option<Ticks>>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time before which processes of this container are to be killed, if its agent asks for
    /// that.
    fn before(&self, container: &ContainerId) -> Option<Ticks> {
        self.asked().get(container).copied().flatten()
    }

    /// Waits until the container may be looked at again. Returns false if its agent no longer asks.
    async fn may_look_soon(&self, container: &ContainerId) -> bool {
        while self.before(container).is_some() {
            if self.may_look(container) {
                return true;
            }
            tokio::time::sleep(NO_LOOK).await;
        }
        false
    }

    fn may_look(&self, container: &ContainerId) -> bool {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        if !looks.contains_key(container) {
            looks.retain(|_, limit| !limit.is_full());
        }
        let limit = looks
            .entry(container.clone())
            .or_insert_with(|| RateLimit::new(LOOKS));
        limit.try_take()
    }

    /// Kills until nothing is left, or gives up. Returns false if the agent stopped asking: the
    /// next request then starts over.
    async fn kill_all(&self, ask: &HostKill) -> bool {
        let container = &ask.container;
        let mut doomed = BTreeSet::new();
        let mut idle = 0;
        for round in 0..ROUNDS {
            // What waits here holds no turn.
            if !self.may_look_soon(container).await {
                debug!(%container, rounds = round, "the agent no longer asks for it");
                return false;
            }
            let turn = self.turns.take(&ask.namespace, 1).await;
            let (killer, known, asked) = (self.clone(), doomed.len(), ask.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let left = killer.round(&asked, turn, &mut doomed);
                (doomed, left)
            });
            let Ok((after, left)) = looked.await else {
                return true;
            };
            doomed = after;
            match left {
                Ok(0) => {
                    debug!(%container, rounds = round, "no process is left beside the agent");
                    return self.before(container).is_some();
                }
                Ok(_) => {}
                Err(error) => {
                    if self.lines.try_take() {
                        error!(%container, %error, "processes are left beside the agent");
                    }
                    return true;
                }
            }
            idle = if doomed.len() > known { 0 } else { idle + 1 };
            if idle >= IDLE_ROUNDS {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        if self.lines.try_take() {
            warn!(%container, "processes are left beside the agent");
        }
        true
    }

    /// Looks once and kills what it finds. Returns the number of processes found, and at least one
    /// if not all could be seen.
    ///
    /// # Errors
    /// When processes cannot be killed on this node.
    fn round(
        &self,
        ask: &HostKill,
        turn: Turn,
        doomed: &mut BTreeSet<(i32, Ticks)>,
    ) -> Result<usize, KillError> {
        // The agent may have withdrawn its request meanwhile.
        let Some(before) = self.before(&ask.container) else {
            return Ok(0);
        };
        let below = self.tree.below(ask.agent_pid, &ask.container);
        // Others may look while these are killed, but none of the same namespace.
        let _own = turn.keep_own();
        let living = select_doomed(&below.processes, before, doomed);
        for (pid, started) in &living {
            match self.kill_one(&ask.container, *pid, *started) {
                Ok(()) => {}
                Err(error @ KillError::NoPidfd(_)) => return Err(error),
                Err(error) => debug!(container = %ask.container, pid, %error, "not killed"),
            }
        }
        Ok(living.len().max(usize::from(!below.is_whole)))
    }

    /// Kills exactly this process of the container, or none.
    fn kill_one(&self, container: &ContainerId, pid: i32, started: Ticks) -> Result<(), KillError> {
        let held = (self.open)(pid)?;
        // In this order: either `/proc` now describes the held process, or that is gone and the
        // signal reaches nothing.
        match self.tree.process(pid, container) {
            Lookup::Alive(now) if now.started == started => held.kill(),
            _ => Err(KillError::Gone),
        }
    }

    /// Starts killing the container's processes that were started before the requested time, except
    /// its agent, and returns at once. A second call while the first is at work only moves the
    /// time.
    pub fn kill(&self, ask: HostKill) {
        let before = fence(ask.before, boot_nanos());
        if self.asked().insert(ask.container.clone(), Some(before)).is_some() {
            return;
        }
        let killer = self.clone();
        drop(tokio::spawn(async move {
            let mut met = Some(before);
            loop {
                let is_done = killer.kill_all(&ask).await;
                match killer.done(&ask.container, met.filter(|_| is_done)) {
                    Some(later) => met = Some(later),
                    None => break,
                }
            }
        }));
    }

    /// Ends the work, unless a later time than `met` was requested meanwhile: returns that time.
    fn done(&self, container: &ContainerId, met: Option<Ticks>) -> Option<Ticks> {
        let mut asked = self.asked();
        let later = asked.get(container).copied().flatten();
        let later = later.filter(|before| met.is_none_or(|met| *before > met));
        if later.is_none() {
            asked.remove(container);
        }
        later
    }

    /// Stops killing processes of this container.
    pub fn spare(&self, container: &ContainerId) {
        if let Some(asked) = self.asked().get_mut(container) {
            *asked = None;
        }
    }
}

/// The first tick whose processes are spared. A process of the same tick as the request may have
/// started after it.
fn fence(before: Option<BootNanos>, now: BootNanos) -> Ticks {
    // An older agent does not say when it asked. No request covers processes that start later.
    let before = before.map_or(now, |before| before.min(now));
    before.0 / TICK_NANOS
}

#[cfg(test)]
mod tests;
