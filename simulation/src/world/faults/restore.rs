//! A restore of the API server's store to an earlier copy. resourceVersions fall with it.
//!
//! All API servers, kubelets and Kubernetes' controllers are stopped for it and started again; the
//! leader runs on. Its cache is no longer valid, and its watches show nothing more. It finds out by
//! the Lease, or when a write is refused: then it records its epoch and ends. Its successor reads
//! everything again. A copy is restored only if it has the same Jobs and pods, so no worker may be
//! started again because of it. Replicas that do not lead are restarted by hand, as
//! `docs/operations.md` says.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_mutants::mutant;

use crate::rng::Rng;
use crate::scenario::{Profile, Scenario};
use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::{Change, Pod, version_of};

/// A leader that has led for this long believes nodes that report a higher epoch.
const SETTLED: Time = 15 * SEC;

/// A copy of the store.
pub(crate) struct Backup {
    version: u64,
    lease_version: u64,
    jobset: Arc<JobSet>,
    jobs: BTreeMap<String, Arc<Job>>,
    pods: BTreeMap<String, Arc<Pod>>,
}

impl Scenario {
    /// In a third of the scenarios in which only parts of Lockstep fail, except RayClusters and
    /// gangs, the store is restored. Nothing else is drawn from `rng`.
    pub(crate) fn choose_restore(&mut self, rng: &mut Rng) {
        let may = self.profile == Profile::Calm && !self.elastic && self.gang.is_none();
        self.restores = may && rng.below(3) == 0;
    }
}

impl World {
    /// Copies the store, to be restored later.
    pub(crate) fn back_up(&mut self) {
        if !self.faults_on {
            return;
        }
        if let Some(jobset) = self.api.jobset.clone() {
            self.backup = Some(Backup {
                version: self.api.version,
                lease_version: self.lease.version,
                jobset,
                jobs: self.api.jobs.clone(),
                pods: self.api.pods.clone(),
            });
        }
        let at = self.now + self.rng.span(6 * SEC, 15 * SEC);
        self.queue.push(at, Event::Restore);
    }

    /// Restores the copy, or makes another one if Jobs or pods have changed since.
    pub(crate) fn restore(&mut self) {
        if !self.faults_on {
            return;
        }
        let Some(copy) = self.backup.take().filter(|copy| self.is_alike(copy)) else {
            return self.back_up();
        };
        let (from, to) = (self.api.version, copy.version);
        self.say(|| format!("the store goes back from version {from} to {to}"));
        self.restored_at = Some(self.now);
        self.api.down_until = self.now + self.rng.span(100 * MS, 3 * SEC);
        self.api.version = copy.version;
        self.lease.version = copy.lease_version;
        self.api.log = listing(&copy);
        self.api.jobset = Some(copy.jobset);
        self.api.jobs = copy.jobs;
        self.api.pods = copy.pods;
        self.notified_upto = self.api.log.len();
        for replica in 0..self.replicas.len() {
            if self.replicas[replica].leader.is_some() {
                self.replicas[replica].is_outdated = true;
            } else {
                let down = self.rng.span(200 * MS, 3 * SEC);
                self.replica_crash(replica, down);
            }
        }
        for node in 0..self.nodes.len() {
            let pods: Vec<String> = self.nodes[node].local.keys().cloned().collect();
            for pod in pods {
                self.kubelet_restarts(node, &pod);
            }
        }
        let after = self.api.down_until - self.now + MS;
        self.poke_controllers(after);
    }

    /// True if the store has changed since the copy, but its Jobs and pods have not.
    fn is_alike(&self, copy: &Backup) -> bool {
        let jobs = |jobs: &BTreeMap<String, Arc<Job>>| {
            let uids = jobs.values().map(|job| job.metadata.uid.clone());
            uids.collect::<Vec<_>>()
        };
        let pods = |pods: &BTreeMap<String, Arc<Pod>>| {
            let places = pods
                .values()
                .map(|pod| (pod.uid.clone(), pod.node, pod.deleting.is_some()));
            places.collect::<Vec<_>>()
        };
        // The Lease was renewed since then.
        copy.lease_version < self.lease.version
            && self.api.jobset.is_some()
            && jobs(&copy.jobs) == jobs(&self.api.jobs)
            && pods(&copy.pods) == pods(&self.api.pods)
            && !copy.pods.is_empty()
    }

    /// A leader has read the Lease. Returns true if its version was higher before: then the leader
    /// has ended, since what it knows is void.
    pub(crate) fn has_lease_fallen(&mut self, replica: ReplicaIndex) -> bool {
        let version = self.lease.version;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return false;
        };
        let before = std::mem::replace(&mut leader.lease_version, version);
        version < before && self.sees_fall(replica)
    }

    /// A leader that knew `known` has read the JobSet `now`. Returns true if `now` is older: then
    /// the leader has ended.
    pub(crate) fn has_jobset_fallen(&mut self, replica: ReplicaIndex, known: &JobSet, now: &JobSet) -> bool {
        version_of(&now.metadata) < version_of(&known.metadata) && self.sees_fall(replica)
    }

    fn sees_fall(&mut self, replica: ReplicaIndex) -> bool {
        mutant!(IgnoreFall => false);
        self.say(|| format!("replica {replica} sees a version fall"));
        let leader = self.replicas[replica].leader.as_ref();
        let epoch = leader.map_or(0, |leader| leader.registry.epoch().0);
        self.end_term_above(replica, epoch);
        true
    }

    /// Returns true if nodes report a higher epoch than the leader's: then the leader has ended.
    pub(crate) fn is_outbid(&mut self, replica: ReplicaIndex) -> bool {
        let highest = self.truth_epoch();
        let Some(leader) = &self.replicas[replica].leader else {
            return false;
        };
        let settled = self.now >= leader.since + SETTLED;
        if self.restored_at.is_none() || !settled || leader.registry.epoch().0 >= highest {
            return false;
        }
        self.say(|| format!("replica {replica} learns of epoch {highest}"));
        self.end_term_above(replica, highest);
        true
    }

    /// The leader records that later epochs must be above this one, releases the Lease, and ends.
    fn end_term_above(&mut self, replica: ReplicaIndex, epoch: u64) {
        self.lease.floor = self.lease.floor.max(epoch);
        self.lease.release();
        let down = self.rng.span(200 * MS, 3 * SEC);
        self.replica_crash(replica, down);
    }
}

/// The first events of a watch that lists everything.
fn listing(copy: &Backup) -> Vec<Change> {
    let jobset = Change::JobSet(version_of(&copy.jobset.metadata), Some(Arc::clone(&copy.jobset)));
    let jobs = copy.jobs.iter().map(|(name, job)| {
        let version = version_of(&job.metadata);
        Change::Job(version, name.clone(), Some(Arc::clone(job)))
    });
    let pods = copy.pods.values().map(|pod| pod.shown());
    std::iter::once(jobset).chain(jobs).chain(pods).collect()
}
