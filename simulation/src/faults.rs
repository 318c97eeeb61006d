//! What goes wrong, and what people do meanwhile.

use lockstep_api::{JobSet, Target, annotations};
use lockstep_pod_agent::target::Exit;

use crate::event::Event;
use crate::network::Path;
use crate::scenario::{Leftovers, Profile, TERMINAL_CODE};
use crate::time::{MS, SEC, Time};
use crate::world::World;

/// One fault, or one thing that somebody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    // Parts of Lockstep, the network, the API server.
    ReplicaCrash,
    LeaderCrash,
    LeaderFreeze,
    DaemonCrash,
    CutNodeFromHub,
    CutAllFromHub,
    CutReplicaFromApi,
    ApiDown,
    SlowNetwork,
    WatchLag,
    ClockStep,
    Touch,
    AgentLinkBreaks,
    // Workers and what they live in.
    WorkerFails,
    WorkerHangs,
    AllWorkersFail,
    AgentKilled,
    ContainerKilled,
    PodDeleted,
    NodeReboot,
    NodeGone,
    NodeCut,
    /// A worker fails, and the leader with it.
    WorkerFailsLeaderCrashes,
    /// A container ends, and the daemon of its node with it: where containerd does without, kubelet starts it again without its agent.
    ContainerKilledDaemonDies,
    // People.
    Request,
    RequestWorkerRestart,
    Suspend,
    Resume,
    EditMaxRestarts,
    EditTimeout,
    DeleteJob,
    DeleteJobSet,
    /// Of a RayCluster.
    Scale,
    /// Others come to a node, or leave it.
    Crowd,
    /// Somebody else writes the JobSet over and over.
    Contention,
}

const OF_LOCKSTEP: &[Fault] = &[
    Fault::ReplicaCrash,
    Fault::LeaderCrash,
    Fault::LeaderCrash,
    Fault::LeaderFreeze,
    Fault::DaemonCrash,
    Fault::DaemonCrash,
    Fault::CutNodeFromHub,
    Fault::CutAllFromHub,
    Fault::CutReplicaFromApi,
    Fault::ApiDown,
    Fault::SlowNetwork,
    Fault::WatchLag,
    Fault::ClockStep,
    Fault::Touch,
    Fault::AgentLinkBreaks,
];

const OF_WORKERS: &[Fault] = &[
    Fault::WorkerFails,
    Fault::WorkerFails,
    Fault::WorkerFails,
    Fault::WorkerFails,
    Fault::WorkerHangs,
    Fault::AllWorkersFail,
    Fault::AgentKilled,
    Fault::ContainerKilled,
    Fault::PodDeleted,
    Fault::PodDeleted,
    Fault::NodeReboot,
    Fault::NodeGone,
    Fault::NodeCut,
    Fault::WorkerFailsLeaderCrashes,
];

const OF_PEOPLE: &[Fault] = &[
    Fault::Request,
    Fault::Request,
    Fault::RequestWorkerRestart,
    Fault::RequestWorkerRestart,
    Fault::Suspend,
    Fault::Resume,
    Fault::Resume,
    Fault::EditMaxRestarts,
    Fault::EditTimeout,
    Fault::DeleteJob,
    Fault::DeleteJobSet,
];

impl World {
    /// Lets the one failure happen that leads to others where a worker cannot be started again in its pod. Whether it was its turn.
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

    /// Lets a fault happen, and plans the next one.
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
                _ => OF_PEOPLE,
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

    fn some_container(&mut self, running: bool) -> Option<String> {
        let ids: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| container.lives && (!running || container.runs_undisturbed()))
            .map(|(id, _)| id.clone())
            .collect();
        self.rng.pick(&ids).cloned()
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.leader.is_some())
    }

    fn worker_fails(&mut self, id: &str) {
        let exit = self.some_failure();
        let terminal = exit == Exit::Code(TERMINAL_CODE);
        if let Some(process) = self.containers.get(id).and_then(|container| container.worker) {
            self.say(|| format!("{id}: its worker fails: {exit:?} (terminal code {terminal})"));
            self.process_will_end(id, process, 0, exit);
        }
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        self.say(|| format!("FAULT {fault:?}"));
        let short = self.rng.span(50 * MS, 3 * SEC);
        let long = self.rng.span(SEC, 40 * SEC);
        let down = if self.rng.percent(60) { short } else { long };
        let node = self.rng.index(self.nodes.len());
        let replica = self.rng.index(self.replicas.len());
        match fault {
            Fault::ReplicaCrash => self.replica_crash(replica, down),
            Fault::LeaderCrash => {
                if let Some(replica) = self.leader() {
                    self.replica_crash(replica, down);
                }
            }
            Fault::LeaderFreeze => {
                let replica = self.leader().unwrap_or(replica);
                let until = self.now + down;
                self.replicas[replica].paused_until = until;
            }
            Fault::DaemonCrash => self.daemon_dies_for(node, down),
            Fault::CutNodeFromHub => {
                let until = self.now + down;
                self.cut(Path::NodeToHub(node, replica), until);
            }
            Fault::CutAllFromHub => {
                let until = self.now + down;
                for node in 0..self.nodes.len() {
                    for replica in 0..self.replicas.len() {
                        self.cut(Path::NodeToHub(node, replica), until);
                    }
                }
            }
            Fault::CutReplicaFromApi => {
                let until = self.now + down;
                self.cut(Path::ReplicaToApi(replica), until);
            }
            Fault::ApiDown => self.api.down_until = self.now + down,
            Fault::SlowNetwork => self.network.slow_until = self.now + down,
            Fault::WatchLag => self.network.lag_until = self.now + down,
            Fault::ClockStep => self.clock_step(node, replica),
            Fault::Touch => self.edit(|jobset, now| annotate(jobset, "example.com/touched", now.to_string())),
            Fault::AgentLinkBreaks => {
                if let Some(id) = self.some_container(false) {
                    self.agent_loses_link(&id);
                }
            }
            Fault::WorkerFails => {
                if let Some(id) = self.some_container(true) {
                    self.worker_fails(&id);
                }
            }
            Fault::WorkerHangs => {
                let for_good = self.rng.percent(75);
                if let Some(id) = self.some_container(true) {
                    self.worker_hangs(&id, (!for_good).then_some(down));
                }
            }
            Fault::WorkerFailsLeaderCrashes => {
                if let Some(id) = self.some_container(true) {
                    self.worker_fails(&id);
                    if self.leader().is_some() {
                        let at = self.now + self.rng.span(0, 30 * MS);
                        self.queue.push(
                            at,
                            Event::Fault {
                                fault: Fault::LeaderCrash,
                            },
                        );
                    }
                }
            }
            Fault::ContainerKilledDaemonDies => {
                if let Some(id) = self.some_container(true) {
                    let node = self.containers.get(&id).map_or(node, |container| container.node);
                    self.note_loss(&id);
                    self.daemon_dies_for(node, long);
                    self.container_kill(&id, 137);
                }
            }
            Fault::AllWorkersFail => {
                let all: Vec<String> = self
                    .containers
                    .iter()
                    .filter(|(_, container)| container.runs_undisturbed())
                    .map(|(id, _)| id.clone())
                    .collect();
                for id in all {
                    if let Some(process) = self.containers.get(&id).and_then(|container| container.worker) {
                        let after = self.rng.span(0, 100 * MS);
                        self.process_will_end(&id, process, after, Exit::Signal(6));
                    }
                }
            }
            Fault::AgentKilled | Fault::ContainerKilled => {
                if let Some(id) = self.some_container(fault == Fault::ContainerKilled) {
                    self.note_loss(&id);
                    self.container_kill(&id, 137);
                }
            }
            Fault::PodDeleted => {
                let pods: Vec<String> = self.api.pods.keys().cloned().collect();
                if let Some(uid) = self.rng.pick(&pods).cloned() {
                    self.note_early_loss(&uid);
                    self.delete_pod(&uid);
                }
            }
            Fault::NodeReboot => {
                self.node_crash(node);
                let life = self.nodes[node].life;
                let at = self.now + self.rng.span(2 * SEC, 60 * SEC);
                self.queue.push(at, Event::NodeStart { node, life });
            }
            Fault::NodeGone => {
                let left = self.nodes.iter().filter(|node| !node.gone).count();
                if left > 1 && !self.nodes[node].gone {
                    self.node_crash(node);
                    self.nodes[node].gone = true;
                    self.gone_nodes.insert(node, self.now);
                    self.poke_controllers(SEC);
                }
            }
            Fault::NodeCut => {
                let until = self.now + down;
                self.network.cut(Path::NodeToApi(node), until);
                for replica in 0..self.replicas.len() {
                    self.cut(Path::NodeToHub(node, replica), until);
                }
            }
            Fault::Request => {
                self.note_wish();
                self.edit(|jobset, now| annotate(jobset, annotations::RESTART_REQUEST, now.to_string()));
            }
            Fault::RequestWorkerRestart => self.request_worker_restarts(),
            Fault::Suspend | Fault::Resume => {
                self.note_wish();
                self.edit(|jobset, _| jobset.spec.suspend = Some(fault == Fault::Suspend));
            }
            Fault::EditMaxRestarts => {
                let max = i32::try_from(self.rng.below(8)).unwrap_or(0);
                self.edit(|jobset, _| {
                    jobset.spec.failure_policy.get_or_insert_default().max_restarts = Some(max)
                });
            }
            Fault::EditTimeout => {
                let seconds = self.rng.span(1, 30);
                self.edit(|jobset, _| annotate(jobset, annotations::IN_PLACE_TIMEOUT, format!("{seconds}s")));
            }
            Fault::DeleteJob => {
                let jobs: Vec<String> = self.api.jobs.keys().cloned().collect();
                if let Some(name) = self.rng.pick(&jobs).cloned() {
                    self.note_job_failure();
                    self.delete_job(&name);
                }
            }
            Fault::DeleteJobSet => self.delete_jobset(),
            Fault::Scale => self.scale(),
            Fault::Crowd => self.crowd(node),
            Fault::Contention => self.contention(self.now + short),
        }
    }

    fn clock_step(&mut self, node: usize, replica: usize) {
        let by = i64::try_from(self.rng.below(600 * SEC)).unwrap_or(0) - 300_000_000_000;
        self.nodes[node].clock_ahead += by;
        self.replica_clocks[replica] -= by;
    }

    fn daemon_dies_for(&mut self, node: usize, down: Time) {
        self.daemon_crash(node);
        self.queue.push(self.now + down, Event::DaemonStart { node });
    }

    /// Somebody wants some workers restarted, be they restarted alone or not.
    fn request_worker_restarts(&mut self) {
        let jobs: Vec<(String, i32)> = self
            .scenario
            .jobset
            .spec
            .replicated_jobs
            .iter()
            .map(|job| (job.name.clone(), job.replicas()))
            .collect();
        let Some((name, replicas)) = self.rng.pick(&jobs).cloned() else {
            return;
        };
        let of = self.rng.below(u64::try_from(replicas).unwrap_or(1).max(1));
        let job = format!("js-{name}-{of}");
        let target = match self.rng.below(3) {
            0 => Target::ReplicatedJob(name),
            1 => Target::Job(job),
            _ => Target::Worker {
                job,
                index: u32::from(self.rng.percent(50)),
                container: None,
            },
        };
        self.truth.asked.push(target.clone());
        self.edit(|jobset, now| annotate(jobset, annotations::RESTART_WORKERS, format!("{target} {now}")));
    }

    /// Somebody changes the JobSet.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut JobSet, Time)) {
        let Some(jobset) = self.api.jobset.clone() else {
            return;
        };
        let mut jobset = JobSet::clone(&jobset);
        change(&mut jobset, self.now);
        self.note_limits(&jobset);
        self.api.put_jobset(jobset);
    }

    fn delete_jobset(&mut self) {
        // Rare: it ends the story.
        if !self.rng.percent(30) {
            return;
        }
        if self.rng.percent(50) {
            self.api.remove_jobset();
        } else {
            let now = self.timestamp();
            self.edit(|jobset, _| {
                jobset.metadata.deletion_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
            });
        }
    }

    /// The end of all faults: whatever was broken is whole again.
    pub(crate) fn quiesce(&mut self) {
        self.say(|| "no more faults".to_owned());
        self.faults_on = false;
        self.network.heal();
        self.end_own_lies();
        self.api.down_until = self.now;
        for replica in &mut self.replicas {
            replica.paused_until = 0;
        }
        for node in 0..self.nodes.len() {
            for container in self.nodes[node].containers().cloned().collect::<Vec<_>>() {
                // What hung in the kernel comes loose.
                let hung: Vec<u64> = self
                    .containers
                    .get(&container)
                    .map(|container| {
                        container
                            .processes
                            .iter()
                            .filter(|(_, process)| process.killed)
                            .map(|(id, _)| *id)
                            .collect()
                    })
                    .unwrap_or_default();
                for process in hung {
                    self.process_will_end(&container, process, MS, Exit::Signal(9));
                }
            }
        }
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
            self.note_wish();
            self.edit(|jobset, _| jobset.spec.suspend = Some(false));
        }
        self.settle_room();
        self.poke_controllers(MS);
        self.queue.push(self.now + 5 * SEC, Event::Check);
    }
}

pub(crate) fn annotate(jobset: &mut JobSet, key: &str, value: String) {
    jobset
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(key.to_owned(), value);
}
