//! The caches, and queries for one JobSet.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::runtime::reflector::{ObjectRef, Store};
#[cfg(test)]
use kube::runtime::watcher;
use lockstep_api::JobSet;
use lockstep_core::Observed;
use lockstep_core::jobset::completed;
use lockstep_core::jobset::observed::Setting;
use lockstep_core::jobset::pod::{Changed, GangPod};

use super::departed::Departed;
use super::follow::Cache;
use super::job::PackedJob;
use super::lean::Lean;
use super::left_out::LeftOut;
use super::light::{light, light_job};
use super::members::MembersByJob;
use super::namespace_budget::NamespaceBudgets;
use super::packed::PackedJobSet;
use super::pod::WatchedPod;

/// The caches. Cheap to clone; clones share them.
#[derive(Clone)]
pub struct Stores {
    /// All JobSets that can be decoded.
    pub jobsets: Store<PackedJobSet>,
    pub(super) caches: Arc<Caches>,
}

pub(super) struct Caches {
    pub(super) jobsets: Arc<Cache<PackedJobSet>>,
    pub(super) jobs: Arc<Cache<PackedJob>>,
    pub(super) pods: Arc<Cache<WatchedPod>>,
    pub(super) services: Arc<Cache<Service>>,
    pub(super) claims: Arc<Cache<PersistentVolumeClaim>>,
    pub(super) members: Arc<MembersByJob>,
    pub(super) departed: Arc<Departed>,
    pub(super) budgets: NamespaceBudgets,
    pub(super) jobs_left_out: Arc<LeftOut>,
    pub(super) pods_left_out: Arc<LeftOut>,
}

impl Stores {
    pub(super) fn new(caches: Caches) -> Self {
        Self {
            jobsets: caches.jobsets.store.clone(),
            caches: Arc::new(caches),
        }
    }

    /// True if Jobs or pods of a JobSet are left out of the caches for lack of memory. Nothing can
    /// be decided about it then. Ask before reading the JobSet, and after.
    #[must_use]
    pub(crate) fn is_seen_in_part(&self, key: &ObjectRef<JobSet>) -> bool {
        self.caches.jobs_left_out.has(key) || self.caches.pods_left_out.has(key)
    }

    /// The memory budgets of the caches.
    pub(crate) fn budgets(&self) -> &NamespaceBudgets {
        &self.caches.budgets
    }

    /// Waits until all caches are filled for the first time.
    pub async fn wait_until_ready(&self) {
        let Caches {
            jobsets,
            jobs,
            pods,
            services,
            claims,
            ..
        } = &*self.caches;
        tokio::join!(
            jobsets.wait_until_ready(),
            jobs.wait_until_ready(),
            pods.wait_until_ready(),
            services.wait_until_ready(),
            claims.wait_until_ready()
        );
    }

    /// True if all caches have been filled.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let Caches {
            jobsets,
            jobs,
            pods,
            services,
            claims,
            ..
        } = &*self.caches;
        jobsets.is_ready() && jobs.is_ready() && pods.is_ready() && services.is_ready() && claims.is_ready()
    }

    /// The pods that have the label of this JobSet.
    #[must_use]
    pub fn pods_of(&self, jobset: &ObjectRef<JobSet>) -> Vec<Arc<WatchedPod>> {
        self.caches.pods.seen(jobset)
    }

    /// The pods of Jobs with exclusive placement.
    #[must_use]
    pub fn members(&self) -> Arc<MembersByJob> {
        Arc::clone(&self.caches.members)
    }

    /// The Jobs that have the label of this JobSet, as the watch shows them.
    #[must_use]
    pub fn jobs_of(&self, jobset: &ObjectRef<JobSet>) -> Vec<Arc<Job>> {
        unpacked(self.caches.jobs.seen(jobset))
    }

    /// A version that changes whenever [`Stores::jobs_of`] or [`Stores::pods_of`] would show
    /// something new. Read it before those.
    #[must_use]
    pub fn version_of(&self, jobset: &ObjectRef<JobSet>) -> (u64, u64) {
        let Caches { jobs, pods, .. } = &*self.caches;
        (jobs.version(jobset), pods.version(jobset))
    }

    /// True if the JobSet needs the huge-object lock. Its new Jobs take as much memory as other
    /// objects of its size.
    pub(crate) fn is_huge(&self, key: &ObjectRef<JobSet>) -> bool {
        let jobset = self.jobsets.get(&packed(key));
        jobset.is_some_and(|jobset| jobset.is_huge())
    }

    /// The bytes that [`Stores::observe`] parses for a JobSet and its Jobs, in proportion to the
    /// memory that it needs.
    #[must_use]
    pub(crate) fn weight(&self, key: &ObjectRef<JobSet>) -> usize {
        let jobs = self.caches.jobs.seen(key);
        let jobs: usize = jobs.iter().map(|job| job.size()).sum();
        let jobset = self.jobsets.get(&packed(key));
        jobset.map_or(0, |jobset| jobset.size()).saturating_add(jobs)
    }

    /// A JobSet and its surroundings, own writes included. True if the watch has not confirmed all
    /// of it yet.
    #[must_use]
    pub fn observe(
        &self,
        key: &ObjectRef<JobSet>,
        setting: &Setting,
        now: jiff::Timestamp,
    ) -> Option<(Observed, bool)> {
        let caches = &*self.caches;
        let seen = vec![self.jobsets.get(&packed(key))?];
        let (jobset, unconfirmed) = caches.jobsets.recent.complete(key, seen);
        let (jobs, more) = caches.jobs.recent.complete(key, caches.jobs.seen(key));
        let (services, yet_more) = caches.services.recent.complete(key, caches.services.seen(key));
        let jobset = jobset.first()?.unpack().ok()?;
        let jobs = self.jobs_and_departed(&jobset, unpacked(jobs));
        let mut observed = Observed::new(Arc::new(jobset), jobs, services, now);
        observed.features = setting.features;
        observed.has_daemons = setting.has_daemons;
        observed.agents = setting.agents.clone();
        if observed.jobset.spec.gang.is_some() {
            let restarts = observed.jobset.restart_attempt();
            let uid = observed.jobset.uid_str();
            let pods = caches.pods.seen(key);
            let own = pods
                .iter()
                .filter(|pod| pod.summary.jobset_uid.as_deref() == Some(uid));
            let own = own.filter_map(|pod| GangPod::of(&pod.summary, restarts));
            observed.gang_pods = own.collect();
        }
        let mut even_more = false;
        if !observed.jobset.spec.volume_claim_policies.is_empty() {
            (observed.claims, even_more) = caches.claims.recent.complete(key, caches.claims.seen(key));
        }
        if observed.jobset.in_place() {
            let pods = caches.pods.seen(key);
            observed.agent_pods = pods.iter().map(|pod| pod.summary.agent.clone()).collect();
            let uid = observed.jobset.uid_str();
            let own = pods
                .iter()
                .map(|pod| &pod.summary)
                .filter(|pod| pod.jobset_uid.as_deref() == Some(uid));
            observed.changed = Changed::among(own, observed.jobset.restart_attempt());
        }
        Some((observed, unconfirmed || more || yet_more || even_more))
    }

    /// A [`light`] JobSet with gangs and its Jobs, own writes included; `None` if it does not
    /// exist, has no gangs, or has finished.
    #[must_use]
    pub fn gang(&self, key: &ObjectRef<JobSet>) -> Option<(Arc<JobSet>, Vec<Arc<Job>>)> {
        let caches = &*self.caches;
        if self.is_seen_in_part(key) {
            return None;
        }
        let seen = vec![self.jobsets.get(&packed(key))?];
        let (jobset, _) = caches.jobsets.recent.complete(key, seen);
        let jobset = jobset.first()?;
        if !jobset.may_have_gangs() {
            return None;
        }
        let jobset = jobset.unpack().ok()?;
        if jobset.spec.gang.is_none() || jobset.is_finished() {
            return None;
        }
        let (jobs, _) = caches.jobs.recent.complete(key, caches.jobs.seen(key));
        let jobs = self.jobs_and_departed(&jobset, unpacked(jobs));
        let jobs = completed::with_gone(&jobset, jobs);
        let jobs = jobs.into_iter().map(light_job).collect();
        // Objects may have been left out in the meantime.
        (!self.is_seen_in_part(key)).then(|| (Arc::new(light(jobset)), jobs))
    }

    /// The existing Jobs of a JobSet, with those that were removed after completion and are not in
    /// its status yet.
    #[must_use]
    pub(crate) fn jobs_and_departed(&self, jobset: &JobSet, mut jobs: Vec<Arc<Job>>) -> Vec<Arc<Job>> {
        let mut departed = self.caches.departed.of(jobset);
        if !departed.is_empty() {
            let there: HashSet<_> = jobs.iter().map(|job| &job.metadata.name).collect();
            departed.retain(|job| !there.contains(&job.metadata.name));
            jobs.extend(departed);
        }
        jobs
    }

    /// A JobSet, as the watch shows it.
    #[must_use]
    pub fn jobset(&self, key: &ObjectRef<JobSet>) -> Option<JobSet> {
        self.jobsets.get(&packed(key))?.unpack().ok()
    }

    /// A JobSet without its spec, as the watch shows it.
    pub(crate) fn without_spec(&self, key: &ObjectRef<JobSet>) -> Option<JobSet> {
        Some(self.jobsets.get(&packed(key))?.without_spec())
    }

    /// A JobSet that restarts in place, as the watch shows it. Others, which may be many, are not
    /// parsed.
    #[must_use]
    pub(crate) fn in_place(&self, key: &ObjectRef<JobSet>) -> Option<JobSet> {
        let jobset = self.jobsets.get(&packed(key))?;
        let jobset = jobset.may_restart_in_place().then(|| jobset.unpack().ok())?;
        jobset.filter(JobSet::in_place)
    }

    /// Records a JobSet that this process wrote, so it is visible before the watch shows it.
    pub fn wrote_jobset(&self, jobset: &JobSet) {
        // One that cannot be packed becomes visible with the watch.
        if let Ok(packed) = PackedJobSet::of(jobset) {
            self.wrote_packed(packed);
        }
    }

    /// Records the answer to a write of a JobSet.
    pub(crate) fn wrote_packed(&self, jobset: PackedJobSet) {
        self.caches.jobsets.recent.put(jobset.key(), Arc::new(jobset));
    }

    /// Records a Job that this process wrote.
    pub(crate) fn wrote_job(&self, key: &ObjectRef<JobSet>, Lean(job): Lean<Job>) {
        self.caches
            .jobs
            .recent
            .put(key.clone(), Arc::new(PackedJob::of(&job)));
    }

    /// Records a Service that this process wrote or found.
    pub(crate) fn wrote_service(&self, key: &ObjectRef<JobSet>, Lean(service): Lean<Service>) {
        self.caches.services.recent.put(key.clone(), Arc::new(service));
    }

    /// Records a claim that this process wrote or found.
    pub(crate) fn wrote_claim(&self, key: &ObjectRef<JobSet>, Lean(claim): Lean<PersistentVolumeClaim>) {
        self.caches.claims.recent.put(key.clone(), Arc::new(claim));
    }
}

#[cfg(test)]
impl Stores {
    /// Empty caches.
    pub(crate) fn empty() -> Self {
        Self::of(Cache::new().0)
    }

    /// Caches with only this JobSet.
    pub(crate) fn showing(jobset: &JobSet) -> Self {
        let (jobsets, mut writer) = Cache::new();
        let packed = PackedJobSet::of(jobset).unwrap();
        writer.apply_watcher_event(&watcher::Event::Apply(packed));
        Self::of(jobsets)
    }

    fn of(jobsets: Arc<Cache<PackedJobSet>>) -> Self {
        Self::new(Caches {
            jobsets,
            ..Caches::empty()
        })
    }
}

#[cfg(test)]
impl Caches {
    /// Caches without an object.
    pub(super) fn empty() -> Self {
        Self {
            jobsets: Cache::new().0,
            jobs: Cache::new().0,
            pods: Cache::new().0,
            services: Cache::new().0,
            claims: Cache::new().0,
            members: Arc::default(),
            departed: Arc::default(),
            budgets: NamespaceBudgets::default(),
            jobs_left_out: Arc::default(),
            pods_left_out: Arc::default(),
        }
    }
}

fn unpacked(jobs: Vec<Arc<PackedJob>>) -> Vec<Arc<Job>> {
    let unpack = |job: &Arc<PackedJob>| {
        let unpacked = job.unpack();
        if unpacked.is_none() {
            tracing::error!(?job, "a Job in the cache cannot be decoded");
        }
        unpacked.map(Arc::new)
    };
    jobs.iter().filter_map(unpack).collect()
}

/// The key of a JobSet in its cache.
#[must_use]
pub fn packed(key: &ObjectRef<JobSet>) -> ObjectRef<PackedJobSet> {
    ObjectRef::new(&key.name).within(key.namespace.as_deref().unwrap_or_default())
}
