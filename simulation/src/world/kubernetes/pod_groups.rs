//! PodGroups in the API server, how pods join them, and how kube-scheduler binds these pods.
//!
//! This model is simpler than Kubernetes: the pod webhook always answers, all pods of a group are
//! bound at the same moment, and a deleted group is gone at once.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1 as k8s;
use lockstep_api::labels;
use lockstep_core::gang::{GroupPolicy, PodGroupRef, mutate};

use crate::time::{MS, SEC};
use crate::world::World;
use crate::world::event::NodeIndex;

/// A PodGroup as the API server keeps it.
#[derive(Debug, Clone)]
pub(crate) struct PodGroup {
    jobset_uid: String,
    policy: GroupPolicy,
}

/// True if a new pod of a Job has a gate, and the group that it is in, by the template of the Job
/// and the pod webhook.
pub(crate) fn marks(job: &Job, index: u32) -> (bool, Option<String>) {
    let Some(template) = job.spec.as_ref().map(|spec| &spec.template) else {
        return (false, None);
    };
    let mut pod = k8s::Pod {
        metadata: template.metadata.clone().unwrap_or_default(),
        spec: template.spec.clone(),
        status: None,
    };
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(labels::BATCH_JOB_COMPLETION_INDEX.to_owned(), index.to_string());
    let spec = mutate(&pod).unwrap_or(pod).spec.unwrap_or_default();
    let gated = spec.scheduling_gates.is_some_and(|gates| !gates.is_empty());
    (
        gated,
        spec.scheduling_group.and_then(|group| group.pod_group_name),
    )
}

impl World {
    /// Creates a PodGroup, or replaces it if it has to match exactly. Returns its policy if the
    /// leader learns it.
    pub(crate) fn make_pod_group(&mut self, jobset_uid: &str, wanted: &PodGroupRef) -> Option<GroupPolicy> {
        let groups = &mut self.api.pod_groups;
        if groups.contains_key(&wanted.name) && !wanted.exact {
            return None;
        }
        let group = PodGroup {
            jobset_uid: jobset_uid.to_owned(),
            policy: wanted.policy,
        };
        groups.insert(wanted.name.clone(), group);
        self.say(|| format!("PodGroup {} is {:?}", wanted.name, wanted.policy));
        self.poke_controllers(MS);
        Some(wanted.policy)
    }

    /// Deletes PodGroups whose JobSet is gone.
    pub(crate) fn collect_pod_groups(&mut self, owner: Option<&str>) {
        self.api
            .pod_groups
            .retain(|_, group| Some(group.jobset_uid.as_str()) == owner);
    }

    /// How many waiting pods of a PodGroup are bound at once, or none of them. Pods that are bound
    /// already and have not ended count.
    pub(crate) fn bound_at_once(&self, group: &str) -> usize {
        let minimum = match self.api.pod_groups.get(group).map(|group| group.policy) {
            Some(GroupPolicy::Gang(minimum)) => minimum as usize,
            Some(GroupPolicy::Basic) | None => 0,
        };
        let pods = self.api.pods.values();
        let bound = pods
            .filter(|pod| pod.group.as_deref() == Some(group) && pod.node.is_some() && !pod.is_terminal());
        minimum.saturating_sub(bound.count())
    }

    /// Binds the waiting pods of each PodGroup, if enough of them find room.
    pub(crate) fn schedule_groups(&mut self, nodes: &[NodeIndex]) {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in self.api.pods.values().filter(|pod| pod.waits_for_node()) {
            if let Some(group) = &pod.group {
                groups.entry(group.clone()).or_default().push(pod.uid.clone());
            }
        }
        for (name, waiting) in groups {
            if !self.api.pod_groups.contains_key(&name) {
                continue;
            }
            let minimum = self.bound_at_once(&name);
            let mut left: BTreeMap<NodeIndex, u64> =
                nodes.iter().map(|node| (*node, self.room_on(*node))).collect();
            let mut chosen = Vec::new();
            for uid in &waiting {
                let roomy = left.iter().filter(|(_, left)| **left > 0);
                let roomy: Vec<NodeIndex> = roomy.map(|(node, _)| *node).collect();
                if let Some(node) = self.rng.pick(&roomy).copied() {
                    chosen.push((uid, node));
                    left.entry(node).and_modify(|left| *left -= 1);
                }
            }
            if chosen.len() >= minimum {
                for (uid, node) in &chosen {
                    self.api.change_pod(uid, |pod| pod.node = Some(*node));
                }
            }
            if chosen.len() < waiting.len() {
                // Nodes may come back.
                self.poke_controllers(5 * SEC);
            }
        }
    }
}
