//! The rules for a cluster, and the answers of its webhook.

use super::*;
use crate::ray::admission::{is_ours, validate};
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
            group(json!({"groupName": "g".repeat(64)})),
            "spec.workerGroupSpecs[0].groupName: must be no more than 63 bytes",
        ),
        (
            group(json!({"groupName": "big group"})),
            "spec.workerGroupSpecs[0].groupName: a valid label",
        ),
        (
            group(json!({"replicas": -1})),
            "spec.workerGroupSpecs[0].replicas: worker group g has negative replicas -1",
        ),
        (
            group(json!({"minReplicas": 3, "maxReplicas": 2})),
            "spec.workerGroupSpecs[0].maxReplicas: worker group g has minReplicas 3 greater than maxReplicas 2",
        ),
        (
            group(json!({"numOfHosts": 0})),
            "spec.workerGroupSpecs[0].numOfHosts",
        ),
        (
            group(json!({"replicas": 100_000})),
            "spec.workerGroupSpecs[0].replicas: must not create more",
        ),
        (
            group(json!({"minReplicas": i32::MAX})),
            "spec.workerGroupSpecs[0].minReplicas: must not create more",
        ),
        (
            group(json!({"replicas": 2, "numOfHosts": i32::MAX})),
            "spec.workerGroupSpecs[0].numOfHosts: must not create more",
        ),
        (
            json!({"headGroupSpec": {"resources": {"CPU": "1"}, "rayStartParams": {"num-cpus": "1"}}}),
            "spec.headGroupSpec.resources: resource fields should not be set in both",
        ),
        (
            group(json!({"rayStartParams": {"labels": "a=b"}})),
            "spec.workerGroupSpecs[0].rayStartParams: rayStartParams['labels'] is not supported for g group",
        ),
        (
            json!({"headGroupSpec": {"rayStartParams": {"dashboard-port": "99999999999"}}}),
            "spec.headGroupSpec.rayStartParams: rayStartParams['dashboard-port'] of Head group must be a port from 1 to 65535",
        ),
        (
            group(json!({"rayStartParams": {"dashboard-agent-listen-port": "http"}})),
            "spec.workerGroupSpecs[0].rayStartParams: rayStartParams['dashboard-agent-listen-port'] of g group must be a port",
        ),
        (
            json!({"headGroupSpec": {"labels": {"-a": "b"}}}),
            "spec.headGroupSpec.labels: invalid label key for Head group: '-a', error: name part must consist",
        ),
        (
            json!({"headGroupSpec": {"labels": {"ray.io/a": "b c"}}}),
            "spec.headGroupSpec.labels: invalid label value for key 'ray.io/a' in Head group: 'b c', error: a valid label",
        ),
        (
            json!({"gang": {"replicatedJobs": [{"name": "none", "minAvailable": 1}]}}),
            "spec.gang.replicatedJobs[0].name: there is no worker group \"none\"",
        ),
        (
            json!({"enableInTreeAutoscaling": true}),
            "spec.enableInTreeAutoscaling: is not supported",
        ),
        (
            head_env("RAY_REDIS_ADDRESS", "redis:6379"),
            "spec.headGroupSpec.template: RAY_REDIS_ADDRESS is set which implicitly enables GCS fault tolerance, which is not supported",
        ),
        (
            with_options(head_env("RAY_REDIS_ADDRESS", "redis:6379")),
            "spec.headGroupSpec.template: RAY_REDIS_ADDRESS is set which implicitly enables GCS fault tolerance, which is not supported",
        ),
        (
            head_env("REDIS_USERNAME", "me"),
            "spec.headGroupSpec: cannot set redis username",
        ),
        (
            json!({"headGroupSpec": {"rayStartParams": {"redis-username": "me"}}}),
            "spec.headGroupSpec: cannot set redis username",
        ),
        (
            head_env("RAY_enable_autoscaler_v2", "1"),
            "spec.headGroupSpec.template: environment variable RAY_enable_autoscaler_v2 cannot be set to '1'",
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
fn all_groups_count_together_and_a_cluster_that_is_too_large_may_become_smaller() {
    let groups = |replicas: &[i32]| {
        let groups = replicas.iter().enumerate();
        let groups: Vec<Value> = groups
            .map(|(index, replicas)| {
                json!({"groupName": format!("g{index}"), "replicas": replicas, "template": template()})
            })
            .collect();
        cluster(json!({"workerGroupSpecs": groups}))
    };
    assert_eq!(wrong(&groups(&[50_000, 49_999])), [""; 0]);
    let too_many =
        "spec.workerGroupSpecs: must not create more than 100000 pods in total, including the head";
    assert_eq!(wrong(&groups(&[50_000, 50_000])), [too_many]);
    assert!(wrong(&groups(&[i32::MAX; 8])).contains(&too_many.to_owned()));
    let update = |old: &[i32], new: &[i32]| validate(Some(&groups(old)), &groups(new), false);
    assert_eq!(update(&[90_000, 50_000], &[80_000, 50_000]), []);
    assert_eq!(update(&[90_000, 5_000], &[90_000, 50_000]).len(), 1);

    let many = groups(&[0; 1_000]);
    assert_eq!(
        wrong(&many),
        ["spec.workerGroupSpecs: must not be more than 999 groups"]
    );
    let mut world = World::new(many);
    world.settle();
    assert!(world.jobset.is_none() && world.is_true("ReplicaFailure"));
}

/// A head with this variable in its container.
pub(super) fn head_env(name: &str, value: &str) -> Value {
    let container = json!({"name": "ray", "env": [{"name": name, "value": value}]});
    json!({"headGroupSpec": {"template": {"spec": {"containers": [container]}}}})
}

/// The same spec, with options of GCS fault tolerance.
fn with_options(mut spec: Value) -> Value {
    spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379"});
    spec
}

#[test]
fn redis_is_the_users_if_an_annotation_says_so_and_the_autoscaler_may_be_off() {
    let mut redis = cluster(head_env("RAY_REDIS_ADDRESS", "redis:6379"));
    redis.metadata.annotations = Some([("ray.io/ft-enabled".to_owned(), "true".to_owned())].into());
    assert_eq!(wrong(&redis), [""; 0]);
    assert_eq!(
        wrong(&cluster(head_env("RAY_enable_autoscaler_v2", "0"))),
        [""; 0]
    );
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

#[test]
fn what_a_jobs_cluster_lacks_is_named_by_the_jobs_field() {
    let gang = json!({"replicatedJobs": [{"name": "small", "minAvailable": 3}]});
    let job = jobs::rayjob(json!({"rayClusterSpec": {"gang": gang}}));
    let found = validation::job(&job);
    assert!(
        found[0]
            .field
            .starts_with("spec.rayClusterSpec.gang.replicatedJobs[0]"),
        "{found:?}"
    );
    let mut job = jobs::rayjob(json!({}));
    job.metadata.annotations = Some([("lockstep.dev/restart-grace".to_owned(), "soon".to_owned())].into());
    let found = validation::job(&job);
    assert!(found[0].field.starts_with("metadata.annotations"), "{found:?}");
}

#[test]
fn what_is_wrong_about_a_submission_is_named() {
    let cases = [
        (
            json!({"runtimeEnvYAML": "env_vars: 5"}),
            "spec.runtimeEnvYAML: failed to unmarshal RuntimeEnvYAML: env_vars: 5: env_vars must be a map",
        ),
        (
            json!({"entrypointResources": "[1]"}),
            "spec.entrypointResources: must be a JSON object",
        ),
        (
            json!({"submitterConfig": {"backoffLimit": -1}}),
            "spec.submitterConfig.backoffLimit: must be greater than or equal to 0",
        ),
    ];
    for (spec, expected) in cases {
        let found = validation::job(&jobs::rayjob(spec));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, [expected]);
    }
    let empty = jobs::rayjob(json!({"runtimeEnvYAML": "env_vars:"}));
    assert_eq!(validation::job(&empty), []);
}

#[test]
fn an_update_is_refused_for_what_it_makes_wrong() {
    let messages = |old: &RayCluster, new: &RayCluster| {
        let violations = validate(Some(old), new, false);
        violations.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let good = cluster(json!({}));
    let bad = cluster(json!({"enableInTreeAutoscaling": true}));
    assert_eq!(messages(&good, &bad).len(), 1);
    assert_eq!(messages(&bad, &good), [""; 0]);
    let suspended = cluster(json!({"enableInTreeAutoscaling": true, "suspend": true}));
    assert_eq!(messages(&bad, &suspended), [""; 0]);
    let worse = cluster(json!({"enableInTreeAutoscaling": true, "headGroupSpec": {"labels": {"a": "?"}}}));
    let found = messages(&bad, &worse);
    assert!(found.len() == 1 && found[0].contains("labels"), "{found:?}");
}

#[test]
fn another_controllers_objects_are_left_unchanged_and_not_taken_over() {
    let by = |manager: Value| cluster(json!({"managedBy": manager, "enableInTreeAutoscaling": true}));
    let (ours, other, nobodys) = (
        by(json!("lockstep.dev/ray-controller")),
        by(json!("ray.io/kuberay-operator")),
        by(json!(null)),
    );
    let wrong = |old: Option<&RayCluster>, new: &RayCluster, kuberay: bool| {
        let violations = validate(old, new, kuberay).into_iter();
        violations.map(|violation| violation.field).collect::<Vec<_>>()
    };
    const AUTOSCALING: &str = "spec.enableInTreeAutoscaling";
    assert_eq!(wrong(None, &ours, true), [AUTOSCALING]);
    assert_eq!(wrong(None, &nobodys, false), [AUTOSCALING]);
    assert_eq!(wrong(None, &nobodys, true), [""; 0]);
    assert_eq!(wrong(None, &other, false), [""; 0]);
    for (old, new) in [(&ours, &other), (&other, &ours), (&ours, &nobodys)] {
        assert_eq!(wrong(Some(old), new, true)[0], "spec.managedBy");
    }
    // It is given to this controller with all its faults.
    assert_eq!(wrong(Some(&nobodys), &ours, true), [AUTOSCALING]);
    assert_eq!(wrong(Some(&nobodys), &ours, false), [""; 0]);
    assert_eq!(wrong(Some(&other), &nobodys, true), [""; 0]);
    assert!(is_ours(Some(""), false) && !is_ours(Some(""), true));
}
