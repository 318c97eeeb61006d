//! The loop that brings every RayCluster closer to what it asks for.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Client;
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster};
use lockstep_core::ray::cluster::{ClusterPlan, ObservedCluster, plan};
use lockstep_core::ray::names;
use tokio_util::sync::CancellationToken;

use super::CONCURRENCY;
use super::apply::{self, RayError};
use super::kuberay::KubeRay;
use super::ledger::Ledger;
use crate::watch::Stores;
use crate::watch::notify::Notified;
use crate::work::{self, Reconcile};

/// The shortest name of a JobSet that may be a shortened one.
const SHORTENED: usize = 30;

type Key = ObjectRef<RayCluster>;

/// Looks at RayClusters and acts.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) stores: Stores,
    pub(super) clusters: Store<RayCluster>,
    pub(super) services: Store<Service>,
    pub(super) kuberay: Arc<KubeRay>,
    pub(super) ledger: Ledger<RayCluster>,
}

impl Reconciler {
    /// Reconciles the clusters that `changes` names, and those of `jobsets`, until `shutdown`; then finishes what is under way.
    pub(super) async fn run(
        self,
        changes: Notified<Key>,
        jobsets: Notified<ObjectRef<JobSet>>,
        shutdown: CancellationToken,
    ) {
        let this = Arc::new(self);
        let clusters = this.clusters.clone();
        let of_jobsets = {
            let this = Arc::clone(&this);
            jobsets.filter_map(move |jobset| std::future::ready(this.cluster_of(&jobset)))
        };
        let changes = stream::select(changes, of_jobsets);
        work::run(this, clusters, changes, CONCURRENCY, shutdown).await;
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

    async fn observe(&self, cluster: &Arc<RayCluster>) -> Result<ObservedCluster, RayError> {
        let namespace = cluster.ns();
        let jobset = ObjectRef::new(&names::jobset(cluster.name(), &cluster.spec)).within(namespace);
        let service = ObjectRef::new(&names::head_service(cluster.name())).within(namespace);
        let seen = self.stores.jobset(&jobset).map(Arc::new);
        // Asked only while it matters.
        let open = seen.is_none() && !cluster.is_claimed() && cluster.managed_by_another().is_none();
        Ok(ObservedCluster {
            cluster: Arc::clone(cluster),
            jobs: self.stores.jobs_of(&jobset),
            service: self.services.get(&service),
            head: self.head(cluster, &jobset).await?,
            jobset: seen,
            kuberay: open && self.kuberay.runs().await.map_err(RayError::of("leases"))?,
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
            self.ledger.tell(cluster, event);
        }
        if let Some(notice) = plan.notice {
            self.ledger.tell_once(cluster, notice);
        }
        Ok(())
    }
}

impl Reconcile for Reconciler {
    type Object = RayCluster;
    type Error = RayError;

    #[tracing::instrument(name = "reconcile", skip_all, fields(namespace = cluster.ns(), raycluster = cluster.name()))]
    async fn reconcile(&self, cluster: &Arc<RayCluster>) -> Result<Action, RayError> {
        let plan = plan(&self.observe(cluster).await?);
        let left_alone = plan.notice.is_some();
        self.apply(cluster, plan).await?;
        Ok(self.ledger.worked(cluster, None, left_alone))
    }

    fn failed(&self, cluster: &RayCluster, error: &RayError) -> Action {
        self.ledger.failed(cluster, error)
    }

    fn gone(&self, namespace: &str, name: &str) {
        self.ledger.gone(namespace, name);
    }
}
