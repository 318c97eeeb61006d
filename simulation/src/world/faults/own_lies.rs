//! A daemon that lies about its own workers.
//!
//! It reports running workers as ended or done, or as ready or parked too early. It names
//! containers that never existed, and generations and epochs that no leader has assigned, and it
//! repeats old reports. The control plane has to believe plausible lies, so the workers of the
//! group may be restarted or recreated, or fail. It ignores impossible ones. When an honest daemon
//! takes over, the group has to recover.

use lockstep_proto::node::v1 as pb;

use crate::rng::Rng;
use crate::scenario::{Profile, Scenario};
use crate::time::{MS, SEC, unix};
use crate::world::World;
use crate::world::event::{Event, NodeIndex, Up};
use crate::world::replica::group::durable_of;

/// How many of its true reports it remembers.
const REMEMBERED: usize = 16;

impl Scenario {
    /// In an eighth of the scenarios in which everything fails, a node has such a daemon. In these
    /// scenarios all workers have agents and start together. Nothing else is drawn from `rng`.
    pub(crate) fn choose_own_lies(&mut self, rng: &mut Rng) {
        let other = self.elastic || self.gang.is_some() || self.time_limited || self.leftovers.is_some();
        let without_agents = self.has_plain() || !self.plugin_required || self.daemons_late;
        if rng.below(8) > 0 || self.profile != Profile::Wild || other || without_agents {
            return;
        }
        self.lies_of_own = Some(rng.index(self.nodes));
    }
}

impl World {
    /// True if reports about workers on this node may be lies.
    pub(crate) fn is_lied_about(&self, node: NodeIndex) -> bool {
        self.scenario.lies_of_own == Some(node)
    }

    /// The daemon lies if it is connected and has workers, and schedules its next lie.
    pub(crate) fn lie_of_own(&mut self) {
        let Some(node) = self.scenario.lies_of_own.filter(|_| self.faults_on) else {
            return;
        };
        let at = self.now + self.rng.span(20 * MS, 3 * SEC);
        self.queue.push(at, Event::LieOfOwn);
        let daemon = &self.nodes[node].daemon;
        let stream = daemon.stream.filter(|stream| {
            let stream = self.streams.get(stream);
            daemon.runs && stream.is_some_and(|stream| stream.welcomed)
        });
        let Some(stream) = stream else { return };
        let known = daemon.knows();
        let mut lies = Vec::new();
        for _ in 0..=self.rng.below(3) {
            let Some(state) = self.rng.pick(&known).cloned() else {
                return;
            };
            lies.push(self.lie_about(node, state));
        }
        self.note_lies(lies.len());
        self.send_up(stream, Up::Report(lies));
    }

    /// A false report about one of its workers.
    fn lie_about(&mut self, node: NodeIndex, truth: pb::WorkerState) -> pb::WorkerState {
        let durable = self.api.jobset.as_deref().map(durable_of).unwrap_or_default();
        let latest = durable.generation.max(durable.latest).0;
        let mut lie = truth.clone();
        lie.since_unix_nanos = unix(self.now, self.nodes[node].clock_ahead);
        lie.revision += self.rng.below(2);
        match self.rng.below(8) {
            0 => {
                let phases = [pb::Phase::Lost, pb::Phase::Exited];
                lie.phase = phases[self.rng.index(2)].into();
                lie.exit = Some(pb::Exit { code: 1, signal: 0 });
            }
            1 => {
                if let Some(incarnation) = &mut lie.incarnation {
                    incarnation.container_id.push_str("-next");
                }
                let phases = [
                    pb::Phase::Fresh,
                    pb::Phase::Running,
                    pb::Phase::Parked,
                    pb::Phase::Lost,
                ];
                lie.phase = phases[self.rng.index(4)].into();
            }
            2 => lie.epoch = [1, self.api.version + 1000, u64::MAX / 2][self.rng.index(3)],
            3 => {
                lie.phase = pb::Phase::Running.into();
                lie.heartbeat = pb::Heartbeat::Unspecified.into();
                lie.generation = latest + self.rng.below(2);
            }
            4 => {
                lie.phase = pb::Phase::Parked.into();
                lie.generation = latest + self.rng.below(2);
            }
            5 => {
                lie.generation = [latest + 1000, u64::MAX / 2, u64::MAX][self.rng.index(3)];
                lie.counted_restarts =
                    [durable.counted_restarts.into(), lie.generation.min(1000)][self.rng.index(2)];
            }
            6 => {
                if let Some(before) = self.rng.pick(&self.past_reports).cloned() {
                    let revision = lie.revision;
                    lie = pb::WorkerState { revision, ..before };
                }
            }
            _ => {
                lie.phase = pb::Phase::Done.into();
                lie.exit = Some(pb::Exit { code: 0, signal: 0 });
            }
        }
        if self.past_reports.len() >= REMEMBERED {
            self.past_reports.remove(0);
        }
        self.past_reports.push(truth);
        self.say(|| {
            let what = lie.incarnation.as_ref();
            let container = what.map_or("", |incarnation| incarnation.container_id.as_str());
            format!(
                "node-{node} lies: {container} is {:?} at {} (epoch {})",
                lie.phase(),
                lie.generation,
                lie.epoch
            )
        });
        lie
    }

    /// An honest daemon takes its place.
    pub(crate) fn end_own_lies(&mut self) {
        if let Some(node) = self.scenario.lies_of_own {
            self.daemon_crash(node);
            self.queue.push(self.now + SEC, Event::DaemonStart { node });
        }
    }
}
