//! Replicas of the control plane: their processes, and which of them leads.

pub(crate) mod cache;
pub(crate) mod gang_task;
pub(crate) mod group;
pub(crate) mod pods;
mod reconciler;
pub(crate) mod slow;

use std::sync::Arc;

use lockstep_control_plane::hub::Registry;
use lockstep_core::restart::Epoch;

use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::KINDS;
use crate::world::replica::gang_task::GangTask;
use crate::world::replica::group::Group;
use cache::Cache;

/// How long a lease lasts without renewal.
const LEASE: Time = 15 * SEC;

/// The Lease of the control plane.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    holder: Option<(ReplicaIndex, u32)>,
    expires: Time,
    /// The version of the store at its last write.
    pub(crate) version: u64,
    /// Later epochs must be above this one, if it is set.
    pub(crate) floor: u64,
}

impl Lease {
    /// Releases the lease.
    pub(crate) fn release(&mut self) {
        self.holder = None;
    }
}

/// One replica.
#[derive(Default)]
pub(crate) struct Replica {
    pub(crate) life: u32,
    pub(crate) runs: bool,
    /// Its caches are filled. Until then it does nothing.
    pub(crate) synced: bool,
    /// Its caches are from before a restore of the store, and its watches show nothing.
    pub(crate) is_outdated: bool,
    /// It is frozen until then.
    pub(crate) paused_until: Time,
    /// Error of the wall clock when the process began. Later clock steps do not affect the process.
    pub(crate) clock_ahead: i64,
    /// When it last saw that it holds the lease.
    seen: Time,
    pub(crate) cache: Cache,
    pub(crate) leader: Option<Leader>,
}

/// The state of a leader.
pub(crate) struct Leader {
    pub(crate) registry: Arc<Registry>,
    /// When its term began.
    pub(crate) since: Time,
    /// The version of the Lease that it has read.
    pub(crate) lease_version: u64,
    pub(crate) group: Option<Group>,
    pub(crate) group_due: Option<Time>,
    /// Since the group's last step more may have changed than the reports of nodes.
    pub(crate) owes_step: bool,
    /// A slow step is in progress.
    pub(crate) is_stepping: bool,
    pub(crate) reconcile_due: Option<Time>,
    /// A plan is being carried out.
    pub(crate) applying: bool,
    pub(crate) look_again: bool,
    pub(crate) failures: u32,
    /// The reconciler does nothing before then, whatever changes.
    pub(crate) rests_until: Time,
    pub(crate) counts_held_since: Option<Time>,
    pub(crate) gangs: GangTask,
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

    /// The process ends, for any reason. It starts again after this time.
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
            // It ends in time, even if it reaches no other part.
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

    /// Schedules when the watches of a replica show what is in the log.
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
