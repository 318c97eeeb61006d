//! The pod template of a Job that is resumed. It merges the suspended JobSet's template, which an
//! admission controller such as Kueue may have changed, into the Job's own, to which other
//! controllers may have added.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, Toleration};
use lockstep_api::{ReplicatedJob, annotations};

use crate::jobset::plan::{ContainerResources, Resume};

#[cfg(test)]
mod tests;

type Map = BTreeMap<String, String>;

/// Merges a Job's pod template with its replicatedJob's; the latter wins.
pub(crate) fn merge(job: &Job, replicated_job: &ReplicatedJob) -> Resume {
    let old = job.spec.as_ref().map(|spec| &spec.template);
    let new = replicated_job.template.spec.as_ref().map(|spec| &spec.template);
    let (old_meta, new_meta) = (
        old.and_then(|t| t.metadata.as_ref()),
        new.and_then(|t| t.metadata.as_ref()),
    );
    let (old_pod, new_pod) = (
        old.and_then(|t| t.spec.as_ref()),
        new.and_then(|t| t.spec.as_ref()),
    );
    let mut wanted = new_meta
        .and_then(|meta| meta.annotations.clone())
        .unwrap_or_default();
    // The controller's own annotations stay as they were when the Job was created.
    let ours = [
        annotations::IN_PLACE,
        annotations::SUPERVISE,
        annotations::STOP_WITHOUT_AGENT,
        annotations::STANDBY,
        annotations::GANG,
        annotations::GANG_MINIMUM,
        annotations::GANG_POD_GROUP,
    ];
    wanted.retain(|key, _| !ours.contains(&key.as_str()));
    Resume {
        replicated_job: replicated_job.name.clone(),
        resource_version: job.metadata.resource_version.clone(),
        clear_start_time: job
            .status
            .as_ref()
            .is_some_and(|status| status.start_time.is_some()),
        labels: merged(
            old_meta.and_then(|meta| meta.labels.as_ref()),
            new_meta.and_then(|meta| meta.labels.as_ref()),
        ),
        annotations: merged(old_meta.and_then(|meta| meta.annotations.as_ref()), Some(&wanted)),
        node_selector: merged(
            old_pod.and_then(|pod| pod.node_selector.as_ref()),
            new_pod.and_then(|pod| pod.node_selector.as_ref()),
        ),
        tolerations: union(
            old_pod.and_then(|pod| pod.tolerations.as_ref()),
            new_pod.and_then(|pod| pod.tolerations.as_ref()),
            toleration_key,
        ),
        scheduling_gates: union(
            old_pod.and_then(|pod| pod.scheduling_gates.as_ref()),
            new_pod.and_then(|pod| pod.scheduling_gates.as_ref()),
            |gate| gate.name.as_str(),
        )
        .into_iter()
        .map(|gate| gate.name)
        .collect(),
        ..Resume::default()
    }
}

/// The resources of a replicatedJob's containers, as they are now (KEP-1150).
pub(crate) fn resources(replicated_job: &ReplicatedJob) -> Vec<ContainerResources> {
    let Some(spec) = &replicated_job.template.spec else {
        return Vec::new();
    };
    let Some(pod) = &spec.template.spec else {
        return Vec::new();
    };
    let of = |container: &Container, is_init| ContainerResources {
        container: container.name.clone(),
        is_init,
        resources: container.resources.clone().unwrap_or_default(),
    };
    let init = pod.init_containers.iter().flatten();
    let init = init.map(|container| of(container, true));
    init.chain(pod.containers.iter().map(|container| of(container, false)))
        .collect()
}

fn merged(old: Option<&Map>, new: Option<&Map>) -> Map {
    old.into_iter().chain(new).flat_map(|map| map.clone()).collect()
}

/// All that is in either list, once each. There may be thousands. Items with equal keys are equal.
fn union<'a, T: Clone, K: Ord>(
    old: Option<&'a Vec<T>>,
    new: Option<&'a Vec<T>>,
    key: impl Fn(&'a T) -> K,
) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let all = old.into_iter().chain(new).flatten();
    all.filter(|&item| seen.insert(key(item))).cloned().collect()
}

/// All of a toleration, in an order.
fn toleration_key(toleration: &Toleration) -> impl Ord + use<'_> {
    let Toleration {
        effect,
        key,
        operator,
        toleration_seconds,
        value,
    } = toleration;
    (effect, key, operator, toleration_seconds, value)
}
