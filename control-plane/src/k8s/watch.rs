//! What the API server says, cached, and a signal whenever it says something new.
//!
//! Promises:
//! - A cache is updated before anybody is told.
//! - Who is told reads levels, not edges: a key means "look at this JobSet again" (see [`notify`]).
//! - A watch that breaks is resumed, or made anew with a full list, for as long as the process runs; a missing CRD is waited for.
//! - An object that cannot be read is reported and left alone; it does not stand in the way of others.

pub(crate) mod cache_entry;
pub(crate) mod decode;
mod departed;
pub(crate) mod follow;
mod job;
pub(crate) mod lean;
mod left_out;
pub mod light;
pub mod members;
pub(crate) mod namespace_budget;
pub mod notify;
pub mod own_writes;
mod packed;
pub(crate) mod packed_parts;
mod pod;

use std::collections::HashSet;
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use lockstep_api::{JobSet, labels};
use lockstep_core::Observed;
use lockstep_core::jobset::completed;
use lockstep_core::jobset::gang_pod::GangPod;
use lockstep_core::jobset::in_place::Changed;
use lockstep_core::jobset::observed::Setting;
use lockstep_core::jobset::pod::PodSummary;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::k8s::apply::events;
use cache_entry::Kept as _;
use departed::Departed;
use follow::{Cache, Follow, Told, jobset_of, patient};
use job::PackedJob;
use lean::{Lean, Slim};
use left_out::LeftOut;
use light::{light, light_job};
use members::{JobRef, MembersByJob};
use namespace_budget::{NamespaceBudgets, Weighs, within};
use notify::Notifier;

pub use packed::{PackedJobSet, Unreadable};
pub use pod::WatchedPod;

/// Objects that are listed at once. Some are large.
const PAGE: u32 = 100;

/// Who wants to know which JobSets to look at again.
pub struct Watchers {
    /// Told of JobSets, of their Jobs, Services and claims, of pods in which upstream's in-place restart agent reports, and of those that can have no agents.
    pub reconciler: Notifier<ObjectRef<JobSet>>,
    /// Told of JobSets, and of their Jobs and pods.
    pub groups: Notifier<ObjectRef<JobSet>>,
    /// Told of Jobs with exclusive placement whose pods have changed.
    pub placement: Notifier<JobRef>,
    /// Told of JobSets and of their Jobs.
    pub gangs: Notifier<ObjectRef<JobSet>>,
    /// Told of JobSets, of their Jobs, and of pods of heads, where Ray's resources are looked after.
    pub ray: Option<Notifier<ObjectRef<JobSet>>>,
}

/// The caches. Cheap to clone; all clones read the same.
#[derive(Clone)]
pub struct Stores {
    /// All JobSets that can be read.
    pub jobsets: Store<PackedJobSet>,
    caches: Arc<Caches>,
}

struct Caches {
    jobsets: Arc<Cache<PackedJobSet>>,
    jobs: Arc<Cache<PackedJob>>,
    pods: Arc<Cache<WatchedPod>>,
    services: Arc<Cache<Service>>,
    claims: Arc<Cache<PersistentVolumeClaim>>,
    members: Arc<MembersByJob>,
    departed: Arc<Departed>,
    rooms: NamespaceBudgets,
    left_out: Arc<LeftOut>,
}

impl Stores {
    /// Whether Jobs of a JobSet are left out of what is seen, because there is no room for them: then nothing can be decided about it. To be asked before it is read,
    /// and after.
    #[must_use]
    pub(crate) fn is_seen_in_part(&self, key: &ObjectRef<JobSet>) -> bool {
        self.caches.left_out.has(key)
    }

    /// What all that caches keep may take.
    pub(crate) fn rooms(&self) -> &NamespaceBudgets {
        &self.caches.rooms
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

    /// Whether all caches have been filled.
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

    /// The pods that belong to a JobSet of this name, by their label.
    #[must_use]
    pub fn pods_of(&self, jobset: &ObjectRef<JobSet>) -> Vec<Arc<WatchedPod>> {
        self.caches.pods.seen(jobset)
    }

    /// The pods of Jobs with exclusive placement.
    #[must_use]
    pub fn members(&self) -> Arc<MembersByJob> {
        Arc::clone(&self.caches.members)
    }

    /// The Jobs that belong to a JobSet of this name, by their label, as the watch shows them.
    #[must_use]
    pub fn jobs_of(&self, jobset: &ObjectRef<JobSet>) -> Vec<Arc<Job>> {
        unpacked(self.caches.jobs.seen(jobset))
    }

    /// Another one with every change of what [`Stores::jobs_of`] and [`Stores::pods_of`] show. To be asked for before those are read.
    #[must_use]
    pub fn version_of(&self, jobset: &ObjectRef<JobSet>) -> (u64, u64) {
        let Caches { jobs, pods, .. } = &*self.caches;
        (jobs.version(jobset), pods.version(jobset))
    }

    /// Whether a JobSet is looked at alone, while nothing else is that is as large. Its new Jobs take as much as those of others.
    pub(crate) fn is_huge(&self, key: &ObjectRef<JobSet>) -> bool {
        let jobset = self.jobsets.get(&packed(key));
        jobset.is_some_and(|jobset| jobset.is_huge())
    }

    /// Bytes that [`Stores::observe`] reads of a JobSet and of its Jobs: what it takes goes by
    /// these.
    #[must_use]
    pub(crate) fn weight(&self, key: &ObjectRef<JobSet>) -> usize {
        let jobs = self.caches.jobs.seen(key);
        let jobs: usize = jobs.iter().map(|job| job.size()).sum();
        let jobset = self.jobsets.get(&packed(key));
        jobset.map_or(0, |jobset| jobset.size()).saturating_add(jobs)
    }

    /// A JobSet and what stands around it, own writes included. True: some of it is not confirmed by the watch yet.
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
            let restarts = observed.jobset.restarts();
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
            observed.changed = Changed::among(own, observed.jobset.restarts());
        }
        Some((observed, unconfirmed || more || yet_more || even_more))
    }

    /// A [`light`] JobSet with gangs and its Jobs, own writes included; `None`: there is none, or it has no gangs, or has finished.
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
        // Some of it may have been left out meanwhile.
        (!self.is_seen_in_part(key)).then(|| (Arc::new(light(jobset)), jobs))
    }

    /// The Jobs of a JobSet that are there, with those that had completed when they were removed and are not in its status yet.
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

    /// A JobSet, as the watch shows it, that may restart in place. Others, of which there may be many, are not read.
    #[must_use]
    pub(crate) fn in_place(&self, key: &ObjectRef<JobSet>) -> Option<JobSet> {
        let jobset = self.jobsets.get(&packed(key))?;
        let jobset = jobset.may_restart_in_place().then(|| jobset.unpack().ok())?;
        jobset.filter(JobSet::in_place)
    }

    /// Remembers a JobSet that this process has written, so that it is seen before the watch brings it.
    pub fn wrote_jobset(&self, jobset: &JobSet) {
        // What cannot be packed is seen when the watch brings it.
        if let Ok(packed) = PackedJobSet::of(jobset) {
            self.wrote_packed(packed);
        }
    }

    /// Remembers a JobSet that this process has written, as it was answered.
    pub(crate) fn wrote_packed(&self, jobset: PackedJobSet) {
        self.caches.jobsets.recent.put(jobset.key(), Arc::new(jobset));
    }

    /// Remembers a Job that this process has written.
    pub(crate) fn wrote_job(&self, key: &ObjectRef<JobSet>, Lean(job): Lean<Job>) {
        self.caches
            .jobs
            .recent
            .put(key.clone(), Arc::new(PackedJob::of(&job)));
    }

    /// Remembers a Service that this process has written, or found to exist.
    pub(crate) fn wrote_service(&self, key: &ObjectRef<JobSet>, Lean(service): Lean<Service>) {
        self.caches.services.recent.put(key.clone(), Arc::new(service));
    }

    /// Remembers a claim that this process has written, or found to exist.
    pub(crate) fn wrote_claim(&self, key: &ObjectRef<JobSet>, Lean(claim): Lean<PersistentVolumeClaim>) {
        self.caches.claims.recent.put(key.clone(), Arc::new(claim));
    }
}

#[cfg(test)]
impl Stores {
    /// Caches that nothing fills.
    pub(crate) fn empty() -> Self {
        Self::of(Cache::new().0)
    }

    /// Caches that show nothing but this JobSet.
    pub(crate) fn showing(jobset: &JobSet) -> Self {
        let (jobsets, mut writer) = Cache::new();
        let packed = PackedJobSet::of(jobset).unwrap();
        writer.apply_watcher_event(&watcher::Event::Apply(packed));
        Self::of(jobsets)
    }

    fn of(jobsets: Arc<Cache<PackedJobSet>>) -> Self {
        Self {
            jobsets: jobsets.store.clone(),
            caches: Arc::new(Caches {
                jobsets,
                jobs: Cache::new().0,
                pods: Cache::new().0,
                services: Cache::new().0,
                claims: Cache::new().0,
                members: Arc::default(),
                departed: Arc::default(),
                rooms: NamespaceBudgets::default(),
                left_out: Arc::default(),
            }),
        }
    }
}

fn unpacked(jobs: Vec<Arc<PackedJob>>) -> Vec<Arc<Job>> {
    let unpack = |job: &Arc<PackedJob>| {
        let unpacked = job.unpack();
        if unpacked.is_none() {
            tracing::error!(?job, "a Job in the cache cannot be read");
        }
        unpacked.map(Arc::new)
    };
    jobs.iter().filter_map(unpack).collect()
}

/// The name of a JobSet in its cache.
#[must_use]
pub fn packed(key: &ObjectRef<JobSet>) -> ObjectRef<PackedJobSet> {
    ObjectRef::new(&key.name).within(key.namespace.as_deref().unwrap_or_default())
}

/// Starts the watches, as tasks of `tasks` that end with `shutdown`. JobSets are not looked at before `defined` is true.
pub fn start(
    client: &Client,
    watchers: &Watchers,
    mut defined: watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) -> Stores {
    let (jobsets, jobset_writer) = Cache::<PackedJobSet>::new();
    let (jobs, job_writer) = Cache::<PackedJob>::new();
    let (pods, pod_writer) = Cache::<WatchedPod>::new();
    let (services, service_writer) = Cache::<Service>::new();
    let (claims, claim_writer) = Cache::<PersistentVolumeClaim>::new();
    let members = Arc::new(MembersByJob::default());
    let departed = Arc::new(Departed::default());
    let rooms = NamespaceBudgets::default();
    let left_out = Arc::new(LeftOut::default());
    let stores = Stores {
        jobsets: jobsets.store.clone(),
        caches: Arc::new(Caches {
            jobsets: Arc::clone(&jobsets),
            jobs: Arc::clone(&jobs),
            pods: Arc::clone(&pods),
            services: Arc::clone(&services),
            claims: Arc::clone(&claims),
            members: Arc::clone(&members),
            departed: Arc::clone(&departed),
            rooms: rooms.clone(),
            left_out: Arc::clone(&left_out),
        }),
    };
    let follow = Follow {
        kind: "JobSet",
        cache: jobsets,
        writer: jobset_writer,
        owner: |jobset| Some(jobset.key()),
        told: of_jobs(watchers),
    };
    let (news, publisher) = events::queue(client.clone());
    tasks.spawn(publisher.run());
    let events = decode::jobsets(client, rooms.written.clone(), news).boxed();
    let until = shutdown.clone();
    tasks.spawn(async move {
        let defined = async { defined.wait_for(|defined| *defined).await.is_ok() };
        if until.run_until_cancelled(defined).await == Some(true) {
            follow.run(events, until.clone()).await;
        }
    });
    let follow = Follow {
        kind: "Job",
        cache: jobs,
        writer: job_writer,
        owner: PackedJob::jobset,
        told: of_jobs(watchers),
    };
    let of = stores.jobsets.clone();
    // Before the cache forgets it: who looks meanwhile finds it in one of the two.
    let see = move |event: &watcher::Result<watcher::Event<Job>>| {
        if let Ok(watcher::Event::Delete(job)) = event {
            departed.put(&of, job);
        }
    };
    let jobs = children::<Job>(client);
    let begin = move || jobs().inspect(see.clone()).map_ok(job::packed).boxed();
    let told = Arc::clone(&left_out);
    let tell = move |job: &PackedJob, is_left_out: bool| {
        if let Some(jobset) = job.jobset() {
            told.tell(&jobset, &job.named(), is_left_out);
        }
    };
    let jobs = sized("Job", &rooms, begin, tell);
    let until = shutdown.clone();
    tasks.spawn(follow.run_with(jobs, until, move |event| left_out.followed(event)));
    let agents = Told {
        notifier: watchers.reconciler.clone(),
        of: |pod: &WatchedPod| {
            let PodSummary {
                agent,
                obstacle,
                in_gang,
                ..
            } = &pod.summary;
            agent.attempt.is_some() || agent.container_restarts > 0 || *in_gang || obstacle.is_some()
        },
    };
    let heads = watchers.ray.iter().map(|ray| Told {
        notifier: ray.clone(),
        of: |pod: &WatchedPod| pod.is_of_ray_head(),
    });
    let told = [Told::all(&watchers.groups), agents]
        .into_iter()
        .chain(heads)
        .collect();
    let follow = Follow {
        kind: "Pod",
        cache: pods,
        writer: pod_writer,
        owner: WatchedPod::jobset,
        told,
    };
    let placement = watchers.placement.clone();
    // Placement reads more of the few pods that ask for it than is kept of all.
    let see = move |event: &watcher::Result<watcher::Event<Pod>>| {
        if let Ok(event) = event {
            placement.extend(members.apply(event));
        }
    };
    let pods = children(client);
    tasks.spawn(follow.run(pods().inspect(see).map_ok(pod::watched).boxed(), shutdown.clone()));
    let told = vec![Told::all(&watchers.reconciler)];
    let follow = Follow {
        kind: "Service",
        cache: services,
        writer: service_writer,
        owner: jobset_of,
        told,
    };
    tasks.spawn(follow.run(children::<Service>(client)(), shutdown.clone()));
    let told = vec![Told::all(&watchers.reconciler)];
    let follow = Follow {
        kind: "PersistentVolumeClaim",
        cache: claims,
        writer: claim_writer,
        owner: jobset_of,
        told,
    };
    let claims = children::<PersistentVolumeClaim>(client);
    tasks.spawn(follow.run(claims(), shutdown.clone()));
    stores
}

/// Who is told of JobSets and of their Jobs.
fn of_jobs<K>(watchers: &Watchers) -> Vec<Told<K>> {
    let told = [&watchers.reconciler, &watchers.groups, &watchers.gangs];
    told.into_iter().chain(&watchers.ray).map(Told::all).collect()
}

/// Watches of the objects of a kind that belong to some JobSet.
fn children<K>(
    client: &Client,
) -> impl Fn() -> BoxStream<'static, watcher::Result<watcher::Event<K>>> + Send + use<K>
where
    K: Slim + Clone + std::fmt::Debug + Send + Sync + 'static,
{
    let api = Api::<Lean<K>>::all(client.clone());
    let config = watcher::Config::default()
        .labels(labels::JOBSET_NAME)
        .page_size(PAGE);
    move || {
        patient(watcher(api.clone(), config.clone()))
            .map_ok(lean::whole)
            .boxed()
    }
}

/// The events of a watch, without the objects for which there is no room. The log says so, and `tell` is told of each object whether it is left out.
pub(crate) fn sized<K: Weighs>(
    kind: &'static str,
    rooms: &NamespaceBudgets,
    begin: impl Fn() -> BoxStream<'static, watcher::Result<watcher::Event<K>>> + Send + 'static,
    tell: impl Fn(&K, bool) + Send + 'static,
) -> BoxStream<'static, watcher::Result<watcher::Event<K>>> {
    let share = rooms.made.share;
    let left_out = move |object: &K, is_left_out: bool| {
        tell(object, is_left_out);
        if !is_left_out {
            return;
        }
        tracing::warn!(
            kind,
            namespace = object.namespace().as_deref(),
            name = object.name().as_deref(),
            share,
            "what belongs to JobSets and Ray's resources takes more memory than there is for it in this namespace: this object is left out, and what it belongs to is left alone"
        );
    };
    within((rooms.made.clone(), rooms.usual.clone()), begin, left_out).boxed()
}
