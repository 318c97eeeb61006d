//! The loop that brings every RayJob closer to its spec.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, ResourceExt};
use lockstep_api::ray::{RayCluster, RayJob, RayJobDeploymentStatus as Phase, RayJobStatus};
use lockstep_core::ray::job::{
    JobPlan, ObservedJob, Ray, Recalled, head_failures, is_begun, plan, question, recall, refused,
};
use lockstep_core::ray::names;
use tokio_util::sync::CancellationToken;

use super::CONCURRENT_JOBS;
use super::apply::{self, RayError, Text};
use super::belonging::{Belonging, Submitter};
use super::cluster::{IN_PART, is_seen_in_part, own_jobset};
use super::dashboard::{DashboardAddress, Dashboards};
use super::head_address::Heads;
use super::kuberay::KubeRay;
use super::packed::{LargeTurns, Packed};
use super::question_pace::QuestionPace;
use super::retry_state::RetryState;
use super::turns::{NEXT_TURN, Turn, Turns};
use crate::k8s::apply::error_message;
use crate::k8s::controller_loop::{self, Reconcile};
use crate::k8s::watch::Stores;
use crate::k8s::watch::notify::Notified;

/// Reconciles RayJobs.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) stores: Stores,
    pub(super) jobs: Store<Packed<RayJob>>,
    pub(super) clusters: Store<Packed<RayCluster>>,
    pub(super) submitters: Store<Belonging<Submitter>>,
    pub(super) dashboards: Dashboards,
    pub(super) questions: Turns,
    /// Limits how many are reconciled at once.
    pub(super) at_work: Turns,
    pub(super) large: LargeTurns,
    pub(super) heads: Heads,
    pub(super) pace: QuestionPace,
    pub(super) kuberay: Arc<KubeRay>,
    /// When the watches began.
    pub(super) since: Timestamp,
    pub(super) retry_state: RetryState<RayJob>,
}

/// A plan whose large parts are text.
struct Decided {
    plan: JobPlan,
    cluster: Option<Text>,
    submitter: Option<Text>,
    /// Held if the plan creates an object, which may be large.
    _turn: Option<Turn>,
}

impl Decided {
    fn of(mut plan: JobPlan, turn: Option<Turn>) -> Self {
        let cluster = plan.create_cluster.take();
        let submitter = plan.create_submitter.take();
        let creates = cluster.is_some() || submitter.is_some();
        Self {
            cluster: cluster.map(|cluster| Text::of(&*cluster)),
            submitter: submitter.map(|submitter| Text::of(&*submitter)),
            plan,
            _turn: turn.filter(|_| creates),
        }
    }
}

impl Reconciler {
    /// Reconciles the jobs that `changes` names until `shutdown`. Then it finishes work in
    /// progress.
    pub(super) async fn run(self, changes: Notified<ObjectRef<Packed<RayJob>>>, shutdown: CancellationToken) {
        let jobs = self.jobs.clone();
        controller_loop::run(Arc::new(self), jobs, changes, CONCURRENT_JOBS, shutdown).await;
    }

    /// Observes a job without its spec, the objects that belong to it, and the address of its
    /// dashboard.
    async fn observe(&self, recalled: Recalled) -> Result<(ObservedJob, Option<SocketAddr>), RayError> {
        let Recalled {
            job,
            is_behind,
            is_whole,
        } = recalled;
        let job = &job;
        let namespace = job.ns();
        let name = job
            .status
            .as_ref()
            .map_or("", |status| status.ray_cluster_name.as_str());
        let mut cluster = self.clusters.get(&ObjectRef::new(name).within(namespace));
        let kept = self.submitters.get(&ObjectRef::new(job.name()).within(namespace));
        let mut submitter = kept.and_then(|kept| kept.read()).map(Arc::new);
        // If much depends on an object that the watch does not show, the API server is asked: the
        // watch may be behind, or may not cover the object.
        let counts = gone_counts(job);
        if (counts || is_running(job)) && cluster.is_none() && !name.is_empty() {
            cluster = apply::get::<Packed<RayCluster>>(&self.client, namespace, name).await?;
        }
        // A job does not need the specs of its cluster and of the cluster's JobSet. They may be
        // large, and must not be kept during requests to dashboards.
        let dashboard_port = cluster
            .as_ref()
            .and_then(|cluster| cluster.extract().dashboard_port);
        let cluster = cluster.map(|cluster| Arc::new(cluster.without_spec()));
        // The submitter may have seen the job's end before the cluster was gone.
        let has_lost_cluster = is_running(job) && cluster.is_none();
        if counts && submitter.is_none() || has_lost_cluster {
            submitter = apply::get(&self.client, namespace, job.name()).await?;
        }
        let jobset = cluster
            .as_ref()
            .and_then(|cluster| own_jobset(&self.stores, cluster));
        let head_failures = match &jobset {
            Some(jobset) if head_counts(job) => {
                let key = ObjectRef::from_obj(jobset);
                let pods = self.stores.pods_of(&key);
                let pods = pods.iter().map(|pod| &pod.summary);
                head_failures(jobset, &self.stores.jobs_of(&key), pods)
            }
            _ => 0,
        };
        let has_dashboard = job
            .status
            .as_ref()
            .is_some_and(|status| !status.dashboard_url.is_empty());
        let at = match (&cluster, &jobset, dashboard_port) {
            (Some(cluster), Some(jobset), Some(port)) if has_dashboard => {
                let found = self.heads.find(&self.stores, job, cluster, jobset).await?;
                found.map(|ip| SocketAddr::new(ip, port))
            }
            _ => None,
        };
        let ray = self.ask(job, at).await;
        // KubeRay is looked up only while that matters.
        let open = !is_begun(job) && !job.is_claimed() && job.managed_by_another().is_none();
        let has_left_pods = cluster.is_none() && is_between(job) && self.has_pods(job, name);
        let observed = ObservedJob {
            submitter,
            job: Arc::clone(job),
            is_behind,
            is_whole,
            cluster,
            jobset: jobset.map(Arc::new),
            has_left_pods,
            head_failures,
            ray,
            kuberay: open
                && self
                    .kuberay
                    .runs(namespace)
                    .await
                    .map_err(RayError::of("leases"))?,
            watched_since: self.since,
            now: Timestamp::now(),
        };
        Ok((observed, at))
    }

    /// Asks the dashboard at this address for the job's state, if there is something to ask.
    async fn ask(&self, job: &RayJob, at: Option<SocketAddr>) -> Ray {
        let Some((name, id)) = question(job) else {
            return Ray::Unasked;
        };
        let ray = self.dashboards.ask(DashboardAddress { at, name }, &id).await;
        // The head's sandbox may have been recreated with another address, and this address may be
        // another pod's.
        let session = job.status.as_ref().map_or("", |status| status.session.as_str());
        if !matches!(&ray, Ray::Reached { session: found, .. } if found == session) {
            self.heads.forget(&ObjectRef::from_obj(job));
        }
        ray
    }

    /// True if pods or Jobs of the job's cluster are left out of the cache. Only the end of the job
    /// goes on then.
    fn is_seen_in_part(&self, job: &RayJob) -> bool {
        let status = job.status.as_ref();
        let cluster = status.map_or("", |status| status.ray_cluster_name.as_str());
        !job.is_deleting() && is_seen_in_part(&self.stores, job.ns(), cluster)
    }

    /// True if pods of the job's cluster of this name have not ended.
    fn has_pods(&self, job: &RayJob, cluster: &str) -> bool {
        let jobsets = names::jobsets(cluster);
        jobsets.iter().any(|jobset| {
            let pods = self.stores.pods_of(&ObjectRef::new(jobset).within(job.ns()));
            pods.iter().any(|pod| !pod.summary.is_terminal())
        })
    }

    /// Decides on the whole job, but keeps only the light one in `observed`: a dashboard that does
    /// not answer must not keep a large job in memory. Returns `None` if no turn is free.
    async fn decide(&self, packed: &Packed<RayJob>, observed: &mut ObservedJob) -> Option<Decided> {
        let turn = packed.turn(&self.large).ok()?;
        let _alone = packed.alone().await;
        let whole = recall(&Arc::new(packed.read())).job;
        let light = std::mem::replace(&mut observed.job, whole);
        // The turn may have come late.
        observed.now = Timestamp::now();
        let decided = Decided::of(plan(observed), turn);
        self.retry_state.decided(&light, decided.plan.deadline);
        observed.job = light;
        Some(decided)
    }

    async fn apply(
        &self,
        job: &RayJob,
        at: Option<SocketAddr>,
        Decided {
            plan,
            cluster,
            submitter,
            ..
        }: Decided,
    ) -> Result<(), RayError> {
        let (client, namespace) = (&self.client, job.ns());
        if plan.add_finalizer {
            return apply::add_finalizer(client, job).await;
        }
        let name = job
            .status
            .as_ref()
            .map_or("", |status| status.dashboard_url.as_str());
        let dashboard = DashboardAddress { at, name };
        if let Some(id) = &plan.stop {
            match self.dashboards.stop(dashboard, id).await {
                Ok(()) => tracing::info!(id, "asked Ray to stop the job"),
                Err(error) => tracing::warn!(id, %error, "job not stopped"),
            }
        }
        if let Some((submitter, pods)) = &plan.delete_submitter {
            apply::delete_submitter(client, namespace, submitter, *pods).await?;
        }
        if let Some(cluster) = &plan.delete_cluster {
            apply::delete::<RayCluster>(client, namespace, cluster).await?;
        }
        if let Some(cluster) = cluster {
            apply::create(client, cluster).await?;
        }
        if let Some((jobset, word)) = &plan.restart {
            apply::request_restart(client, namespace, jobset, word).await?;
        }
        if let Some(body) = &plan.submit {
            let submitted = self.dashboards.submit(dashboard, body).await;
            submitted.map_err(|error| match error.refusal() {
                Some(why) => RayError::Refused(why.to_owned()),
                None => RayError::Dashboard(error.to_string()),
            })?;
            tracing::info!("job submitted");
        }
        if let Some(submitter) = submitter {
            apply::create(client, submitter).await?;
        }
        if let Some(status) = plan.status {
            self.write(job, plan.status_annotation, *status).await?;
        }
        if plan.forget {
            apply::write_status_annotation(client, job, None).await?;
        }
        for event in plan.events {
            self.retry_state.publish(job, event);
        }
        if let Some(notice) = plan.notice {
            self.retry_state.publish_once(job, notice);
        }
        if plan.remove_finalizer {
            apply::remove_finalizer(client, job).await?;
        }
        Ok(())
    }

    async fn write(
        &self,
        job: &RayJob,
        memory: Option<String>,
        status: RayJobStatus,
    ) -> Result<(), RayError> {
        let mut meta = job.metadata.clone();
        if let Some(memory) = memory {
            meta.resource_version = apply::write_status_annotation(&self.client, job, Some(&memory)).await?;
        }
        apply::write_status::<RayJob>(&self.client, &meta, &status).await
    }
}

impl Reconcile for Reconciler {
    type Object = Packed<RayJob>;
    type Error = RayError;

    #[tracing::instrument(level = "error", name = "reconcile", skip_all, fields(namespace = packed.namespace(), rayjob = packed.name_any()))]
    async fn reconcile(&self, packed: &Arc<Packed<RayJob>>) -> Result<Action, RayError> {
        if let Some(left) = self.retry_state.rests(&**packed) {
            return Ok(Action::requeue(left));
        }
        let namespace = packed.namespace().unwrap_or_default();
        let recalled = recall(&Arc::new(packed.without_spec()));
        if self.is_seen_in_part(&recalled.job) {
            return Ok(Action::requeue(IN_PART));
        }
        let Some(_share) = self.at_work.take(&namespace) else {
            return Ok(Action::requeue(NEXT_TURN));
        };
        let mut turns = Vec::new();
        if question(&recalled.job).is_some() {
            let Some(turn) = self.questions.take(&namespace) else {
                tracing::debug!("the namespace has no turn left for dashboards, will retry");
                return Ok(Action::requeue(NEXT_TURN));
            };
            turns.push(turn);
            if let Err(rest) = self.pace.take(ObjectRef::from_obj(&*recalled.job)) {
                return Ok(Action::requeue(rest));
            }
        }
        self.retry_state.begins(&*recalled.job);
        let (mut observed, at) = self.observe(recalled).await?;
        let job = &Arc::clone(&observed.job);
        // Some may have been left out of the cache in between.
        if self.is_seen_in_part(job) {
            return Ok(Action::requeue(IN_PART));
        }
        let Some(decided) = self.decide(packed, &mut observed).await else {
            return Ok(self.retry_state.postponed(&**job));
        };
        let mut next = (decided.plan.requeue_after, decided.plan.notice.is_some());
        let answered = match self.apply(job, at, decided).await {
            // Users read the status to learn what the job waits for.
            Err(RayError::Create { kind, what, error }) => {
                let shown = Decided::of(refused(&observed, &what, &error_message(&error)), None);
                if let Err(error) = self.apply(job, at, shown).await {
                    // The refusal is the more important error. It is written at the next try.
                    tracing::warn!(%error, what, "refusal not written to the status");
                }
                return Err(RayError::Create { kind, what, error });
            }
            // Ray's final answer.
            Err(RayError::Refused(why)) => Some(Ray::Refused(why)),
            Err(RayError::Dashboard(why)) => Some(Ray::Failing(why)),
            applied => {
                applied?;
                None
            }
        };
        if let Some(ray) = answered {
            observed.ray = ray;
            let Some(decided) = self.decide(packed, &mut observed).await else {
                // Ray repeats the answer at the next request.
                return Ok(self.retry_state.postponed(&**job));
            };
            next = (decided.plan.requeue_after, decided.plan.notice.is_some());
            self.apply(job, at, decided).await?;
        }
        let (requeue_after, has_notice) = next;
        Ok(self.retry_state.worked(job, requeue_after, has_notice))
    }

    fn failed(&self, job: &Packed<RayJob>, error: &RayError) -> Action {
        self.retry_state.failed(&job.without_spec(), error)
    }

    fn gone(&self, namespace: &str, name: &str) {
        self.retry_state.gone(namespace, name);
        let key = ObjectRef::new(name).within(namespace);
        self.heads.forget(&key);
        self.pace.forget(&key);
    }
}

/// True if the job's next step may depend on failures of the head's pods.
fn head_counts(job: &RayJob) -> bool {
    let phase = job
        .status
        .as_ref()
        .and_then(|status| status.job_deployment_status.as_ref());
    matches!(phase, Some(Phase::Initializing | Phase::Retrying))
}

/// True while an attempt runs. It ends with its cluster.
fn is_running(job: &RayJob) -> bool {
    let status = job.status.as_ref();
    status.and_then(|status| status.job_deployment_status.as_ref()) == Some(&Phase::Running)
}

/// True between two attempts, while the next one waits until nothing of the former one runs.
fn is_between(job: &RayJob) -> bool {
    let status = job.status.as_ref();
    let phase = status.and_then(|status| status.job_deployment_status.as_ref());
    matches!(phase, Some(Phase::Retrying | Phase::Suspending))
}

/// True if the job's next step depends on a missing object: a cluster or a submitter that is gone,
/// or a free name of a Job.
fn gone_counts(job: &RayJob) -> bool {
    let Some(status) = &job.status else { return false };
    match status.job_deployment_status {
        Some(Phase::Retrying | Phase::Suspending) => true,
        Some(Phase::Initializing) => !status.dashboard_url.is_empty(),
        _ => false,
    }
}
