//! Builds the Jobs of a JobSet.
//!
//! Promises: the same JobSet, restart attempt and execution attempt always give the same Job;
//! labels, annotations and names are upstream's; missing fields of the JobSet are defaulted here,
//! because objects can arrive without defaults.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{PodTemplateSpec, Toleration},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use lockstep_api::annotations::{self, Standby};
use lockstep_api::{InPlaceKind, JobSet, ReplicatedJob, labels, naming};

use crate::common::features::Features;
use crate::gang::Marks;
use crate::jobset::in_place::{self, Agents, InPlaceMode, RestartLevel, template};
use crate::jobset::jobs::{IN_PLACE_BACKOFF_LIMIT, IN_PLACE_POD_REPLACEMENT_POLICY, total};
use crate::jobset::owner::owner_reference;
use crate::jobset::volume_claims;

#[cfg(test)]
mod tests;

type Map = BTreeMap<String, String>;

/// Builds the Jobs of one JobSet.
pub(crate) struct Jobs<'a> {
    jobset: &'a JobSet,
    owner: OwnerReference,
    features: Features,
    pod_groups: bool,
    /// See [`annotations::EXECUTION_ATTEMPT`].
    execution_attempt: Option<i32>,
    group: Option<InPlaceMode>,
    agents: &'a Agents,
    /// Labels and annotations that all Jobs of the JobSet share.
    common: Map,
}

impl<'a> Jobs<'a> {
    pub(crate) fn new(jobset: &'a JobSet, features: Features, agents: &'a Agents) -> Self {
        let mut common = Map::new();
        let mut set = |key: &str, value: String| common.insert(key.to_owned(), value);
        set(labels::JOBSET_NAME, jobset.name().to_owned());
        set(labels::JOBSET_UID, jobset.uid_str().to_owned());
        set(labels::RESTART_ATTEMPT, jobset.restart_attempt().to_string());
        set(labels::GLOBAL_REPLICAS, total(jobset, |_| true).to_string());
        if let Some(endpoint) = jobset.coordinator_endpoint() {
            set(labels::COORDINATOR, endpoint);
        }
        Self {
            jobset,
            owner: owner_reference(jobset),
            features,
            pod_groups: false,
            execution_attempt: None,
            group: in_place::mode(jobset, agents).filter(|_| features.in_place_restart),
            agents,
            common,
        }
    }

    /// For a cluster without node daemons: nothing restarts containers together.
    #[must_use]
    pub(crate) fn without_daemons(mut self) -> Self {
        if let Some(group) = &mut self.group
            && group.kind == InPlaceKind::Plain
        {
            group.level = None;
        }
        self
    }

    /// With PodGroups, if kube-scheduler supports them.
    #[must_use]
    pub(crate) fn with_pod_groups(mut self, pod_groups: bool) -> Self {
        self.pod_groups = pod_groups;
        self
    }

    /// Marked with this execution attempt (KEP-1282).
    #[must_use]
    pub(crate) fn with_execution_attempt(mut self, attempt: Option<i32>) -> Self {
        self.execution_attempt = attempt;
        self
    }

    /// The Job of a replicatedJob with this index.
    pub(crate) fn make(&self, replicated_job: &ReplicatedJob, index: i32) -> Job {
        let name = self.jobset.job_name(&replicated_job.name, i64::from(index));
        let identity = self.identity(replicated_job, index, &name);
        let template = replicated_job.template.metadata.as_ref();
        let mut job = Job {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: self.jobset.metadata.namespace.clone(),
                labels: template.and_then(|meta| meta.labels.clone()),
                annotations: template.and_then(|meta| meta.annotations.clone()),
                owner_references: Some(vec![self.owner.clone()]),
                ..ObjectMeta::default()
            },
            spec: replicated_job.template.spec.clone(),
            status: None,
        };
        self.mark(&mut job.metadata, replicated_job, &identity);
        let placed_by_node_selector = job.metadata.annotations.as_ref().is_some_and(|set| {
            set.contains_key(annotations::EXCLUSIVE_TOPOLOGY)
                && set.contains_key(annotations::NODE_SELECTOR_STRATEGY)
        });

        let spec = job.spec.get_or_insert_default();
        self.default_spec(spec);
        spec.suspend = Some(self.jobset.is_suspended());
        self.mark(
            spec.template.metadata.get_or_insert_default(),
            replicated_job,
            &identity,
        );
        self.mark_for_in_place(&mut spec.template, replicated_job);
        self.bring_agents(&mut spec.template);
        let gang = Marks::of(self.jobset, replicated_job, index, self.pod_groups);
        Marks::put(gang.as_ref(), &mut spec.template);
        let pod = spec.template.spec.get_or_insert_default();
        pod.restart_policy.get_or_insert_with(|| "OnFailure".to_owned());
        if self.jobset.dns_hostnames() {
            pod.subdomain = Some(self.jobset.subdomain().to_owned());
        }
        volume_claims::add_volumes(self.jobset, pod);
        if placed_by_node_selector {
            let value = naming::namespaced_job(self.jobset.ns(), &name);
            pod.node_selector
                .get_or_insert_default()
                .insert(labels::NAMESPACED_JOB.to_owned(), value);
            pod.tolerations.get_or_insert_default().push(Toleration {
                key: Some(labels::NO_SCHEDULE_TAINT.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoSchedule".to_owned()),
                ..Toleration::default()
            });
        }
        job
    }

    fn default_spec(&self, spec: &mut JobSpec) {
        // An Indexed Job needs completions. The API server sets them if parallelism is missing too.
        if spec.completions.is_some() || spec.parallelism.is_none() {
            spec.completion_mode.get_or_insert_with(|| "Indexed".to_owned());
        }
        if let Some(group) = &self.group {
            // If the workers are not restarted together, the first failure must reach the failure
            // policy.
            let restarts_jobs = group.kind == InPlaceKind::Plain && group.level.is_none();
            spec.backoff_limit
                .get_or_insert(if restarts_jobs { 0 } else { IN_PLACE_BACKOFF_LIMIT });
            spec.pod_replacement_policy
                .get_or_insert_with(|| IN_PLACE_POD_REPLACEMENT_POLICY.to_owned());
        }
    }

    /// Labels and annotations that identify this Job within the JobSet.
    fn identity(&self, replicated_job: &ReplicatedJob, index: i32, name: &str) -> Map {
        let group = replicated_job.group_name();
        let before = |same: &dyn Fn(&ReplicatedJob) -> bool| -> i64 {
            let earlier = self
                .jobset
                .spec
                .replicated_jobs
                .iter()
                .take_while(|other| other.name != replicated_job.name);
            earlier
                .filter(|other| same(other))
                .map(|other| i64::from(other.replicas()))
                .sum()
        };
        let in_group = |other: &ReplicatedJob| other.group_name() == group;
        let index = i64::from(index);
        let mut map = self.common.clone();
        let mut set = |key: &str, value: String| map.insert(key.to_owned(), value);
        set(labels::REPLICATED_JOB_NAME, replicated_job.name.clone());
        set(
            labels::REPLICATED_JOB_REPLICAS,
            replicated_job.replicas().to_string(),
        );
        if self.features.restart_job {
            let restarts = usize::try_from(index)
                .map_or(0, |index| self.jobset.job_restarts(&replicated_job.name, index));
            set(labels::JOB_RESTART_ATTEMPT, restarts.to_string());
        }
        set(labels::JOB_INDEX, index.to_string());
        set(labels::JOB_KEY, naming::job_key(self.jobset.ns(), name));
        set(labels::JOB_GLOBAL_INDEX, (before(&|_| true) + index).to_string());
        set(labels::GROUP_NAME, group.to_owned());
        set(labels::GROUP_REPLICAS, total(self.jobset, in_group).to_string());
        set(labels::JOB_GROUP_INDEX, (before(&in_group) + index).to_string());
        map
    }

    /// Adds the identity to a Job or its pod template, and the annotations for exclusive placement.
    fn mark(&self, meta: &mut ObjectMeta, replicated_job: &ReplicatedJob, identity: &Map) {
        meta.labels.get_or_insert_default().extend(identity.clone());
        let target = meta.annotations.get_or_insert_default();
        target.extend(identity.clone());
        if let Some(attempt) = self.execution_attempt {
            target.insert(annotations::EXECUTION_ATTEMPT.to_owned(), attempt.to_string());
        }
        let of_template = replicated_job
            .template
            .metadata
            .as_ref()
            .and_then(|meta| meta.annotations.as_ref());
        // A replicatedJob's own annotation, on its Job template, overrides the JobSet's.
        for source in [self.jobset.metadata.annotations.as_ref(), of_template]
            .into_iter()
            .flatten()
        {
            if let Some(topology) = source.get(annotations::EXCLUSIVE_TOPOLOGY) {
                target.insert(annotations::EXCLUSIVE_TOPOLOGY.to_owned(), topology.clone());
                if let Some(strategy) = source.get(annotations::NODE_SELECTOR_STRATEGY) {
                    target.insert(annotations::NODE_SELECTOR_STRATEGY.to_owned(), strategy.clone());
                }
            }
        }
    }

    /// Marks the workers of these pods for the node daemons, and if they run under the agent. Node
    /// daemons ignore pods without these marks.
    fn mark_for_in_place(&self, template: &mut PodTemplateSpec, replicated_job: &ReplicatedJob) {
        let mark = self.group.as_ref().and_then(|group| match group.level? {
            RestartLevel::Container => Some(annotations::IN_PLACE_PLAIN),
            _ => Some(annotations::IN_PLACE_SUPERVISED),
        });
        let list = in_place::workers(self.jobset, template).join(",");
        let again = template.spec.as_ref().is_some_and(in_place::is_started_again);
        let target = template
            .metadata
            .get_or_insert_default()
            .annotations
            .get_or_insert_default();
        // Only the controller sets these. A template cannot.
        target.remove(annotations::IN_PLACE);
        target.remove(annotations::SUPERVISE);
        target.remove(annotations::STOP_WITHOUT_AGENT);
        target.remove(annotations::STANDBY);
        if let Some(mark) = mark
            && !list.is_empty()
        {
            target.insert(annotations::IN_PLACE.to_owned(), mark.to_owned());
            target.insert(annotations::SUPERVISE.to_owned(), list);
            if mark != annotations::IN_PLACE_SUPERVISED {
                return;
            }
            if again {
                target.insert(annotations::STOP_WITHOUT_AGENT.to_owned(), "true".to_owned());
            }
            let standby = self.jobset.standby_of(replicated_job);
            if standby != Standby::Nothing {
                target.insert(annotations::STANDBY.to_owned(), standby.as_str().to_owned());
            }
        }
    }
}

impl Jobs<'_> {
    /// Adds the agents to the template if the node daemons cannot.
    fn bring_agents(&self, template: &mut PodTemplateSpec) {
        let supervised = self
            .group
            .as_ref()
            .is_some_and(|group| group.level == Some(RestartLevel::Process));
        let Agents::ByTemplate(image) = self.agents else {
            return;
        };
        let workers = in_place::workers(self.jobset, template);
        let workers: Vec<String> = workers.into_iter().map(str::to_owned).collect();
        if let Some(pod) = template.spec.as_mut().filter(|_| supervised) {
            template::inject(pod, &workers, image);
        }
    }
}
