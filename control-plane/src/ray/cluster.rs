//! The loop that brings every RayCluster closer to what it asks for.

use std::sync::Arc;

use futures::{StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster};
use lockstep_core::observed::is_controlled_by;
use lockstep_core::ray::cluster::{CREATED, CREATED_SERVICE, ClusterPlan, ObservedCluster, SCALED, plan};
use lockstep_core::ray::names;
use tokio_util::sync::CancellationToken;

use super::CONCURRENCY;
use super::apply::{self, RayError};
use super::belonging::{Belonging, Belongs, HeadService};
use super::kuberay::KubeRay;
use super::ledger::Ledger;
use super::packed::{LargeTurns, Packed};
use super::turns::NEXT_TURN;
use crate::watch::lean::Lean;
use crate::watch::lean::asked::{self, PodSeen};
use crate::watch::notify::Notified;
use crate::watch::{PackedJobSet, Stores};
use crate::work::{self, Reconcile};

type Key = ObjectRef<Packed<RayCluster>>;

/// Looks at RayClusters and acts.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) stores: Stores,
    pub(super) clusters: Store<Packed<RayCluster>>,
    pub(super) services: Store<Belonging<HeadService>>,
    pub(super) kuberay: Arc<KubeRay>,
    pub(super) large: LargeTurns,
    pub(super) ledger: Ledger<RayCluster>,
}

/// The JobSet that was made for a cluster, whatever it would be called now, without its spec.
pub(super) fn own_jobset(stores: &Stores, cluster: &RayCluster) -> Option<JobSet> {
    let names = names::jobsets(cluster.name());
    let mut found = names
        .iter()
        .filter_map(|name| stores.without_spec(&ObjectRef::new(name).within(cluster.ns())));
    found.find(|jobset| is_controlled_by(&jobset.metadata, cluster.uid_str()))
}

/// The JobSet of a cluster: its own, else the one that has the name to take, without its spec.
fn jobset_of(stores: &Stores, cluster: &RayCluster) -> (ObjectRef<JobSet>, Option<JobSet>) {
    if let Some(own) = own_jobset(stores, cluster) {
        let key = ObjectRef::from_obj(&own);
        return (key.clone(), stores.jobset(&key));
    }
    let key = ObjectRef::new(&names::jobset(cluster.name(), &cluster.spec)).within(cluster.ns());
    let jobset = stores.without_spec(&key);
    (key, jobset)
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
        let start = names::unshortened(&jobset.name)?;
        let shortened = |cluster: &&Arc<Packed<RayCluster>>| {
            let name = cluster.meta().name.as_deref().unwrap_or_default();
            cluster.meta().namespace == jobset.namespace
                && name.starts_with(start)
                && names::jobsets(name).contains(&jobset.name)
        };
        let clusters = self.clusters.state();
        clusters
            .iter()
            .find(shortened)
            .map(|cluster| ObjectRef::from_obj(&**cluster))
    }

    async fn observe(&self, cluster: &Arc<RayCluster>) -> Result<ObservedCluster, RayError> {
        let namespace = cluster.ns();
        let (jobset, seen) = jobset_of(&self.stores, cluster);
        let service = ObjectRef::new(&names::head_service(cluster.name())).within(namespace);
        // Asked only while it matters.
        let open = seen.is_none() && !cluster.is_claimed() && cluster.managed_by_another().is_none();
        let jobs = self.stores.jobs_of(&jobset);
        let (head, head_pod) = self.head(cluster, &jobset, &jobs).await?;
        Ok(ObservedCluster {
            cluster: Arc::clone(cluster),
            jobs,
            service: self
                .services
                .get(&service)
                .and_then(|found| found.read())
                .map(Arc::new),
            head,
            head_pod,
            jobset: seen.map(Arc::new),
            kuberay: open
                && self
                    .kuberay
                    .runs(namespace)
                    .await
                    .map_err(RayError::of("leases"))?,
            refused: None,
            now: jiff::Timestamp::now(),
        })
    }

    /// The JobSet that was made for a cluster, as the API server has it.
    async fn made_before(&self, cluster: &RayCluster) -> Result<Option<JobSet>, RayError> {
        for name in names::jobsets(cluster.name()) {
            let found = apply::get::<PackedJobSet>(&self.client, cluster.ns(), &name).await?;
            let own = found.filter(|jobset| is_controlled_by(jobset.meta(), cluster.uid_str()));
            if let Some(jobset) = own {
                let jobset = jobset.unpack();
                return jobset.map(Some).map_err(|error| {
                    RayError::Conflict(format!("JobSet {name}, which cannot be read: {error}"))
                });
            }
        }
        Ok(None)
    }

    /// Name and address of the head's pod; and what it says of itself while it is not ready.
    async fn head(
        &self,
        cluster: &RayCluster,
        jobset: &ObjectRef<JobSet>,
        jobs: &[Arc<Job>],
    ) -> Result<(HeadInfo, Option<Box<Pod>>), RayError> {
        let job = lockstep_api::naming::job_name(&jobset.name, names::HEAD, 0);
        let pods = self.stores.pods_of(jobset);
        let of_head = pods.iter().map(|pod| &pod.summary);
        let of_head = of_head.filter(|pod| pod.job.as_deref() == Some(job.as_str()) && !pod.is_terminal());
        // One that goes may be there beside one that comes.
        let Some(pod) = of_head.max_by_key(|pod| (pod.running, pod.recreation)) else {
            return Ok((HeadInfo::default(), None));
        };
        let known = cluster.status.as_ref().map(|status| &status.head);
        let known = known.filter(|known| known.pod_name == pod.name && !known.pod_ip.is_empty());
        let is_ready = jobs.iter().any(|found| {
            let ready = found.status.as_ref().and_then(|status| status.ready);
            found.metadata.name.as_deref() == Some(job.as_str()) && ready.unwrap_or(0) > 0
        });
        if let Some(known) = known.filter(|_| is_ready) {
            return Ok((known.clone(), None));
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), cluster.ns());
        let found = asked::get::<PodSeen, _>(&api, &pod.name)
            .await
            .map_err(RayError::of("the head's pod"))?;
        let Some(found) = found else {
            return Ok((HeadInfo::default(), None));
        };
        let ip = found.status.as_ref().and_then(|status| status.pod_ip.clone());
        let head = HeadInfo {
            pod_name: pod.name.clone(),
            pod_ip: ip.unwrap_or_default(),
            ..HeadInfo::default()
        };
        Ok((head, Some(Box::new(found))))
    }

    /// Creates and changes what the plan says.
    async fn make(&self, cluster: &RayCluster, plan: &mut ClusterPlan) -> Result<(), RayError> {
        if let Some(service) = &plan.delete_service {
            apply::delete::<Service>(&self.client, cluster.ns(), service).await?;
        }
        if let Some(service) = plan.create_service.take() {
            apply::create(&self.client, *service).await?;
        }
        if let Some(jobset) = plan.create_jobset.take() {
            apply::create(&self.client, *jobset).await?;
        }
        match plan.update_jobset.take() {
            Some(jobset) => apply::replace(&self.client, *jobset).await,
            None => Ok(()),
        }
    }

    async fn apply(&self, observed: &mut ObservedCluster, mut decided: ClusterPlan) -> Result<(), RayError> {
        let cluster = &Arc::clone(&observed.cluster);
        let refused = match self.make(cluster, &mut decided).await {
            // All else that is known of the cluster is shown nonetheless, as that it is suspended no more.
            Err(error @ (RayError::Create { .. } | RayError::Change { .. })) => {
                let mut undone = vec![CREATED, SCALED];
                if let RayError::Create { kind, .. } = &error {
                    observed.refused = Some(error.to_string());
                    undone.extend((kind == "Service").then_some(CREATED_SERVICE));
                }
                decided = plan(observed);
                // Not kept while the status is written.
                (decided.create_jobset, decided.update_jobset) = (None, None);
                decided
                    .events
                    .retain(|event| !undone.contains(&event.reason.as_str()));
                Some(error)
            }
            made => {
                made?;
                None
            }
        };
        if let Some(jobset) = &decided.delete_jobset {
            apply::delete::<JobSet>(&self.client, cluster.ns(), jobset).await?;
        }
        if let Some(status) = decided.status {
            apply::write_status::<RayCluster>(&self.client, &cluster.metadata, &status).await?;
        }
        for event in decided.events {
            self.ledger.tell(cluster, event);
        }
        if let Some(notice) = decided.notice {
            self.ledger.tell_once(cluster, notice);
        }
        refused.map_or(Ok(()), Err)
    }
}

impl Reconcile for Reconciler {
    type Object = Packed<RayCluster>;
    type Error = RayError;

    #[tracing::instrument(level = "error", name = "reconcile", skip_all, fields(namespace = packed.namespace(), raycluster = packed.name_any()))]
    async fn reconcile(&self, packed: &Arc<Packed<RayCluster>>) -> Result<Action, RayError> {
        if let Some(left) = self.ledger.rests(&**packed) {
            return Ok(Action::requeue(left));
        }
        let Ok(_turn) = packed.turn(&self.large) else {
            return Ok(Action::requeue(NEXT_TURN));
        };
        let cluster = &Arc::new(packed.read());
        let mut observed = self.observe(cluster).await?;
        let mut decided = plan(&observed);
        if decided.create_service.is_some() {
            // The watch shows none that has no label of a cluster's, and may be behind.
            let name = names::head_service(cluster.name());
            let found = apply::get::<Lean<HeadService>>(&self.client, cluster.ns(), &name).await?;
            let found = found.map(|found| Arc::unwrap_or_clone(found).0.into_object());
            observed.service = found.map(Arc::new);
            decided = plan(&observed);
        }
        if decided.create_jobset.is_some() && names::jobsets(cluster.name()).len() > 1 {
            // One of another name would be no conflict, and the watch may be behind.
            if let Some(jobset) = self.made_before(cluster).await? {
                observed.jobset = Some(Arc::new(jobset));
                decided = plan(&observed);
            }
        }
        let (after, left_alone) = (decided.requeue_after, decided.notice.is_some());
        self.apply(&mut observed, decided).await?;
        Ok(self.ledger.worked(cluster, after, left_alone))
    }

    fn failed(&self, cluster: &Packed<RayCluster>, error: &RayError) -> Action {
        self.ledger.failed(&cluster.without_spec(), error)
    }

    fn gone(&self, namespace: &str, name: &str) {
        self.ledger.gone(namespace, name);
    }
}
