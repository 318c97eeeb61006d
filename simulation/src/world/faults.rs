//! Faults, and what users do at the same time.

pub(crate) mod lies;
mod own_lies;
pub(crate) mod restore;
mod users;
mod workers;

use lockstep_api::annotations;

use crate::scenario::{Leftovers, Profile};
use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::fault::{Fault, OF_LOCKSTEP, OF_USERS, OF_WORKERS};
use crate::world::event::{Event, NodeIndex, ReplicaIndex};
use crate::world::network::Path;
use users::annotate;

impl World {
    /// Causes the one failure of a scenario with leftovers, which leads to others. Returns true if
    /// it is its turn.
    fn first_failure(&mut self, leftovers: Leftovers) -> bool {
        let last = self.scenario.faults.1;
        if self.truth.has_failed || self.now >= last + 120 * SEC {
            return false;
        }
        if leftovers == Leftovers::AndLockstep && self.now < last && !self.rng.percent(30) {
            return false;
        }
        let mut containers = self.containers.values();
        if containers.any(|container| container.runs_undisturbed()) {
            self.truth.has_failed = true;
            self.fault(Fault::WorkerFails);
        }
        let pause = self.rng.span(MS, 2 * SEC);
        self.queue.push(self.now + pause, Event::NextFault);
        true
    }

    /// Causes a fault, and schedules the next one.
    pub(crate) fn next_fault(&mut self) {
        let leftovers = self.scenario.leftovers;
        if leftovers.is_some_and(|leftovers| self.first_failure(leftovers)) {
            return;
        }
        if self.now >= self.scenario.faults.1 {
            self.queue.push(self.now, Event::Quiesce);
            return;
        }
        if leftovers == Some(Leftovers::WorkerRestart) {
            self.queue.push(self.scenario.faults.1, Event::NextFault);
            return;
        }
        let among = match self.scenario.profile {
            _ if leftovers.is_some() => OF_LOCKSTEP,
            Profile::Calm => OF_LOCKSTEP,
            Profile::Clean => &[Fault::WorkerFails, Fault::WorkerHangs],
            Profile::Wild => match self.rng.below(10) {
                0..4 => OF_LOCKSTEP,
                4..9 => OF_WORKERS,
                _ => OF_USERS,
            },
        };
        if self.scenario.elastic && self.rng.percent(20) {
            self.fault(Fault::Scale);
        } else if self.scenario.gang.is_some() && self.rng.percent(20) {
            self.fault(Fault::Crowd);
        } else if self.scenario.agents_may_miss() && self.rng.percent(20) {
            self.fault(Fault::ContainerKilledDaemonDies);
        } else if self.scenario.harsh_api && self.rng.percent(5) {
            self.fault(Fault::Contention);
        } else if let Some(fault) = self.rng.pick(among).copied() {
            self.fault(fault);
        }
        let shortest = if self.scenario.profile == Profile::Clean {
            20 * SEC
        } else {
            MS
        };
        // Faults come in bursts.
        let burst = self.scenario.profile != Profile::Clean && self.rng.percent(40);
        let pause = if burst {
            self.rng.span(0, 300 * MS)
        } else {
            self.rng.span(shortest, self.scenario.pause.max(shortest))
        };
        self.queue.push(self.now + pause, Event::NextFault);
    }

    /// Causes this fault. Each kind draws the same numbers, even if it does not use them.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.say(|| format!("FAULT {fault:?}"));
        let short = self.rng.span(50 * MS, 3 * SEC);
        let long = self.rng.span(SEC, 40 * SEC);
        let down = if self.rng.percent(60) { short } else { long };
        let node = self.rng.index(self.nodes.len());
        let replica = self.rng.index(self.replicas.len());
        match fault {
            Fault::ReplicaCrash => self.replica_crash(replica, down),
            Fault::LeaderCrash => self.leader_crashes(down),
            Fault::LeaderFreeze => self.leader_freezes(replica, down),
            Fault::DaemonCrash => self.daemon_dies_for(node, down),
            Fault::CutNodeFromHub => self.cut(Path::NodeToHub(node, replica), self.now + down),
            Fault::CutAllFromHub => (0..self.nodes.len()).for_each(|node| self.cut_from_hub(node, down)),
            Fault::CutReplicaFromApi => self.cut(Path::ReplicaToApi(replica), self.now + down),
            Fault::ApiDown => self.api.down_until = self.now + down,
            Fault::SlowNetwork => self.network.slow_until = self.now + down,
            Fault::WatchLag => self.network.lag_until = self.now + down,
            Fault::ClockStep => self.clock_step(node, replica),
            Fault::Touch => self.edit(|jobset, now| annotate(jobset, "example.com/touched", now.to_string())),
            Fault::AgentLinkBreaks => self.some_link_breaks(),
            Fault::WorkerFails => {
                self.some_worker_fails();
            }
            Fault::WorkerHangs => self.some_worker_hangs(down),
            Fault::WorkerFailsLeaderCrashes => self.worker_and_leader_fail(),
            Fault::ContainerKilledDaemonDies => self.container_and_daemon_die(long),
            Fault::AllWorkersFail => self.all_workers_fail(),
            Fault::AgentKilled => self.some_container_ends(),
            Fault::ContainerKilled => self.some_running_container_ends(),
            Fault::PodDeleted => self.some_pod_is_deleted(),
            Fault::NodeReboot => self.node_reboots(node),
            Fault::NodeGone => self.node_goes(node),
            Fault::NodeCut => {
                self.network.cut(Path::NodeToApi(node), self.now + down);
                self.cut_from_hub(node, down);
            }
            Fault::Request => {
                self.note_wish();
                self.edit(|jobset, now| annotate(jobset, annotations::RESTART_REQUEST, now.to_string()));
            }
            Fault::RequestWorkerRestart => self.request_worker_restarts(),
            Fault::Suspend => self.suspend(),
            Fault::Resume => self.resume(),
            Fault::EditMaxRestarts => self.edit_max_restarts(),
            Fault::EditTimeout => self.edit_timeout(),
            Fault::DeleteJob => self.some_job_is_deleted(),
            Fault::DeleteJobSet => self.delete_jobset(),
            Fault::Scale => self.scale(),
            Fault::Crowd => self.crowd(node),
            Fault::Contention => self.contention(self.now + short),
        }
    }

    /// Ends all faults and repairs what they broke.
    pub(crate) fn quiesce(&mut self) {
        self.say(|| "no more faults".to_owned());
        self.faults_on = false;
        self.network.heal();
        self.end_own_lies();
        self.api.down_until = self.now;
        for replica in &mut self.replicas {
            replica.paused_until = 0;
        }
        self.unstick_processes();
        if self.scenario.bad_streams {
            self.break_streams();
        }
        let resume = self.rng.percent(70);
        if resume
            && self
                .api
                .jobset
                .as_ref()
                .is_some_and(|jobset| jobset.is_suspended())
        {
            self.resume();
        }
        self.settle_room();
        self.poke_controllers(MS);
        self.queue.push(self.now + 5 * SEC, Event::Check);
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.leader.is_some())
    }

    fn clock_step(&mut self, node: NodeIndex, replica: ReplicaIndex) {
        let by = i64::try_from(self.rng.below(600 * SEC)).unwrap_or(0) - 300_000_000_000;
        self.nodes[node].clock_ahead += by;
        self.replica_clocks[replica] -= by;
    }

    fn daemon_dies_for(&mut self, node: NodeIndex, down: Time) {
        self.daemon_crash(node);
        self.queue.push(self.now + down, Event::DaemonStart { node });
    }

    fn leader_crashes(&mut self, down: Time) {
        if let Some(replica) = self.leader() {
            self.replica_crash(replica, down);
        }
    }

    /// Freezes the leader, or this replica if no replica leads.
    fn leader_freezes(&mut self, replica: ReplicaIndex, down: Time) {
        let replica = self.leader().unwrap_or(replica);
        self.replicas[replica].paused_until = self.now + down;
    }

    fn cut_from_hub(&mut self, node: NodeIndex, down: Time) {
        let until = self.now + down;
        for replica in 0..self.replicas.len() {
            self.cut(Path::NodeToHub(node, replica), until);
        }
    }
}
