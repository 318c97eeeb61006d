//! What a RayCluster must fulfil, with KubeRay's limits. Messages name the field.

use std::collections::BTreeSet;

use lockstep_api::ray::{RayCluster, RayClusterSpec};

use crate::validation::{Violation, dns1035_label};

/// Longest name of a RayCluster.
const LONGEST_CLUSTER_NAME: usize = 53;

/// Everything that is wrong with a RayCluster.
#[must_use]
pub fn cluster(cluster: &RayCluster) -> Vec<Violation> {
    let mut violations = Vec::new();
    name(
        "RayCluster",
        cluster.name(),
        LONGEST_CLUSTER_NAME,
        &mut violations,
    );
    cluster_spec("spec", &cluster.spec, &mut violations);
    violations
}

/// A name that is a DNS label of at most so many characters.
pub(crate) fn name(kind: &str, name: &str, longest: usize, violations: &mut Vec<Violation>) {
    if name.len() > longest {
        let message = format!("{kind} name should be no more than {longest} characters");
        violations.push(Violation::with_value("metadata.name", name, message));
    }
    violations.extend(
        dns1035_label(name, "must be no more than 63 characters").map(|error| {
            Violation::with_value(
                "metadata.name",
                name,
                format!("{kind} name should be a valid DNS1035 label: {error}"),
            )
        }),
    );
}

/// What is wrong with the spec of a cluster, at `path`.
pub(crate) fn cluster_spec(path: &str, spec: &RayClusterSpec, violations: &mut Vec<Violation>) {
    let mut wrong =
        |field: String, message: String| violations.push(Violation::new(format!("{path}.{field}"), message));
    if spec.enable_in_tree_autoscaling == Some(true) {
        wrong(
            "enableInTreeAutoscaling".to_owned(),
            "is not supported: the number of workers is changed by replicas".to_owned(),
        );
    }
    let has_container = |template: &k8s_openapi::api::core::v1::PodTemplateSpec| {
        template
            .spec
            .as_ref()
            .is_some_and(|pod| !pod.containers.is_empty())
    };
    let head = &spec.head_group_spec;
    if !has_container(&head.template) {
        wrong(
            "headGroupSpec".to_owned(),
            "headGroupSpec should have at least one container".to_owned(),
        );
    }
    let mut capacity =
        |field: &str, params: Option<&std::collections::BTreeMap<String, String>>, stated: bool, labels| {
            let has = |name: &str| {
                params.is_some_and(|params| params.get(name).is_some_and(|value| !value.is_empty()))
            };
            if stated
                && ["num-cpus", "num-gpus", "memory", "resources"]
                    .into_iter()
                    .any(has)
            {
                wrong(
                    format!("{field}.resources"),
                    "resource fields should not be set in both rayStartParams and resources; use only one"
                        .to_owned(),
                );
            }
            if labels && has("labels") {
                wrong(
                    format!("{field}.rayStartParams"),
                    "labels should not be set in both rayStartParams and labels; use only one".to_owned(),
                );
            }
        };
    capacity(
        "headGroupSpec",
        head.ray_start_params.as_ref(),
        !head.resources.is_empty(),
        !head.labels.is_empty(),
    );
    for (index, group) in spec.worker_group_specs.iter().enumerate() {
        capacity(
            &format!("workerGroupSpecs[{index}]"),
            group.ray_start_params.as_ref(),
            !group.resources.is_empty(),
            !group.labels.is_empty(),
        );
    }
    let mut names = BTreeSet::new();
    for (index, group) in spec.worker_group_specs.iter().enumerate() {
        let field = |name: &str| format!("workerGroupSpecs[{index}]{name}");
        if !has_container(&group.template) {
            wrong(
                field(""),
                "workerGroupSpec should have at least one container".to_owned(),
            );
        }
        if group.group_name.is_empty() {
            wrong(field(".groupName"), "must be set".to_owned());
        }
        if !names.insert(super::names::replicated_job(&group.group_name)) {
            wrong(
                field(".groupName"),
                format!("{:?} is the name of another group", group.group_name),
            );
        }
        for (name, value) in [
            (".replicas", group.replicas),
            (".minReplicas", group.min_replicas),
            (".maxReplicas", group.max_replicas),
        ] {
            if value.is_some_and(|value| value < 0) {
                wrong(field(name), "must not be negative".to_owned());
            }
        }
        if group.max_replicas.is_some_and(|most| most < group.min_replicas()) {
            wrong(
                field(".maxReplicas"),
                "must not be less than minReplicas".to_owned(),
            );
        }
        if group.num_of_hosts.is_some_and(|hosts| hosts < 1) {
            wrong(field(".numOfHosts"), "must be at least 1".to_owned());
        }
        if group.pods() > MOST_PODS {
            wrong(
                field(".replicas"),
                format!("must not make more than {MOST_PODS} pods"),
            );
        }
    }
}

/// The most pods of a group: the most completions of an Indexed Job whose pods have host names.
const MOST_PODS: i32 = 99_999;
