//! Caches of what the API server holds, and a signal whenever it changes.
//!
//! Promises:
//! - A cache is updated before any subscriber is notified.
//! - Subscribers read levels, not edges: a key means "look at this JobSet again" (see [`notify`]).
//! - A watch that breaks is resumed, or restarted with a full list, as long as the process runs. A
//!   missing CRD is waited for.
//! - An object that cannot be decoded is reported and ignored; it does not block others.

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
mod stores;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use lockstep_api::{JobSet, labels};
use lockstep_core::jobset::pod::PodSummary;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::k8s::apply::events;
use crate::telemetry::log_limit::HourlyLimit;
use cache_entry::CacheEntry as _;
use follow::{Cache, Follow, Subscriber, jobset_of, patient};
use job::PackedJob;
use lean::{Lean, Slim};
use members::JobRef;
use namespace_budget::{Budget, NamespaceBudgets, Weighs, within};
use notify::Notifier;
use stores::Caches;

pub use packed::{PackedJobSet, Unreadable};
pub use pod::WatchedPod;
pub use stores::{Stores, packed};

/// The page size of lists. Some objects are large.
const PAGE: u32 = 100;

/// The queues of JobSets that each controller has to look at again.
pub struct Watchers {
    /// Receives JobSets when they, their Jobs, Services or claims change, or pods in which
    /// upstream's in-place restart agent reports, or pods that cannot have agents.
    pub reconciler: Notifier<ObjectRef<JobSet>>,
    /// Receives JobSets when they, their Jobs or their pods change.
    pub groups: Notifier<ObjectRef<JobSet>>,
    /// Receives Jobs with exclusive placement when their pods change.
    pub placement: Notifier<JobRef>,
    /// Receives JobSets when they or their Jobs change.
    pub gangs: Notifier<ObjectRef<JobSet>>,
    /// Receives JobSets when they, their Jobs or pods of heads change. `None` unless Ray's
    /// controllers run.
    pub ray: Option<Notifier<ObjectRef<JobSet>>>,
}
/// Starts the watches as tasks of `tasks` that end with `shutdown`. The watch of JobSets starts
/// once `defined` is true.
pub fn start(
    client: &Client,
    watchers: &Watchers,
    defined: watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) -> Stores {
    let (jobsets, jobset_writer) = Cache::new();
    let (jobs, job_writer) = Cache::new();
    let (pods, pod_writer) = Cache::new();
    let (services, service_writer) = Cache::new();
    let (claims, claim_writer) = Cache::new();
    let stores = Stores::new(Caches {
        jobsets,
        jobs,
        pods,
        services,
        claims,
        members: Arc::default(),
        departed: Arc::default(),
        budgets: NamespaceBudgets::default(),
        jobs_left_out: Arc::default(),
        pods_left_out: Arc::default(),
    });
    let caches = &*stores.caches;
    let mut start = Start {
        client,
        watchers,
        caches,
        tasks,
        shutdown,
    };
    start.jobsets(jobset_writer, defined);
    start.jobs(job_writer);
    start.pods(pod_writer);
    start.children("Service", &caches.services, service_writer);
    start.children("PersistentVolumeClaim", &caches.claims, claim_writer);
    stores
}

/// What starting the watches needs.
struct Start<'a> {
    client: &'a Client,
    watchers: &'a Watchers,
    caches: &'a Caches,
    tasks: &'a mut JoinSet<()>,
    shutdown: &'a CancellationToken,
}

impl Start<'_> {
    fn jobsets(&mut self, writer: Writer<PackedJobSet>, mut defined: watch::Receiver<bool>) {
        let follow = Follow {
            kind: "JobSet",
            cache: Arc::clone(&self.caches.jobsets),
            writer,
            owner: |jobset| Some(jobset.key()),
            subscribers: of_jobs(self.watchers),
        };
        let (queue, publisher) = events::queue(self.client.clone());
        self.tasks.spawn(publisher.run());
        let events = decode::jobsets(self.client, self.caches.budgets.written.clone(), queue).boxed();
        let until = self.shutdown.clone();
        self.tasks.spawn(async move {
            let defined = async { defined.wait_for(|defined| *defined).await.is_ok() };
            if until.run_until_cancelled(defined).await == Some(true) {
                follow.run(events, until.clone()).await;
            }
        });
    }

    fn jobs(&mut self, writer: Writer<PackedJob>) {
        let follow = Follow {
            kind: "Job",
            cache: Arc::clone(&self.caches.jobs),
            writer,
            owner: PackedJob::jobset,
            subscribers: of_jobs(self.watchers),
        };
        let jobsets = self.caches.jobsets.store.clone();
        let departed = Arc::clone(&self.caches.departed);
        // Runs before the cache drops the Job, so a reader finds it in one of the two at any time.
        let see = move |event: &watcher::Result<watcher::Event<Job>>| {
            if let Ok(watcher::Event::Delete(job)) = event {
                departed.put(&jobsets, job);
            }
        };
        let jobs = children::<Job>(self.client);
        let begin = move || jobs().inspect(see.clone()).map_ok(job::packed).boxed();
        let left_out = Arc::clone(&self.caches.jobs_left_out);
        let tell = move |job: &PackedJob, is_left_out: bool| {
            if let Some(jobset) = job.jobset() {
                left_out.tell(&jobset, &job.named(), is_left_out);
            }
        };
        let jobs = sized("Job", self.caches.budgets.of_made(), begin, tell);
        let left_out = Arc::clone(&self.caches.jobs_left_out);
        let until = self.shutdown.clone();
        self.tasks
            .spawn(follow.run_with(jobs, until, move |event| left_out.followed(event)));
    }

    fn pods(&mut self, writer: Writer<WatchedPod>) {
        let agents = Subscriber {
            notifier: self.watchers.reconciler.clone(),
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
        let heads = self.watchers.ray.iter().map(|ray| Subscriber {
            notifier: ray.clone(),
            of: |pod: &WatchedPod| pod.is_of_ray_head(),
        });
        let subscribers = [Subscriber::all(&self.watchers.groups), agents]
            .into_iter()
            .chain(heads)
            .collect();
        let follow = Follow {
            kind: "Pod",
            cache: Arc::clone(&self.caches.pods),
            writer,
            owner: WatchedPod::jobset,
            subscribers,
        };
        let placement = self.watchers.placement.clone();
        let members = Arc::clone(&self.caches.members);
        // Placement needs more of its few pods than the cache keeps of all pods.
        let see = move |event: &watcher::Result<watcher::Event<Pod>>| {
            if let Ok(event) = event {
                placement.extend(members.apply(event));
            }
        };
        let left_out = Arc::clone(&self.caches.pods_left_out);
        let tell = move |pod: &Pod, is_left_out: bool| {
            if let Some(jobset) = jobset_of(pod) {
                left_out.tell(&jobset, &pod.named(), is_left_out);
            }
        };
        let budgets = self.caches.budgets.of_pods();
        let pods = sized("Pod", budgets, children::<Pod>(self.client), tell);
        let pods = pods.inspect(see).map_ok(pod::watched);
        let left_out = Arc::clone(&self.caches.pods_left_out);
        let until = self.shutdown.clone();
        self.tasks
            .spawn(follow.run_with(pods.boxed(), until, move |event| left_out.followed(event)));
    }

    /// Follows objects that only the reconciler subscribes to.
    fn children<K>(&mut self, kind: &'static str, cache: &Arc<Cache<K>>, writer: Writer<K>)
    where
        K: Slim + Weighs + Clone + PartialEq + std::fmt::Debug + Send + Sync + 'static,
    {
        let follow = Follow {
            kind,
            cache: Arc::clone(cache),
            writer,
            owner: jobset_of,
            subscribers: vec![Subscriber::all(&self.watchers.reconciler)],
        };
        let begin = children::<K>(self.client);
        let events = sized(kind, self.caches.budgets.of_made(), begin, |_, _| {});
        self.tasks.spawn(follow.run(events, self.shutdown.clone()));
    }
}

/// The subscribers of JobSets and Jobs.
fn of_jobs<K>(watchers: &Watchers) -> Vec<Subscriber<K>> {
    let subscribers = [&watchers.reconciler, &watchers.groups, &watchers.gangs];
    subscribers
        .into_iter()
        .chain(&watchers.ray)
        .map(Subscriber::all)
        .collect()
}

/// Creates watches of the objects of a kind that belong to any JobSet.
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

/// The events of a watch without the objects that exceed the memory budget. The first of `budgets`
/// is for objects of any size, the second for those of usual size. The log reports the first that
/// is left out of a namespace in an hour, and `tell` is called with each object and whether it is.
pub(crate) fn sized<K: Weighs>(
    kind: &'static str,
    budgets: (Budget, Budget),
    begin: impl Fn() -> BoxStream<'static, watcher::Result<watcher::Event<K>>> + Send + 'static,
    tell: impl Fn(&K, bool) + Send + 'static,
) -> BoxStream<'static, watcher::Result<watcher::Event<K>>> {
    let share = budgets.0.share;
    let reported = HourlyLimit::default();
    let left_out = move |object: &K, is_left_out: bool| {
        tell(object, is_left_out);
        if !is_left_out || !reported.is_new(object.namespace().unwrap_or_default().into_owned()) {
            return;
        }
        tracing::warn!(
            kind,
            namespace = object.namespace().as_deref(),
            name = object.name().as_deref(),
            share,
            "the objects of JobSets and Ray resources exceed this namespace's share of memory: this object and others are ignored, and their owners are not reconciled"
        );
    };
    within(budgets, begin, left_out).boxed()
}
