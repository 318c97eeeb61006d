//! Worker groups of a RayCluster, which grow and shrink while it runs. Nothing waits for a worker
//! that has not joined yet, and a worker that is scaled away is not lost.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use lockstep_api::{JobSet, ReplicatedJob};

use crate::rng::Rng;
use crate::scenario::{Profile, Scenario};
use crate::world::World;
use crate::world::kubernetes::api_server::Pod;
use crate::world::node::container::Identity;
use crate::world::replica::group::{Group, durable_of};

/// Name of the replicatedJob of a RayCluster's head.
const HEAD: &str = "head";
/// The most workers of a group.
const WIDEST: u64 = 4;

impl Scenario {
    /// An eighth of the scenarios with agents are RayClusters, except scenarios in which only
    /// workers fail: a head, and groups of workers. Nothing else is drawn from `rng`.
    pub(crate) fn choose_optional(&mut self, rng: &mut Rng) {
        if rng.below(8) > 0 || self.plain || self.profile == Profile::Clean {
            return;
        }
        self.elastic = true;
        // Its workers never complete, and all start at once.
        self.work.clear();
        self.jobset.spec.startup_policy = None;
        self.jobset.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "ray.io/v1".to_owned(),
            kind: "RayCluster".to_owned(),
            name: "cluster".to_owned(),
            uid: "cluster".to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        }]);
        let jobs = &mut self.jobset.spec.replicated_jobs;
        for job in jobs.iter_mut() {
            job.depends_on.clear();
            job.replicas = Some(1);
        }
        // A cluster needs only a head, but every cluster here has a group that changes.
        let mut head = jobs[0].clone();
        HEAD.clone_into(&mut head.name);
        set_width(&mut head, 1);
        jobs.insert(0, head);
    }
}

fn set_width(job: &mut ReplicatedJob, width: i32) {
    job.replicas = Some(i32::from(width > 0));
    if let Some(spec) = &mut job.template.spec {
        // The width of a group without workers stays as it is.
        let width = width.max(1);
        spec.parallelism = Some(width);
        spec.completions = Some(width);
    }
}

fn wants(jobset: &JobSet, worker: &Identity) -> bool {
    let mut parts = worker.0.split('-').skip(1);
    let stage = parts.next().and_then(|stage| jobset.replicated_job(stage));
    let Some((stage, index)) = stage.zip(parts.next().and_then(|index| index.parse::<i32>().ok())) else {
        return true;
    };
    let spec = stage.template.spec.as_ref();
    let width = spec.and_then(|spec| spec.completions).unwrap_or(1);
    index < stage.replicas() && i64::from(worker.1) < i64::from(width)
}

impl World {
    /// A user changes the number of workers of a group. A worker that is wanted again before all
    /// parts have forgotten it may be taken for lost.
    pub(crate) fn scale(&mut self) {
        let Some(before) = self.api.jobset.clone() else {
            return;
        };
        let stages = before.spec.replicated_jobs.len();
        let index = 1 + self.rng.index(stages.saturating_sub(1));
        let width = i32::try_from(self.rng.below(WIDEST + 1)).unwrap_or(1);
        let mut after = JobSet::clone(&before);
        let Some(job) = after.spec.replicated_jobs.get_mut(index) else {
            return;
        };
        set_width(job, width);
        let of_group = before.job_name(&job.name, 0);
        let joined = durable_of(&before).joined;
        let groups = self.replicas.iter().filter_map(|replica| replica.leader.as_ref());
        let groups: Vec<&Group> = groups.filter_map(|leader| leader.group.as_ref()).collect();
        let is_remembered = |worker: &Identity| {
            let (job, index) = worker;
            let has_pod = |pod: &Arc<Pod>| pod.job == *job && pod.index == *index;
            !wants(&before, worker)
                && wants(&after, worker)
                && (joined.contains(&format!("{job}/{index}"))
                    || self.api.pods.values().any(has_pod)
                    // A leader that is slow or frozen may never notice that it was not wanted.
                    || groups.iter().any(|group| wants(group.last_seen(), worker)))
        };
        let workers = (0..u32::try_from(width).unwrap_or(0)).map(|index| (of_group.clone(), index));
        let remembered: Vec<Identity> = workers.filter(is_remembered).collect();
        if !remembered.is_empty() {
            if self.scenario.profile == Profile::Calm {
                return;
            }
            self.note_return(&remembered);
        }
        let is_scaled_away = |pod: &&Arc<Pod>| {
            let worker = (pod.job.clone(), pod.index);
            wants(&before, &worker) && !wants(&after, &worker)
        };
        let pods = self.api.pods.values().filter(is_scaled_away);
        let pods: Vec<String> = pods.map(|pod| pod.uid.clone()).collect();
        self.truth.unwanted.extend(pods);
        self.say(|| format!("group {index} is scaled to {width} workers"));
        self.edit(|jobset, _| *jobset = after);
    }

    /// True if the JobSet still asks for this worker.
    pub(crate) fn is_wanted(&self, worker: &Identity) -> bool {
        let jobset = self.api.jobset.as_ref().filter(|_| self.scenario.elastic);
        jobset.is_none_or(|jobset| wants(jobset, worker))
    }

    /// True if nothing waits for what runs in this pod: its worker was dropped, or was unwanted for
    /// some time and has not joined again.
    pub(crate) fn is_dropped(&self, worker: &Identity, pod: &str) -> bool {
        let has_left = self.truth.unwanted.contains(pod) && !self.has_joined(worker);
        let is_deleting = self.api.pods.get(pod).is_some_and(|pod| pod.deleting.is_some());
        // A pod from before a suspension: its gang is not complete again since, or the worker may
        // come late and has not joined again.
        let of_before = is_deleting && (self.waits_for_gang(worker) || !self.has_joined(worker));
        has_left || of_before || self.truth.dropped.contains(pod) || !self.is_wanted(worker)
    }

    /// Drops a worker that is not wanted: if it is wanted again, it is a new one. Returns true for
    /// such a worker, and for one whose gang is not complete, since none of its workers may work
    /// yet.
    pub(crate) fn drops_unwanted(&mut self, worker: &Identity, pod: &str) -> bool {
        let unwanted = !self.is_wanted(worker);
        if unwanted {
            self.forget_worker(worker, pod);
        }
        unwanted || self.waits_for_gang(worker)
    }

    /// A user deletes the pod of a worker that is no longer wanted. A leader that does not know
    /// that yet takes the worker for lost.
    pub(crate) fn note_early_loss(&mut self, pod: &str) {
        let worker = self.api.pods.get(pod).filter(|pod| pod.deleting.is_none());
        let worker = worker.map(|pod| (pod.job.clone(), pod.index));
        if worker.is_some_and(|worker| !self.is_wanted(&worker)) {
            self.note_pod_loss(pod);
        }
    }

    /// True if the status says that this worker has joined, or if it may not come late.
    pub(crate) fn has_joined(&self, worker: &Identity) -> bool {
        let of_head = worker.0.split('-').nth(1) == Some(HEAD);
        let may_come_late = self.scenario.elastic && !of_head || self.may_stay_away(worker);
        if !may_come_late {
            return true;
        }
        let place = format!("{}/{}", worker.0, worker.1);
        let durable = self.api.jobset.as_ref().map(|jobset| durable_of(jobset));
        durable.is_some_and(|durable| durable.joined.contains(&place))
    }
}
