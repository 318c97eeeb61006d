//! What a cluster must fulfil.

use super::*;
use crate::ray::validation;

fn wrong(cluster: &RayCluster) -> Vec<String> {
    validation::cluster(cluster)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_cluster_with_nothing_wrong() {
    assert_eq!(wrong(&cluster(json!({}))), [""; 0]);
}

#[test]
fn names_have_kuberays_limits() {
    let named = |name: &str| {
        let mut named = cluster(json!({}));
        named.metadata.name = Some(name.to_owned());
        wrong(&named)
    };
    assert_eq!(named(&"c".repeat(53)), [""; 0]);
    assert!(named(&"c".repeat(54))[0].contains("RayCluster name should be no more than 53 characters"));
    assert!(named("1c")[0].contains("RayCluster name should be a valid DNS1035 label"));
}

#[test]
fn each_mistake_is_named_by_its_field() {
    let group = |patch: Value| {
        let mut group = json!({"groupName": "g", "template": template()});
        merge(&mut group, patch);
        json!({"workerGroupSpecs": [group]})
    };
    let cases = [
        (
            json!({"headGroupSpec": {"template": {"spec": {"containers": []}}}}),
            "spec.headGroupSpec: headGroupSpec should have",
        ),
        (
            group(json!({"template": {"spec": null}})),
            "spec.workerGroupSpecs[0]: workerGroupSpec should have",
        ),
        (
            group(json!({"groupName": ""})),
            "spec.workerGroupSpecs[0].groupName: must be set",
        ),
        (
            group(json!({"replicas": -1})),
            "spec.workerGroupSpecs[0].replicas: must not be negative",
        ),
        (
            group(json!({"minReplicas": 3, "maxReplicas": 2})),
            "spec.workerGroupSpecs[0].maxReplicas",
        ),
        (
            group(json!({"numOfHosts": 0})),
            "spec.workerGroupSpecs[0].numOfHosts",
        ),
        (
            group(json!({"replicas": 100_000})),
            "spec.workerGroupSpecs[0].replicas: must not make more",
        ),
        (
            json!({"headGroupSpec": {"resources": {"CPU": "1"}, "rayStartParams": {"num-cpus": "1"}}}),
            "spec.headGroupSpec.resources: resource fields should not be set in both",
        ),
        (
            json!({"enableInTreeAutoscaling": true}),
            "spec.enableInTreeAutoscaling: is not supported",
        ),
    ];
    for (spec, expected) in cases {
        let found = wrong(&cluster(spec.clone()));
        assert!(
            found.iter().any(|message| message.starts_with(expected)),
            "{spec}: {found:?}"
        );
    }
}

#[test]
fn two_groups_have_two_names() {
    let group = json!({"groupName": "g", "template": template()});
    let found = wrong(&cluster(json!({"workerGroupSpecs": [group, group]})));
    assert!(
        found[0].contains("spec.workerGroupSpecs[1].groupName"),
        "{found:?}"
    );
}
