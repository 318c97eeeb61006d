//! The API server: objects with versions, and a log of changes for watches.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{JobSet, JobSetStatus};
use lockstep_core::jobset::in_place::Obstacle;
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::jobset::upstream_agent::AgentPod;

use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::request::{Fate, Kind};
use crate::world::kubernetes::pod_groups::PodGroup;

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A pod as the API server keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) jobset_uid: String,
    pub(crate) job: String,
    pub(crate) job_uid: String,
    pub(crate) index: u32,
    pub(crate) restart_attempt: i32,
    /// A gate keeps it from being bound.
    pub(crate) gated: bool,
    /// Name of its PodGroup.
    pub(crate) group: Option<String>,
    pub(crate) node: Option<usize>,
    pub(crate) phase: PodPhase,
    /// When its deletion began.
    pub(crate) deleting: Option<Time>,
    /// The Job controller has counted its end (the finalizer is gone).
    pub(crate) accounted: bool,
    pub(crate) exit_code: Option<i32>,
    /// Its node no longer reports.
    pub(crate) node_lost: bool,
    /// A policy of the cluster has changed it, so it cannot have an agent.
    pub(crate) changed: bool,
}

impl Pod {
    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// True if it waits for kube-scheduler to bind it.
    pub(crate) fn waits_for_node(&self) -> bool {
        self.node.is_none() && !self.gated && self.deleting.is_none() && !self.is_terminal()
    }

    /// The change that watches show.
    pub(crate) fn shown(&self) -> Change {
        Change::Pod(self.uid.clone(), Some(Arc::new(self.summary())))
    }

    fn summary(&self) -> PodSummary {
        PodSummary {
            name: self.name.clone(),
            uid: self.uid.clone(),
            jobset_uid: Some(self.jobset_uid.clone()),
            restart_attempt: Some(self.restart_attempt),
            job: Some(self.job.clone()),
            job_uid: Some(self.job_uid.clone()),
            index: Some(self.index),
            node: self.node.map(node_name),
            running: self.phase == PodPhase::Running,
            node_lost: self.node_lost,
            deleting: self.deleting.is_some(),
            in_gang: false,
            obstacle: self.changed.then_some(Obstacle::SharedProcesses),
            agent: AgentPod {
                failed: self.phase == PodPhase::Failed,
                succeeded: self.phase == PodPhase::Succeeded,
                ..AgentPod::default()
            },
        }
    }
}

/// Name of a node.
pub(crate) fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// A change that watches show.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    JobSet(u64, Option<Arc<JobSet>>),
    Job(u64, String, Option<Arc<Job>>),
    Pod(String, Option<Arc<PodSummary>>),
}

impl Change {
    /// Each kind of object has a watch of its own.
    pub(crate) fn kind(&self) -> usize {
        match self {
            Self::JobSet(..) => 0,
            Self::Job(..) => 1,
            Self::Pod(..) => 2,
        }
    }
}

/// Kinds of objects that are watched.
pub(crate) const KINDS: usize = 3;

/// The store.
#[derive(Debug, Default)]
pub(crate) struct ApiServer {
    pub(crate) version: u64,
    pub(crate) jobset: Option<Arc<JobSet>>,
    pub(crate) jobs: BTreeMap<String, Arc<Job>>,
    pub(crate) pods: BTreeMap<String, Arc<Pod>>,
    pub(crate) pod_groups: BTreeMap<String, PodGroup>,
    pub(crate) log: Vec<Change>,
    /// Until then it answers no request.
    pub(crate) down_until: Time,
    /// Until then another client writes the JobSet over and over.
    pub(crate) contended_until: Time,
    uids: u64,
}

impl ApiServer {
    pub(crate) fn uid(&mut self, of: &str) -> String {
        self.uids += 1;
        format!("{of}-{}", self.uids)
    }

    pub(crate) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(crate) fn put_jobset(&mut self, mut jobset: JobSet) -> Arc<JobSet> {
        let version = self.next_version();
        jobset.metadata.resource_version = Some(version.to_string());
        let jobset = Arc::new(jobset);
        self.jobset = Some(Arc::clone(&jobset));
        self.log.push(Change::JobSet(version, Some(Arc::clone(&jobset))));
        jobset
    }

    pub(crate) fn remove_jobset(&mut self) {
        let version = self.next_version();
        self.jobset = None;
        self.log.push(Change::JobSet(version, None));
    }

    pub(crate) fn put_job(&mut self, mut job: Job) -> Arc<Job> {
        let version = self.next_version();
        job.metadata.resource_version = Some(version.to_string());
        let name = name_of(&job.metadata);
        let job = Arc::new(job);
        self.jobs.insert(name.clone(), Arc::clone(&job));
        self.log.push(Change::Job(version, name, Some(Arc::clone(&job))));
        job
    }

    pub(crate) fn change_job(&mut self, name: &str, change: impl FnOnce(&mut Job)) {
        if let Some(job) = self.jobs.get(name) {
            let mut job = Job::clone(job);
            change(&mut job);
            self.put_job(job);
        }
    }

    pub(crate) fn remove_job(&mut self, name: &str) {
        let version = self.next_version();
        self.jobs.remove(name);
        self.log.push(Change::Job(version, name.to_owned(), None));
    }

    pub(crate) fn put_pod(&mut self, pod: Pod) {
        self.next_version();
        self.log.push(pod.shown());
        self.pods.insert(pod.uid.clone(), Arc::new(pod));
    }

    pub(crate) fn change_pod(&mut self, uid: &str, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.get(uid) {
            let mut pod = Pod::clone(pod);
            change(&mut pod);
            self.put_pod(pod);
        }
    }

    pub(crate) fn remove_pod(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.next_version();
            self.log.push(Change::Pod(uid.to_owned(), None));
        }
    }

    /// Applies a merge patch to the status if the JobSet still has the version that the patch
    /// names.
    pub(crate) fn patch_status(
        &mut self,
        uid: &str,
        patch: &serde_json::Value,
    ) -> Result<Arc<JobSet>, Refusal> {
        let Some(jobset) = &self.jobset else {
            return Err(Refusal::Gone);
        };
        if jobset.uid_str() != uid {
            return Err(Refusal::Gone);
        }
        if patch["metadata"]["resourceVersion"].as_str() != jobset.metadata.resource_version.as_deref() {
            return Err(Refusal::Conflict(Arc::clone(jobset)));
        }
        let mut status = serde_json::to_value(jobset.status.clone().unwrap_or_default()).unwrap_or_default();
        json_patch::merge(&mut status, &patch["status"]);
        let status: Option<JobSetStatus> = serde_json::from_value(status).ok();
        let mut jobset = JobSet::clone(jobset);
        jobset.status = status;
        Ok(self.put_jobset(jobset))
    }
}

/// Why a write is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    Conflict(Arc<JobSet>),
    Gone,
}

/// The name, empty if there is none.
pub(crate) fn name_of(meta: &ObjectMeta) -> String {
    meta.name.clone().unwrap_or_default()
}

/// The version of an object.
pub(crate) fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

impl World {
    /// What happens to the next request, which stands for `number` of them, and how long it
    /// travels.
    pub(crate) fn request(&mut self, kind: Kind, number: usize) -> (Fate, Time) {
        self.note_requests(kind, number);
        let way = self.rng.span(MS / 2, 4 * MS);
        if !self.faults_on || !self.scenario.bad_requests {
            return (Fate::Answered, way);
        }
        let known_after = self.rng.span(SEC, 10 * SEC);
        match self.rng.below(100) {
            0..3 => (Fate::Refused, way),
            3..5 => (Fate::Lost { known_after }, way),
            5..8 => (Fate::AnswerLost { known_after }, way),
            8..14 => (Fate::Answered, self.rng.span(100 * MS, 3 * SEC)),
            _ => (Fate::Answered, way),
        }
    }

    /// How long it takes a replica to learn that it has not reached the API server.
    pub(crate) fn gives_up_after(&mut self) -> Time {
        let is_refused = self.scenario.harsh_api && self.api.down_until > self.now;
        let longest = if is_refused { 3 * MS } else { 5 * SEC };
        self.rng.span(MS, longest)
    }
}
