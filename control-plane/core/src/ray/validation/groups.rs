//! Validation of a cluster's head and worker groups.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::ray::{HeadGroupSpec, RayClusterSpec, WorkerGroupSpec, keys};

use super::options::{self, Annotations, head_variable, unsupported_annotation};
use crate::common::syntax::{label_value, qualified_name};
use crate::common::violation::Violation;
use crate::jobset::limits::MOST_WORKERS;
use crate::ray::jobset::MOST_GROUPS;
use crate::ray::names;

type Map = BTreeMap<String, String>;

/// Environment variable that names the Redis for the state of Ray's head.
const REDIS_ADDRESS: &str = "RAY_REDIS_ADDRESS";
/// Environment variable that tells Ray's head to expect an autoscaler beside it.
const AUTOSCALER: &str = "RAY_enable_autoscaler_v2";
/// Flags of `ray start` with ports that probes and the head's Service repeat.
const PORTS: [&str; 4] = [
    "port",
    "dashboard-port",
    "ray-client-server-port",
    "dashboard-agent-listen-port",
];
/// The most pods of a group: the most completions of an Indexed Job whose pods have host names.
const MOST_PODS: i32 = 99_999;

/// Adds the faults of the cluster spec at `path`. `annotations` are those of its object.
pub(super) fn validate(
    path: &str,
    spec: &RayClusterSpec,
    annotations: Annotations<'_>,
    violations: &mut Vec<Violation>,
) {
    if spec.enable_in_tree_autoscaling == Some(true) {
        violations.push(Violation::new(
            format!("{path}.enableInTreeAutoscaling"),
            "is not supported: change replicas to scale the workers",
        ));
    }
    // The messages name no numbers of this cluster, so a stored cluster that is too large can still
    // be changed and made smaller.
    let field = format!("{path}.workerGroupSpecs");
    if spec.worker_group_specs.len() > MOST_GROUPS {
        let message = format!("must not be more than {MOST_GROUPS} groups");
        violations.push(Violation::new(field, message));
        return;
    }
    let pods = spec
        .worker_group_specs
        .iter()
        .map(|group| i64::from(group.pods()));
    if usize::try_from(pods.sum::<i64>()).map_or(true, |pods| pods >= MOST_WORKERS) {
        let message = format!("must not create more than {MOST_WORKERS} pods in total, including the head");
        violations.push(Violation::new(field, message));
    }
    let at_head = |(field, message)| Violation::new(format!("{path}.headGroupSpec{field}"), message);
    let head = head(&spec.head_group_spec, annotations);
    violations.extend(head.into_iter().map(at_head));

    // KubeRay requires no more either.
    let autoscaler = spec.other.0.get("autoscalerOptions");
    let has_version_2 = autoscaler.is_some_and(|options| options["version"] == "v2");
    let mut names = BTreeSet::new();
    for (index, group) in spec.worker_group_specs.iter().enumerate() {
        let wrong = group_of(group, has_version_2, &mut names);
        let at_group =
            |(field, message)| Violation::new(format!("{path}.workerGroupSpecs[{index}]{field}"), message);
        violations.extend(wrong.into_iter().map(at_group));
    }
    let gang = spec.gang.iter().flat_map(|gang| &gang.replicated_jobs);
    for (index, part) in gang.enumerate() {
        // Groups without pods are left out of gangs. Unknown groups would be too, unnoticed.
        if part.name != names::HEAD && !names.contains(&names::replicated_job(&part.name)) {
            let field = format!("{path}.gang.replicatedJobs[{index}].name");
            violations.push(Violation::new(
                field,
                format!("there is no worker group {:?}", part.name),
            ));
        }
    }
}

/// The faults of the head: field and message.
fn head(head: &HeadGroupSpec, annotations: Annotations<'_>) -> Vec<(&'static str, String)> {
    let mut wrong = Vec::new();
    if !has_container(&head.template) {
        wrong.push(("", "headGroupSpec should have at least one container".to_owned()));
    }
    ray(
        "Head",
        head.ray_start_params.as_ref(),
        &head.resources,
        &head.labels,
        &mut wrong,
    );
    outside(head, unsupported_annotation(annotations).is_some(), &mut wrong);
    wrong
}

/// The faults of a worker group: field and message. `names` are those of the groups before it.
fn group_of(
    group: &WorkerGroupSpec,
    has_version_2: bool,
    names: &mut BTreeSet<String>,
) -> Vec<(&'static str, String)> {
    let mut wrong = Vec::new();
    if !has_container(&group.template) {
        wrong.push((
            "",
            "workerGroupSpec should have at least one container".to_owned(),
        ));
    }
    if group.group_name.is_empty() {
        wrong.push((".groupName", "must be set".to_owned()));
    }
    // The name is a label value of the group's pods, which could not be created otherwise.
    for error in label_value(&group.group_name) {
        wrong.push((".groupName", error));
    }
    if !names.insert(names::replicated_job(&group.group_name)) {
        wrong.push((
            ".groupName",
            "worker group names must be unique, in lower case too".to_owned(),
        ));
    }
    numbers(group, &mut wrong);
    options::group(group, has_version_2, &mut wrong);
    let (params, name) = (group.ray_start_params.as_ref(), &group.group_name);
    ray(name, params, &group.resources, &group.labels, &mut wrong);
    wrong
}

fn has_container(template: &PodTemplateSpec) -> bool {
    let pod = template.spec.as_ref();
    pod.is_some_and(|pod| !pod.containers.is_empty())
}

/// Faults of a head that expects an unsupported service, such as Redis or an autoscaler.
/// `fault_tolerant` is set if an annotation says that the head keeps its state in Redis.
fn outside(head: &HeadGroupSpec, fault_tolerant: bool, wrong: &mut Vec<(&str, String)>) {
    let variable = |name: &str| head_variable(head, name);
    let params = head.ray_start_params.as_ref();
    if variable(REDIS_ADDRESS).is_some() && !fault_tolerant {
        let message = format!(
            "{REDIS_ADDRESS} is set which implicitly enables GCS fault tolerance, which is not supported with or without \
             gcsFaultToleranceOptions; the annotation {}: \"true\" passes the variable on unchanged",
            keys::FAULT_TOLERANCE
        );
        wrong.push((".template", message));
    }
    let user = params.and_then(|params| params.get("redis-username"));
    if user.is_some_and(|user| !user.is_empty()) || variable("REDIS_USERNAME").is_some() {
        let message = "cannot set redis username in rayStartParams or environment variables: GCS fault tolerance is not supported";
        wrong.push(("", message.to_owned()));
    }
    let autoscaler = variable(AUTOSCALER).and_then(|variable| variable.value.as_deref());
    if let Some(value @ ("1" | "true")) = autoscaler {
        let message = format!(
            "environment variable {AUTOSCALER} cannot be set to '{value}' when enableInTreeAutoscaling is false. Please set \
             enableInTreeAutoscaling: true to use autoscaler v2"
        );
        wrong.push((".template", message));
    }
}

/// Checks the numbers of pods of a group.
fn numbers(group: &WorkerGroupSpec, wrong: &mut Vec<(&str, String)>) {
    let name = &group.group_name;
    for (field, value) in [
        (".replicas", group.replicas),
        (".minReplicas", group.min_replicas),
        (".maxReplicas", group.max_replicas),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            let what = field.trim_start_matches('.');
            wrong.push((field, format!("worker group {name} has negative {what} {value}")));
        }
    }
    if let Some(most) = group.max_replicas.filter(|most| *most < group.min_replicas()) {
        let least = group.min_replicas();
        let message = format!("worker group {name} has minReplicas {least} greater than maxReplicas {most}");
        wrong.push((".maxReplicas", message));
    }
    if group.num_of_hosts.is_some_and(|hosts| hosts < 1) {
        wrong.push((".numOfHosts", "must be at least 1".to_owned()));
    }
    if group.pods() > MOST_PODS {
        let (stated, least) = (group.replicas.unwrap_or(0), group.min_replicas());
        let field = match group.hosts() > stated.max(least) {
            true => ".numOfHosts",
            false if least > stated => ".minReplicas",
            false => ".replicas",
        };
        wrong.push((field, format!("must not create more than {MOST_PODS} pods")));
    }
}

/// Checks the ports, resources and labels of Ray nodes.
fn ray(group: &str, params: Option<&Map>, resources: &Map, labels: &Map, wrong: &mut Vec<(&str, String)>) {
    let has =
        |name: &str| params.is_some_and(|params| params.get(name).is_some_and(|value| !value.is_empty()));
    let mut capacities = ["num-cpus", "num-gpus", "memory", "resources"].into_iter();
    if !resources.is_empty() && capacities.any(has) {
        wrong.push((
            ".resources",
            format!(
                "resource fields should not be set in both rayStartParams and Resources for {group} group; please use only one"
            ),
        ));
    }
    for name in PORTS {
        let Some(value) = params.and_then(|params| params.get(name)) else {
            continue;
        };
        if !value.parse::<u16>().is_ok_and(|port| port > 0) {
            let message = format!(
                "rayStartParams['{name}'] of {group} group must be a port from 1 to 65535, in digits"
            );
            wrong.push((".rayStartParams", message));
        }
    }
    if has("labels") {
        wrong.push((
            ".rayStartParams",
            format!(
                "rayStartParams['labels'] is not supported for {group} group; please use the top-level Labels field instead"
            ),
        ));
    }
    for (key, value) in labels {
        for error in qualified_name(key) {
            wrong.push((
                ".labels",
                format!("invalid label key for {group} group: '{key}', error: {error}"),
            ));
        }
        for error in label_value(value) {
            wrong.push((
                ".labels",
                format!("invalid label value for key '{key}' in {group} group: '{value}', error: {error}"),
            ));
        }
    }
}
