//! A restore of the API server's store: it goes back to an earlier copy, and with it
//! resourceVersions fall.
//!
//! All API servers are stopped for it and started again, and with them kubelets and Kubernetes'
//! controllers; the leader runs on. What it has cached no longer exists, and its watches show
//! nothing any more. It finds that out by the Lease, or when its write is refused: it writes its
//! epoch down and ends. The one after it reads everything again. Only a copy is put back that has
//! the same Jobs and pods, so no worker may be started again for it. Replicas that do not lead are
//! started again by hand, as `docs/operations.md` says.

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

/// How far into its term a leader believes nodes that speak of a higher epoch.
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
    /// In a third of the scenarios in which only parts of Lockstep fail, but for RayClusters and
    /// gangs, the store goes back once. Nothing else is drawn from `rng`.
    pub(crate) fn choose_restore(&mut self, rng: &mut Rng) {
        let may = self.profile == Profile::Calm && !self.elastic && self.gang.is_none();
        self.restores = may && rng.below(3) == 0;
    }
}

impl World {
    /// Copies the store, to be put back later.
    pub(crate) fn back_up(&mut self) {
        if !self.faults_on {
            return;
        }
        if let Some(jobset) = self.api.jobset.clone() {
            self.copy = Some(Backup {
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

    /// Puts the copy back, or makes another if it is of other Jobs and pods.
    pub(crate) fn restore(&mut self) {
        if !self.faults_on {
            return;
        }
        let Some(copy) = self.copy.take().filter(|copy| self.is_alike(copy)) else {
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
        self.told = self.api.log.len();
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
                self.kubelet_begins_anew(node, &pod);
            }
        }
        let after = self.api.down_until - self.now + MS;
        self.poke_controllers(after);
    }

    /// True if the store has changed since, and the copy has the present Jobs and pods.
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
        // The Lease was renewed since.
        copy.lease_version < self.lease.version
            && self.api.jobset.is_some()
            && jobs(&copy.jobs) == jobs(&self.api.jobs)
            && pods(&copy.pods) == pods(&self.api.pods)
            && !copy.pods.is_empty()
    }

    /// A leader has read this version of the Lease. True: it was higher before, so its knowledge is
    /// void, and it has ended.
    pub(crate) fn has_lease_fallen(&mut self, replica: ReplicaIndex) -> bool {
        let version = self.lease.version;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return false;
        };
        let before = std::mem::replace(&mut leader.lease_version, version);
        version < before && self.sees_fall(replica)
    }

    /// A leader has read this JobSet, which is older than the one that it knew. The same.
    pub(crate) fn has_jobset_fallen(&mut self, replica: ReplicaIndex, known: &JobSet, now: &JobSet) -> bool {
        version_of(&now.metadata) < version_of(&known.metadata) && self.sees_fall(replica)
    }

    fn sees_fall(&mut self, replica: ReplicaIndex) -> bool {
        mutant!(IgnoreFall => false);
        self.say(|| format!("replica {replica} sees a version fall"));
        let leader = self.replicas[replica].leader.as_ref();
        let epoch = leader.map_or(0, |leader| leader.registry.epoch().0);
        self.gives_up_above(replica, epoch);
        true
    }

    /// A leader hears from nodes of a higher epoch than its own. True: it has ended.
    pub(crate) fn is_outbid(&mut self, replica: ReplicaIndex) -> bool {
        let highest = self.truth_epoch();
        let Some(leader) = &self.replicas[replica].leader else {
            return false;
        };
        let settled = self.now >= leader.since + SETTLED;
        if self.restored_at.is_none() || !settled || leader.registry.epoch().0 >= highest {
            return false;
        }
        self.say(|| format!("replica {replica} hears of the epoch {highest}"));
        self.gives_up_above(replica, highest);
        true
    }

    /// It writes down that epochs are to go on above this one, gives up the Lease, and ends.
    fn gives_up_above(&mut self, replica: ReplicaIndex, epoch: u64) {
        self.lease.floor = self.lease.floor.max(epoch);
        self.lease.free();
        let down = self.rng.span(200 * MS, 3 * SEC);
        self.replica_crash(replica, down);
    }
}

/// What a watch begins with that reads all there is.
fn listing(copy: &Backup) -> Vec<Change> {
    let jobset = Change::JobSet(version_of(&copy.jobset.metadata), Some(Arc::clone(&copy.jobset)));
    let jobs = copy.jobs.iter().map(|(name, job)| {
        let version = version_of(&job.metadata);
        Change::Job(version, name.clone(), Some(Arc::clone(job)))
    });
    let pods = copy.pods.values().map(|pod| pod.shown());
    std::iter::once(jobset).chain(jobs).chain(pods).collect()
}
