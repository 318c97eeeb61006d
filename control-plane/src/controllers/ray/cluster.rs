//! The loop that brings every RayCluster closer to its spec.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource, ResourceExt};
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster};
use lockstep_core::jobset::owner::is_controlled_by;
use lockstep_core::ray::cluster::{CREATED, CREATED_SERVICE, ClusterPlan, ObservedCluster, SCALED, plan};
use lockstep_core::ray::names;
use tokio_util::sync::CancellationToken;

use super::CONCURRENCY;
use super::apply::{self, RayError, Text};
use super::belonging::{Belonging, Belongs, HeadService};
use super::kuberay::KubeRay;
use super::packed::{LargeTurns, Packed};
use super::retry_state::RetryState;
use super::turns::{NEXT_TURN, Turns};
use crate::k8s::controller_loop::{self, Reconcile};
use crate::k8s::huge_lock;
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::lean::fetch::{self, PodSeen};
use crate::k8s::watch::notify::Notified;
use crate::k8s::watch::{PackedJobSet, Stores, packed};

type Key = ObjectRef<Packed<RayCluster>>;

/// Reconciles RayClusters.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) stores: Stores,
    pub(super) clusters: Store<Packed<RayCluster>>,
    pub(super) services: Store<Belonging<HeadService>>,
    pub(super) kuberay: Arc<KubeRay>,
    pub(super) large: LargeTurns,
    /// Limits how many are reconciled at once.
    pub(super) at_work: Turns,
    pub(super) retry_state: RetryState<RayCluster>,
}

/// The JobSet that was created for a cluster, under any of its names, without the spec.
pub(super) fn own_jobset(stores: &Stores, cluster: &RayCluster) -> Option<JobSet> {
    let names = names::jobsets(cluster.name());
    let mut found = names
        .iter()
        .filter_map(|name| stores.without_spec(&ObjectRef::new(name).within(cluster.ns())));
    found.find(|jobset| is_controlled_by(&jobset.metadata, cluster.uid_str()))
}

/// When an object is tried again if some Jobs or pods of its cluster are not cached.
pub(super) const IN_PART: Duration = Duration::from_secs(60);

/// True if Jobs or pods of the cluster of this name are left out of the cache. Nothing can be
/// decided about it then.
pub(super) fn is_seen_in_part(stores: &Stores, namespace: &str, cluster: &str) -> bool {
    let names = names::jobsets(cluster);
    let mut keys = names.iter().map(|name| ObjectRef::new(name).within(namespace));
    !cluster.is_empty() && keys.any(|key| stores.is_seen_in_part(&key))
}

/// The JobSet of a cluster without the spec: its own one, or else the one with the name that its
/// own would get. The own JobSet is also returned as cached.
fn jobset_of(
    stores: &Stores,
    packed_cluster: &Packed<RayCluster>,
    cluster: &RayCluster,
) -> (ObjectRef<JobSet>, Option<JobSet>, Option<Arc<PackedJobSet>>) {
    if let Some(own) = own_jobset(stores, cluster) {
        let key = ObjectRef::from_obj(&own);
        let kept = stores.jobsets.get(&packed(&key));
        return (key, Some(own), kept);
    }
    let name = packed_cluster.extract().jobset.as_deref().unwrap_or_default();
    let key = ObjectRef::new(name).within(cluster.ns());
    let jobset = stores.without_spec(&key);
    (key, jobset, None)
}

/// An observation of a cluster. It holds the whole cluster and JobSet, which may be large, only
/// during a decision.
struct Observation {
    observed: ObservedCluster,
    /// The cluster's own JobSet.
    jobset: Option<Arc<PackedJobSet>>,
}

impl Observation {
    /// Parses the cluster and its JobSet, decides, and drops them again. The large parts of the
    /// decision are text.
    ///
    /// # Errors
    /// The JobSet cannot be read.
    async fn decide(&mut self, packed: &Packed<RayCluster>) -> Result<Decided, RayError> {
        let is_huge = self.jobset.as_ref().is_some_and(|jobset| jobset.is_huge());
        let _alone = huge_lock::turn_if(is_huge || packed.is_huge()).await;
        if let Some(kept) = &self.jobset {
            let jobset = kept.unpack().map_err(|error| {
                let name = kept.meta().name.as_deref().unwrap_or_default();
                RayError::Conflict(format!("JobSet {name}, which cannot be read: {error}"))
            })?;
            self.observed.jobset = Some(Arc::new(jobset));
        }
        self.observed.cluster = Arc::new(packed.read());
        // The turn may have come late.
        self.observed.now = jiff::Timestamp::now();
        let decided = Decided::of(plan(&self.observed));
        self.observed.cluster = Arc::new(packed.without_spec());
        if self.jobset.is_some() {
            self.observed.jobset = None;
        }
        Ok(decided)
    }
}

/// A plan whose large parts are text.
struct Decided {
    plan: ClusterPlan,
    create_jobset: Option<Text>,
    update_jobset: Option<Text>,
}

impl Decided {
    fn of(mut plan: ClusterPlan) -> Self {
        let text = |jobset: Option<Box<JobSet>>| jobset.map(|jobset| Text::of(&*jobset));
        Self {
            create_jobset: text(plan.create_jobset.take()),
            update_jobset: text(plan.update_jobset.take()),
            plan,
        }
    }
}

impl Reconciler {
    /// Reconciles the clusters that `changes` names, and those of `jobsets`, until `shutdown`. Then
    /// it finishes work in progress.
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
        controller_loop::run(this, clusters, changes, CONCURRENCY, shutdown).await;
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

    async fn observe(&self, packed: &Packed<RayCluster>) -> Result<Observation, RayError> {
        let cluster = Arc::new(packed.without_spec());
        let namespace = cluster.ns();
        let (jobset, seen, kept) = jobset_of(&self.stores, packed, &cluster);
        let service = ObjectRef::new(&names::head_service(cluster.name())).within(namespace);
        // KubeRay is looked up only while that matters.
        let open = seen.is_none() && !cluster.is_claimed() && cluster.managed_by_another().is_none();
        let jobs = self.stores.jobs_of(&jobset);
        let (head, head_pod) = self.head(&cluster, &jobset, &jobs).await?;
        let observed = ObservedCluster {
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
            cluster,
        };
        Ok(Observation {
            observed,
            jobset: kept,
        })
    }

    /// The JobSet that was created for a cluster, read from the API server.
    async fn made_before(&self, cluster: &Packed<RayCluster>) -> Result<Option<Arc<PackedJobSet>>, RayError> {
        let namespace = cluster.namespace().unwrap_or_default();
        let uid = cluster.uid().unwrap_or_default();
        for name in names::jobsets(&cluster.name_any()) {
            let found = apply::get::<PackedJobSet>(&self.client, &namespace, &name).await?;
            let own = found.filter(|jobset| is_controlled_by(jobset.meta(), &uid));
            if own.is_some() {
                return Ok(own);
            }
        }
        Ok(None)
    }

    /// Observes a cluster, and decides on all of it.
    async fn see(&self, packed: &Packed<RayCluster>) -> Result<(Observation, Decided), RayError> {
        let mut seen = self.observe(packed).await?;
        let mut decided = match seen.decide(packed).await {
            Ok(decided) => decided,
            Err(error) => {
                // The JobSet is treated as absent. If the plan creates it again, `made_before`
                // reports it.
                tracing::debug!(%error, "JobSet treated as absent");
                (seen.jobset, seen.observed.jobset) = (None, None);
                seen.decide(packed).await?
            }
        };
        let (namespace, cluster) = (packed.namespace().unwrap_or_default(), packed.name_any());
        if decided.plan.create_service.is_some() {
            drop(decided);
            // The watch may be behind, and omits a Service without a cluster's label.
            let name = names::head_service(&cluster);
            let found = apply::get::<Lean<HeadService>>(&self.client, &namespace, &name).await?;
            let found = found.map(|found| Arc::unwrap_or_clone(found).0.into_object());
            seen.observed.service = found.map(Arc::new);
            decided = seen.decide(packed).await?;
        }
        if decided.create_jobset.is_some() && names::jobsets(&cluster).len() > 1 {
            // The watch may be behind, and a JobSet of another name would not conflict.
            seen.jobset = self.made_before(packed).await?;
            if seen.jobset.is_some() {
                drop(decided);
                decided = seen.decide(packed).await?;
            }
        }
        Ok((seen, decided))
    }

    /// Name and address of the head's pod, and its own status while it is not ready.
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
        // An old pod may still exist beside its successor.
        let Some(pod) = of_head.max_by_key(|pod| (pod.running, pod.restart_attempt)) else {
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
        let found = fetch::get::<PodSeen, _>(&api, &pod.name)
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

    /// Creates and changes objects as decided.
    async fn make(&self, cluster: &RayCluster, decided: &mut Decided) -> Result<(), RayError> {
        if let Some(service) = &decided.plan.delete_service {
            apply::delete::<Service>(&self.client, cluster.ns(), service).await?;
        }
        if let Some(service) = decided.plan.create_service.take() {
            apply::create(&self.client, Text::of(&*service)).await?;
        }
        if let Some(jobset) = decided.create_jobset.take() {
            apply::create(&self.client, jobset).await?;
        }
        match decided.update_jobset.take() {
            Some(jobset) => apply::replace(&self.client, jobset).await,
            None => Ok(()),
        }
    }

    async fn apply(
        &self,
        packed: &Packed<RayCluster>,
        mut seen: Observation,
        mut decided: Decided,
    ) -> Result<(), RayError> {
        let cluster = &Arc::clone(&seen.observed.cluster);
        let made = self.make(cluster, &mut decided).await;
        let mut decided = decided.plan;
        let refused = match made {
            // The rest of the status, such as the end of a suspension, is still written.
            Err(error @ (RayError::Create { .. } | RayError::Change { .. })) => {
                let mut undone = vec![CREATED, SCALED];
                if let RayError::Create { kind, .. } = &error {
                    seen.observed.refused = Some(error.to_string());
                    undone.extend((kind == "Service").then_some(CREATED_SERVICE));
                }
                // Only the status and the events of this decision are needed.
                decided = seen.decide(packed).await?.plan;
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
            self.retry_state.publish(cluster, event);
        }
        if let Some(notice) = decided.notice {
            self.retry_state.publish_once(cluster, notice);
        }
        refused.map_or(Ok(()), Err)
    }
}

impl Reconcile for Reconciler {
    type Object = Packed<RayCluster>;
    type Error = RayError;

    #[tracing::instrument(level = "error", name = "reconcile", skip_all, fields(namespace = packed.namespace(), raycluster = packed.name_any()))]
    async fn reconcile(&self, packed: &Arc<Packed<RayCluster>>) -> Result<Action, RayError> {
        if let Some(left) = self.retry_state.rests(&**packed) {
            return Ok(Action::requeue(left));
        }
        let Some(_share) = self.at_work.take(&packed.namespace().unwrap_or_default()) else {
            return Ok(Action::requeue(NEXT_TURN));
        };
        let Ok(_turn) = packed.turn(&self.large) else {
            return Ok(Action::requeue(NEXT_TURN));
        };
        let is_seen_in_part = || {
            let (namespace, name) = (packed.namespace().unwrap_or_default(), packed.name_any());
            is_seen_in_part(&self.stores, &namespace, &name)
        };
        if is_seen_in_part() {
            return Ok(Action::requeue(IN_PART));
        }
        let (seen, decided) = self.see(packed).await?;
        // Some may have been left out of the cache in between.
        if is_seen_in_part() {
            return Ok(Action::requeue(IN_PART));
        }
        let cluster = &Arc::clone(&seen.observed.cluster);
        let (after, has_notice) = (decided.plan.requeue_after, decided.plan.notice.is_some());
        self.apply(packed, seen, decided).await?;
        Ok(self.retry_state.worked(cluster, after, has_notice))
    }

    fn failed(&self, cluster: &Packed<RayCluster>, error: &RayError) -> Action {
        self.retry_state.failed(&cluster.without_spec(), error)
    }

    fn gone(&self, namespace: &str, name: &str) {
        self.retry_state.gone(namespace, name);
    }
}
