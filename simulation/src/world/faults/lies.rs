//! A lying daemon, on a node without any worker of the group.
//!
//! It reports workers of other nodes and workers that do not exist, in any phase, at generations
//! that no leader ever assigned and under epochs that no leader ever had. It never corrects its
//! last report. The lies must have no effect: every invariant holds as if the daemon were silent.

use std::sync::Arc;

use lockstep_control_plane::hub::{NextMessage, Outbox};
use lockstep_proto::NODE_PROTOCOL;
use lockstep_proto::node::v1 as pb;

use crate::time::{MS, SEC, unix};
use crate::world::World;
use crate::world::event::{Event, ReplicaIndex};
use crate::world::replica::group::durable_of;

/// The name of its node.
const NODE: &str = "node-of-others";

/// Its stream to a hub.
pub(crate) struct Liar {
    replica: (ReplicaIndex, u32),
    session: u64,
    outbox: Arc<Outbox>,
}

impl World {
    /// The daemon lies to the current leader, and schedules its next lie.
    pub(crate) fn lie(&mut self) {
        if !self.faults_on {
            return;
        }
        let at = self.now + self.rng.span(20 * MS, 3 * SEC);
        self.queue.push(at, Event::Lie);
        let Some(replica) = self
            .leader()
            .filter(|leader| self.replicas[*leader].paused_until <= self.now)
        else {
            return;
        };
        let life = self.replicas[replica].life;
        let lies: Vec<_> = (0..=self.rng.below(4)).map(|_| self.some_lie()).collect();
        let Some(leader) = &self.replicas[replica].leader else {
            return;
        };
        match &self.liar {
            Some(liar) if liar.replica == (replica, life) => {
                leader.registry.report(NODE, liar.session, lies);
                // It ignores all messages.
                while matches!(liar.outbox.take(), NextMessage::Message(_)) {}
            }
            _ => {
                let protocol = *NODE_PROTOCOL.end();
                let epoch = leader.registry.epoch().0;
                let outbox = Outbox::new(pb::Welcome { protocol, epoch });
                let session = leader.registry.connect(NODE, &outbox, protocol, lies);
                self.liar = Some(Liar {
                    replica: (replica, life),
                    session,
                    outbox,
                });
            }
        }
        self.hub_flush(replica);
        self.reports_changed(replica);
    }

    /// A false report about one worker.
    fn some_lie(&mut self) -> pb::WorkerState {
        let real: Vec<_> = self.containers.keys().cloned().collect();
        let container = self
            .rng
            .pick(&real)
            .and_then(|id| Some((id, self.containers.get(id)?)));
        let (mut container_id, mut pod_uid, (job, index)) = container.map_or_else(
            || {
                (
                    "c-0".to_owned(),
                    "pod-0".to_owned(),
                    ("js-driver-0".to_owned(), 0),
                )
            },
            |(id, container)| (id.clone(), container.pod.clone(), container.identity.clone()),
        );
        // A container, or a pod, that does not exist.
        match self.rng.below(6) {
            0 => container_id.push_str("-next"),
            1 => pod_uid.push_str("-next"),
            _ => {}
        }
        let durable = self.api.jobset.as_deref().map(durable_of).unwrap_or_default();
        let latest = durable.generation.max(durable.latest).0;
        let phases = [
            pb::Phase::Fresh,
            pb::Phase::Running,
            pb::Phase::Stopping,
            pb::Phase::Parked,
            pb::Phase::Exited,
            pb::Phase::Done,
            pb::Phase::Lost,
        ];
        let phase = phases[self.rng.index(phases.len())];
        let ended = matches!(phase, pb::Phase::Exited | pb::Phase::Lost);
        let epoch = [0, 1, self.api.version + 1000, u64::MAX / 2][self.rng.index(4)];
        let generation = [latest, latest, latest + 1, latest + 1000, u64::MAX / 2][self.rng.index(5)];
        self.say(|| format!("{NODE} lies: {container_id} of {job}[{index}] is {phase:?} at {generation}"));
        pb::WorkerState {
            group_uid: "js-0".to_owned(),
            job,
            completion_index: index,
            container: "worker".to_owned(),
            incarnation: Some(pb::Incarnation {
                pod_uid,
                container_id,
            }),
            pod_namespace: "ns".to_owned(),
            pod_name: "of-others".to_owned(),
            phase: phase.into(),
            generation,
            epoch,
            counted_restarts: generation.min(1000),
            revision: self.now,
            exit: ended.then_some(pb::Exit { code: 1, signal: 0 }),
            since_unix_nanos: unix(self.now, 0),
            heartbeat: pb::Heartbeat::Unspecified.into(),
            released_generation: ended.then_some(latest),
            ..pb::WorkerState::default()
        }
    }
}
