//! The loop that brings every RayCluster closer to what it asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::Api;
use kube::runtime::controller::{self, Action};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{applier, watcher};
use kube::{Client, Resource};
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster};
use lockstep_core::plan;
use lockstep_core::ray::cluster::{ClusterPlan, ObservedCluster, plan};
use lockstep_core::ray::names;
use tokio_util::sync::CancellationToken;

use super::apply::{self, RayError};
use super::kuberay::KubeRay;
use crate::apply::events::Queue;
use crate::retry::{Failures, delay};
use crate::watch::Stores;
use crate::watch::notify::Notified;

/// Clusters that are worked on at the same time.
const CONCURRENCY: u16 = 16;
/// How soon to look again at a cluster that is left to another controller, which may go.
const LEFT_ALONE: Duration = Duration::from_secs(60);
/// The shortest name of a JobSet that may be a shortened one.
const SHORTENED: usize = 30;

type Key = ObjectRef<RayCluster>;

/// Looks at RayClusters and acts.
pub(super) struct Reconciler {
    client: Client,
    stores: Stores,
    clusters: Store<RayCluster>,
    services: Store<Service>,
    news: Queue,
    kuberay: KubeRay,
    failures: Failures<Key>,
    /// The notices that were published, by cluster.
    told: Mutex<HashMap<Key, plan::Event>>,
}

impl Reconciler {
    pub(super) fn new(
        client: Client,
        stores: Stores,
        clusters: Store<RayCluster>,
        services: Store<Service>,
        news: Queue,
    ) -> Self {
        Self {
            kuberay: KubeRay::new(client.clone()),
            client,
            stores,
            clusters,
            services,
            news,
            failures: Failures::default(),
            told: Mutex::default(),
        }
    }

    /// Reconciles the clusters that `changes` names, and those of `jobsets`, until `shutdown`; then finishes what is under way.
    pub(super) async fn run(
        self,
        changes: Notified<Key>,
        jobsets: Notified<ObjectRef<JobSet>>,
        shutdown: CancellationToken,
    ) {
        let this = Arc::new(self);
        let store = this.clusters.clone();
        let of_jobsets = {
            let this = Arc::clone(&this);
            jobsets.filter_map(move |jobset| std::future::ready(this.cluster_of(&jobset)))
        };
        let queue = stream::select(changes, of_jobsets)
            .map(Ok::<_, watcher::Error>)
            .take_until(shutdown.cancelled_owned());
        let results = applier(
            |cluster: Arc<RayCluster>, this: Arc<Self>| async move { this.reconcile(&cluster).await }.boxed(),
            |cluster, error, this| this.failed(&cluster, error),
            Arc::clone(&this),
            store,
            queue,
            controller::Config::default().concurrency(CONCURRENCY),
        );
        let mut results = std::pin::pin!(results);
        while let Some(result) = results.next().await {
            if let Err(controller::Error::ObjectNotFound(gone)) = result {
                let key = Key::new(&gone.name).within(gone.namespace.as_deref().unwrap_or_default());
                this.failures.forget(&key);
                this.told
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&key);
            }
        }
    }

    /// The cluster whose JobSet has this name.
    fn cluster_of(&self, jobset: &ObjectRef<JobSet>) -> Option<Key> {
        let key = Key::new(&jobset.name).within(jobset.namespace.as_deref()?);
        if self.clusters.get(&key).is_some() {
            return Some(key);
        }
        let shortened = |cluster: &Arc<RayCluster>| {
            cluster.metadata.namespace == jobset.namespace
                && names::jobset(cluster.name(), &cluster.spec) == jobset.name
        };
        let clusters = if jobset.name.len() < SHORTENED {
            Vec::new()
        } else {
            self.clusters.state()
        };
        clusters
            .iter()
            .find(|cluster| shortened(cluster))
            .map(|cluster| ObjectRef::from_obj(&**cluster))
    }

    #[tracing::instrument(name = "reconcile", skip_all, fields(namespace = cluster.ns(), raycluster = cluster.name()))]
    async fn reconcile(&self, cluster: &Arc<RayCluster>) -> Result<Action, RayError> {
        let key = ObjectRef::from_obj(&**cluster);
        let observed = self.observe(cluster).await?;
        let plan = plan(&observed);
        let left_alone = plan.notice.is_some();
        self.apply(cluster, plan).await?;
        self.failures.forget(&key);
        Ok(if left_alone {
            Action::requeue(LEFT_ALONE)
        } else {
            Action::await_change()
        })
    }

    async fn observe(&self, cluster: &Arc<RayCluster>) -> Result<ObservedCluster, RayError> {
        let namespace = cluster.ns();
        let jobset = ObjectRef::new(&names::jobset(cluster.name(), &cluster.spec)).within(namespace);
        let service = ObjectRef::new(&names::head_service(cluster.name())).within(namespace);
        let seen = self.stores.jobset(&jobset).map(Arc::new);
        // Asked only while it matters.
        let open = seen.is_none() && !cluster.is_claimed() && cluster.managed_by_another().is_none();
        let kuberay = match open {
            true => self.kuberay.runs().await.map_err(RayError::of("leases"))?,
            false => false,
        };
        Ok(ObservedCluster {
            cluster: Arc::clone(cluster),
            jobs: self.stores.jobs_of(&jobset),
            service: self.services.get(&service),
            head: self.head(cluster, &jobset).await?,
            jobset: seen,
            kuberay,
            now: jiff::Timestamp::now(),
        })
    }

    /// The head's pod, which is asked for its address once.
    async fn head(&self, cluster: &RayCluster, jobset: &ObjectRef<JobSet>) -> Result<HeadInfo, RayError> {
        let job = lockstep_api::naming::job_name(&jobset.name, names::HEAD, 0);
        let pods = self.stores.pods_of(jobset);
        let mut running = pods.iter().map(|pod| &pod.summary).filter(|pod| pod.running);
        let Some(pod) = running.find(|pod| pod.job.as_deref() == Some(job.as_str())) else {
            return Ok(HeadInfo::default());
        };
        let known = cluster.status.as_ref().map(|status| &status.head);
        if let Some(known) = known.filter(|known| known.pod_name == pod.name && !known.pod_ip.is_empty()) {
            return Ok(known.clone());
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), cluster.ns());
        let found = api
            .get_opt(&pod.name)
            .await
            .map_err(RayError::of("the head's pod"))?;
        let ip = found.and_then(|pod| pod.status?.pod_ip);
        Ok(HeadInfo {
            pod_name: pod.name.clone(),
            pod_ip: ip.unwrap_or_default(),
            ..HeadInfo::default()
        })
    }

    async fn apply(&self, cluster: &RayCluster, plan: ClusterPlan) -> Result<(), RayError> {
        if let Some(service) = &plan.create_service {
            apply::create(&self.client, &**service).await?;
        }
        if let Some(jobset) = &plan.create_jobset {
            apply::create(&self.client, &**jobset).await?;
        }
        if let Some(jobset) = &plan.update_jobset {
            apply::replace(&self.client, &**jobset).await?;
        }
        if let Some(jobset) = &plan.delete_jobset {
            apply::delete::<JobSet>(&self.client, cluster.ns(), jobset).await?;
        }
        if let Some(status) = plan.status {
            let update = RayCluster {
                status: Some(*status),
                ..cluster.clone()
            };
            apply::write_status(&self.client, &update).await?;
        }
        for event in plan.events {
            self.tell(cluster, event);
        }
        if let Some(notice) = plan.notice {
            let key = ObjectRef::from_obj(cluster);
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            let before = told.insert(key, notice.clone());
            drop(told);
            if before.as_ref() != Some(&notice) {
                self.tell(cluster, notice);
            }
        }
        Ok(())
    }

    fn tell(&self, cluster: &RayCluster, event: plan::Event) {
        tracing::info!(reason = event.reason, note = event.message, "raycluster changed");
        self.news.add(cluster.object_ref(&()), event);
    }

    fn failed(&self, cluster: &RayCluster, error: &RayError) -> Action {
        let delay = delay(self.failures.add(ObjectRef::from_obj(cluster)));
        let (namespace, name) = (cluster.ns(), cluster.name());
        if matches!(error, RayError::Conflict(_)) {
            tracing::debug!(namespace, raycluster = name, %error, ?delay, "will decide anew");
        } else {
            tracing::warn!(namespace, raycluster = name, %error, ?delay, "reconcile failed, will retry");
        }
        Action::requeue(delay)
    }
}
