//! Admission of a pod that is being created.

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use lockstep_api::{annotations, labels};
use thiserror::Error;

use super::{Member, Role, annotation, label, role, topology};
use crate::jobset::owner::controller_of;

/// Why a pod must not be created, or not yet. The messages are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The leader's domain was unknown when the mutating webhook saw the pod.
    #[error("follower pod node selector not set")]
    NoSelector,
    /// The same, for a pod with a node selector for other labels.
    #[error("follower pod node selector for topology domain not found. missing selector: {0}")]
    NoDomain(String),
    /// The pod does not say which Job of which JobSet it belongs to.
    #[error("pod missing label: {0}")]
    NoLabel(&'static str),
    /// There is no leader, or there are several.
    #[error("expected 1 leader pod ({name}), but got {found}. this is an expected, transient error")]
    Leaders {
        /// Name of the leader, without its random suffix.
        name: String,
        /// How many there are.
        found: usize,
    },
    /// Nothing controls the follower.
    #[error("follower pod has no owner reference")]
    FollowerWithoutJob,
    /// Nothing controls the leader.
    #[error("leader pod {0:?} has no owner reference")]
    LeaderWithoutJob(String),
    /// The leader belongs to an earlier Job of the same name.
    #[error("follower pod owner UID ({follower}) != leader pod owner UID ({leader})")]
    OtherJob {
        /// UID of the follower's Job.
        follower: String,
        /// UID of the leader's Job.
        leader: String,
    },
    /// The leader is not scheduled yet.
    #[error("leader pod not yet scheduled, not creating follower pod. this is an expected, transient error")]
    NotScheduled,
}

/// Decides about a pod that is being created.
///
/// `Ok(None)`: nothing to check. `Ok(Some(search))`: it follows a leader, which must be scheduled.
///
/// # Errors
/// The pod must not be created, wherever its leader is.
pub fn admission(pod: &Pod) -> Result<Option<LeaderSearch<'_>>, Refusal> {
    let Some(topology) = follows(pod) else {
        return Ok(None);
    };
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    match selector {
        // The API server leaves an empty map out.
        None => Err(Refusal::NoSelector),
        Some(selector) if selector.is_empty() => Err(Refusal::NoSelector),
        Some(selector) if !selector.contains_key(topology) => Err(Refusal::NoDomain(topology.to_owned())),
        Some(_) => LeaderSearch::of(pod).map(Some),
    }
}

/// The pod with what placement adds to it; `None`: nothing. `domain` is that of its leader, if it
/// has one and the domain is known.
#[must_use]
pub fn mutate(pod: &Pod, domain: Option<&str>) -> Option<Pod> {
    if !concerns(pod) {
        return None;
    }
    let mut changed = pod.clone();
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
    if let Some(priority) = priority {
        changed
            .metadata
            .labels
            .get_or_insert_default()
            .insert(labels::PRIORITY.to_owned(), priority.to_string());
    }
    match (topology(pod), role(pod), domain) {
        (Some(topology), Role::Leader, _) => attract(&mut changed, topology),
        (Some(topology), Role::Follower, Some(domain)) => {
            let spec = changed.spec.get_or_insert_default();
            spec.node_selector
                .get_or_insert_default()
                .insert(topology.to_owned(), domain.to_owned());
        }
        _ => {}
    }
    (changed != *pod).then_some(changed)
}

/// True if the pod belongs to a JobSet and is not placed by the node selector strategy.
fn concerns(pod: &Pod) -> bool {
    annotation(pod, labels::JOBSET_NAME).is_some()
        && annotation(pod, annotations::NODE_SELECTOR_STRATEGY).is_none()
}

/// The node label whose values are the domains, if the pod has a leader to follow.
fn follows(pod: &Pod) -> Option<&str> {
    topology(pod).filter(|_| concerns(pod) && role(pod) == Role::Follower)
}

/// Brings a leader to a domain where its own Job is, and no other of the same priority.
///
/// The API server sets the priority of every pod earlier, unless that admission plugin is off. A
/// pod without a priority gets "" in the second term, as upstream writes it. No pod has a label of
/// that value, so the term matches none: such leaders keep no other pod out of their domains.
fn attract(pod: &mut Pod, topology: &str) {
    let key = label(pod, labels::JOB_KEY).unwrap_or_default().to_owned();
    let priority = label(pod, labels::PRIORITY).unwrap_or_default().to_owned();
    let own = term(topology, vec![require(labels::JOB_KEY, "In", Some(key.clone()))]);
    let others = vec![
        require(labels::JOB_KEY, "Exists", None),
        require(labels::JOB_KEY, "NotIn", Some(key)),
        require(labels::PRIORITY, "In", Some(priority)),
    ];
    let affinity = pod.spec.get_or_insert_default().affinity.get_or_insert_default();
    let together = affinity.pod_affinity.get_or_insert_default();
    add(
        together
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default(),
        own,
    );
    let apart = affinity.pod_anti_affinity.get_or_insert_default();
    add(
        apart
            .required_during_scheduling_ignored_during_execution
            .get_or_insert_default(),
        term(topology, others),
    );
}

/// A webhook can be called more than once for one pod.
fn add(terms: &mut Vec<PodAffinityTerm>, term: PodAffinityTerm) {
    if !terms.contains(&term) {
        terms.push(term);
    }
}

fn term(topology: &str, requirements: Vec<LabelSelectorRequirement>) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_expressions: Some(requirements),
            ..LabelSelector::default()
        }),
        topology_key: topology.to_owned(),
        // Empty, not absent: Jobs of all namespaces share the domains.
        namespace_selector: Some(LabelSelector::default()),
        ..PodAffinityTerm::default()
    }
}

fn require(key: &str, operator: &str, value: Option<String>) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: operator.to_owned(),
        values: value.map(|value| vec![value]),
    }
}

/// How to find the leader of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderSearch<'a> {
    /// Name of the JobSet.
    pub jobset: &'a str,
    /// Name of the replicatedJob.
    pub replicated_job: &'a str,
    /// Index of the Job in the replicatedJob.
    pub job_index: &'a str,
    /// UID of the Job that controls the follower.
    pub job: Option<&'a str>,
    /// The node label whose values are the domains.
    pub topology: &'a str,
    /// True if pods of the Job have their index as a label too. Those of the Job controller do.
    pub labelled: bool,
}

impl<'a> LeaderSearch<'a> {
    /// The search for the leader of a pod; `None`: it is not a follower.
    ///
    /// # Errors
    /// [`Refusal::NoLabel`].
    pub fn of_follower(pod: &'a Pod) -> Result<Option<Self>, Refusal> {
        if follows(pod).is_none() {
            return Ok(None);
        }
        Self::of(pod).map(Some)
    }

    fn of(pod: &'a Pod) -> Result<Self, Refusal> {
        let get = |key: &'static str| label(pod, key).ok_or(Refusal::NoLabel(key));
        Ok(Self {
            jobset: get(labels::JOBSET_NAME)?,
            replicated_job: get(labels::REPLICATED_JOB_NAME)?,
            job_index: get(labels::JOB_INDEX)?,
            job: controller_of(&pod.metadata).map(|owner| owner.uid.as_str()),
            topology: topology(pod).unwrap_or_default(),
            labelled: label(pod, labels::BATCH_JOB_COMPLETION_INDEX).is_some(),
        })
    }

    /// The leader among pods of Jobs of this name. It is alive, and may still have to be scheduled.
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn choose<'m>(&self, candidates: &'m [Member]) -> Result<&'m Member, Refusal> {
        let leaders = candidates
            .iter()
            .filter(|pod| pod.alive && pod.role == Role::Leader);
        let leaders: Vec<&Member> = leaders.collect();
        let of_same_job = |leader: &&&Member| self.job.is_some() && leader.job.as_deref() == self.job;
        let mut own = leaders.iter().filter(of_same_job);
        // A leader that an earlier Job of the same name left behind does not count.
        match (own.next(), own.next(), leaders.as_slice()) {
            (Some(leader), None, _) => Ok(leader),
            (None, _, [stranger]) => Err(self.not_ours(stranger)),
            (_, _, leaders) => Err(Refusal::Leaders {
                name: format!("{}-{}-{}-0", self.jobset, self.replicated_job, self.job_index),
                found: leaders.len(),
            }),
        }
    }

    fn not_ours(&self, leader: &Member) -> Refusal {
        match (self.job, &leader.job) {
            (None, _) => Refusal::FollowerWithoutJob,
            (_, None) => Refusal::LeaderWithoutJob(leader.name.clone()),
            (Some(follower), Some(other)) => Refusal::OtherJob {
                follower: follower.to_owned(),
                leader: other.clone(),
            },
        }
    }
}
