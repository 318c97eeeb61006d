//! Replicas of the control plane: processes, their caches, and which of them leads.

pub(crate) mod gang_task;
pub(crate) mod group;
pub(crate) mod pods;
mod reconciler;
pub(crate) mod slow;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_control_plane::hub::Registry;
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::restart::Epoch;

use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::{Change, KINDS, version_of};
use crate::world::replica::gang_task::GangTask;
use crate::world::replica::group::Group;

/// How long a lease lasts that is not renewed.
const LEASE: Time = 15 * SEC;
/// How long a write of one's own is believed that the watch does not confirm.
const BELIEVED: Time = 10 * SEC;

/// The Lease of the control plane.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    holder: Option<(ReplicaIndex, u32)>,
    expires: Time,
    /// The version of the store at its last write.
    pub(crate) version: u64,
    /// Later epochs have to be above this one, if one is written down.
    pub(crate) floor: u64,
}

impl Lease {
    /// Nobody holds it any more.
    pub(crate) fn free(&mut self) {
        self.holder = None;
    }
}

/// One replica.
#[derive(Default)]
pub(crate) struct Replica {
    pub(crate) life: u32,
    pub(crate) runs: bool,
    /// Its caches have been filled: before that it neither leads nor follows.
    pub(crate) synced: bool,
    /// Its caches are older than the return of the store, and its watches show nothing.
    pub(crate) is_outdated: bool,
    /// Frozen until then: nothing that it does happens before.
    pub(crate) paused_until: Time,
    /// How wrong the wall clock was when the process began; later steps do not matter to it.
    pub(crate) clock_ahead: i64,
    /// When it last saw that the lease is its own.
    seen: Time,
    pub(crate) cache: Cache,
    pub(crate) leader: Option<Leader>,
}

/// What only the leader has.
pub(crate) struct Leader {
    pub(crate) registry: Arc<Registry>,
    /// When it began to lead.
    pub(crate) since: Time,
    /// The version at which it has seen the Lease.
    pub(crate) lease_version: u64,
    pub(crate) group: Option<Group>,
    pub(crate) group_due: Option<Time>,
    /// More than what nodes say may have changed since the group's last step.
    pub(crate) owes_step: bool,
    /// A step takes time now.
    pub(crate) is_stepping: bool,
    pub(crate) reconcile_due: Option<Time>,
    /// A plan is being carried out.
    pub(crate) applying: bool,
    pub(crate) look_again: bool,
    pub(crate) failures: u32,
    /// Nothing is done before, whatever changes.
    pub(crate) rests_until: Time,
    pub(crate) counts_held_since: Option<Time>,
    pub(crate) gangs: GangTask,
}

/// What the watches have shown, completed by what this process has written.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    read: [usize; KINDS],
    /// How many changes it has taken in.
    pub(crate) changes: u64,
    pub(crate) jobset: Option<Arc<JobSet>>,
    jobset_version: u64,
    jobs: BTreeMap<String, (u64, Option<Arc<Job>>)>,
    pub(crate) pods: BTreeMap<String, Arc<PodSummary>>,
    wrote_jobset: Option<(Time, Arc<JobSet>)>,
    wrote_jobs: BTreeMap<String, (Time, Arc<Job>)>,
}

impl Cache {
    /// Takes in the log up to this entry, as far as it is of one kind.
    fn read(&mut self, log: &[Change], kind: usize, upto: usize) {
        let from = self.read[kind];
        if upto <= from {
            return;
        }
        self.read[kind] = upto;
        for change in log.iter().take(upto).skip(from) {
            if change.kind() == kind {
                self.take(change.clone());
            }
        }
    }

    fn take(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::JobSet(version, jobset) => {
                self.jobset = jobset;
                self.jobset_version = version;
            }
            Change::Job(version, name, job) => {
                self.jobs.insert(name, (version, job));
            }
            Change::Pod(uid, Some(pod)) => {
                self.pods.insert(uid, pod);
            }
            Change::Pod(uid, None) => {
                self.pods.remove(&uid);
            }
        }
    }

    /// The Jobs that the watch shows.
    pub(crate) fn seen_jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.values().filter_map(|(_, job)| job.clone()).collect()
    }

    /// The JobSet with own writes.
    pub(crate) fn completed_jobset(&self, now: Time) -> Option<Arc<JobSet>> {
        let seen = self.jobset.as_ref()?;
        match &self.wrote_jobset {
            Some((at, wrote))
                if now < at + BELIEVED
                    && wrote.metadata.uid == seen.metadata.uid
                    && version_of(&wrote.metadata) > version_of(&seen.metadata) =>
            {
                Some(Arc::clone(wrote))
            }
            _ => Some(Arc::clone(seen)),
        }
    }

    /// The Jobs with own writes. True: some of it is not confirmed.
    pub(crate) fn completed_jobs(&self, now: Time) -> (Vec<Arc<Job>>, bool) {
        let mut jobs: BTreeMap<String, Arc<Job>> = self
            .jobs
            .iter()
            .filter_map(|(name, (_, job))| Some((name.clone(), job.clone()?)))
            .collect();
        let mut unconfirmed = false;
        for (name, (at, wrote)) in &self.wrote_jobs {
            let seen = self.jobs.get(name).map_or(0, |(version, _)| *version);
            if now < at + BELIEVED && version_of(&wrote.metadata) > seen {
                jobs.insert(name.clone(), Arc::clone(wrote));
                unconfirmed = true;
            }
        }
        (jobs.into_values().collect(), unconfirmed)
    }

    pub(crate) fn wrote_jobset(&mut self, now: Time, jobset: Arc<JobSet>) {
        self.wrote_jobset = Some((now, jobset));
    }

    pub(crate) fn wrote_job(&mut self, now: Time, name: String, job: Arc<Job>) {
        self.wrote_jobs.insert(name, (now, job));
    }
}

impl World {
    pub(crate) fn replica_lives(&self, replica: ReplicaIndex, life: u32) -> bool {
        let replica = &self.replicas[replica];
        replica.runs && replica.life == life
    }

    pub(crate) fn replica_start(&mut self, replica: ReplicaIndex) {
        if self.replicas[replica].runs {
            return;
        }
        let life = self.replicas[replica].life + 1;
        self.replicas[replica] = Replica {
            life,
            runs: true,
            clock_ahead: self.replica_clocks[replica],
            ..Replica::default()
        };
        self.say(|| format!("replica {replica} starts"));
        let at = self.now + self.rng.span(10 * MS, 500 * MS);
        self.queue.push(at, Event::LeaseTick { replica, life });
    }

    /// The process ends, for any reason. It is started again after this time.
    pub(crate) fn replica_crash(&mut self, replica: ReplicaIndex, down: Time) {
        if !self.replicas[replica].runs {
            return;
        }
        self.say(|| format!("replica {replica} dies"));
        self.replicas[replica].runs = false;
        self.replicas[replica].synced = false;
        self.replicas[replica].leader = None;
        let streams: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.replica == replica)
            .map(|(id, _)| *id)
            .collect();
        for stream in streams {
            self.hub_end_breaks(stream);
        }
        self.queue.push(self.now + down, Event::ReplicaStart { replica });
    }

    pub(crate) fn lease_tick(&mut self, replica: ReplicaIndex, life: u32) {
        let now = self.now;
        let reachable = self.replica_reaches_api(replica);
        if !self.replicas[replica].synced {
            if reachable {
                let upto = self.api.log.len();
                let replica = &mut self.replicas[replica];
                replica.synced = true;
                for kind in 0..KINDS {
                    replica.cache.read(&self.api.log, kind, upto);
                }
            }
            let again = self.now + self.rng.span(MS, 500 * MS);
            self.queue.push(again, Event::LeaseTick { replica, life });
            return;
        }
        let own = self.lease.holder == Some((replica, life));
        let every = if self.replicas[replica].leader.is_some() {
            let expired = now >= self.replicas[replica].seen + LEASE;
            if expired || reachable && !own {
                self.say(|| format!("replica {replica} has lost the lease"));
                let down = self.rng.span(200 * MS, 3 * SEC);
                self.replica_crash(replica, down);
                return;
            }
            if reachable && (self.has_lease_fallen(replica) || self.is_outbid(replica)) {
                return;
            }
            if reachable {
                self.replicas[replica].seen = now;
                self.lease.expires = now + LEASE;
                let version = self.api.version;
                self.lease.version = version;
                if let Some(leader) = &mut self.replicas[replica].leader {
                    leader.lease_version = version;
                }
            }
            // It ends in time, whether or not it reaches anybody.
            (5 * SEC).min(self.replicas[replica].seen + LEASE - now)
        } else {
            let mine = self.lease.holder.is_some_and(|(holder, _)| holder == replica);
            if reachable && (self.lease.holder.is_none() || mine || now >= self.lease.expires) {
                self.lead(replica, life);
            }
            2 * SEC
        };
        self.queue.push(now + every, Event::LeaseTick { replica, life });
    }

    fn lead(&mut self, replica: ReplicaIndex, life: u32) {
        let now = self.now;
        let version = self.api.next_version();
        self.lease.version = version;
        let floor = self.lease.floor;
        let epoch = if floor < version { version } else { floor + 1 };
        if floor >= version {
            self.lease.floor = epoch;
        }
        self.note_epoch(epoch);
        self.lease.holder = Some((replica, life));
        self.lease.expires = now + LEASE;
        self.say(|| format!("replica {replica} leads with epoch {epoch}"));
        let at = &mut self.replicas[replica];
        at.seen = now;
        at.leader = Some(Leader {
            registry: Registry::new(Epoch(epoch)),
            since: now,
            lease_version: self.lease.version,
            group: None,
            group_due: None,
            owes_step: false,
            is_stepping: false,
            reconcile_due: None,
            applying: false,
            look_again: false,
            failures: 0,
            rests_until: 0,
            counts_held_since: None,
            gangs: GangTask::default(),
        });
        self.poke_group(replica);
        self.poke_reconciler(replica, MS);
        self.poke_gangs();
    }

    /// Lets the watches of a replica show what is in the log.
    pub(crate) fn schedule_watches(&mut self, replica: ReplicaIndex) {
        if self.replicas[replica].is_outdated {
            return;
        }
        let upto = self.api.log.len();
        let life = self.replicas[replica].life;
        for kind in 0..KINDS {
            let read = self.replicas[replica].cache.read[kind];
            if !self.api.log.iter().skip(read).any(|change| change.kind() == kind) {
                self.replicas[replica].cache.read[kind] = upto;
                continue;
            }
            let lag = if self.now < self.network.lag_until {
                self.rng.span(MS, 8 * SEC)
            } else {
                self.rng.span(MS / 2, 20 * MS)
            };
            let event = Event::Watch {
                replica,
                life,
                kind,
                upto,
            };
            self.queue.push(self.now + lag, event);
        }
    }

    pub(crate) fn watch(&mut self, replica: ReplicaIndex, life: u32, kind: usize, upto: usize) {
        if self.replicas[replica].is_outdated {
            return;
        }
        if !self.replica_reaches_api(replica) {
            let again = self.now + self.rng.span(200 * MS, SEC);
            let event = Event::Watch {
                replica,
                life,
                kind,
                upto,
            };
            self.queue.push(again, event);
            return;
        }
        if upto <= self.replicas[replica].cache.read[kind] {
            return;
        }
        self.replicas[replica].cache.read(&self.api.log, kind, upto);
        if self.replicas[replica].leader.is_some() {
            self.poke_group(replica);
            if kind < 2 || self.scenario.gang.is_some() {
                self.poke_reconciler(replica, MS);
            }
            self.poke_gangs();
        }
    }
}
