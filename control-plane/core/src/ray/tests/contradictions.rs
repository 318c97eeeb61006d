//! Contradictions in ignored fields.

use super::limits::head_env;
use super::*;
use crate::ray::validation;

/// The violations of a cluster with these annotations.
fn wrong(spec: Value, annotations: &[(&str, &str)]) -> Vec<String> {
    let mut cluster = cluster(spec);
    let annotations = annotations
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()));
    cluster.metadata.annotations = Some(annotations.collect());
    let violations = validation::cluster(&cluster);
    violations.iter().map(ToString::to_string).collect()
}

fn job_is_wrong(spec: Value) -> Vec<String> {
    let violations = validation::job(&jobs::rayjob(spec));
    violations.iter().map(ToString::to_string).collect()
}

fn assert_named(found: &[String], expected: &str) {
    assert!(
        found.iter().any(|message| message == expected),
        "{expected}: {found:#?}"
    );
}

#[test]
fn fault_tolerance_is_configured_in_one_place() {
    const FIELD: &str = "spec.gcsFaultToleranceOptions";
    let with = |mut spec: Value, options: Value| {
        spec["gcsFaultToleranceOptions"] = options;
        spec
    };
    let redis = || json!({"redisAddress": "redis:6379"});
    let plain = with(json!({}), redis());
    assert_eq!(wrong(plain.clone(), &[]), [""; 0]);
    for (spec, annotation, expected) in [
        (
            plain.clone(),
            Some(("ray.io/ft-enabled", "false")),
            "ray.io/ft-enabled annotation and GcsFaultToleranceOptions are both set. Please use only GcsFaultToleranceOptions to configure GCS \
             fault tolerance",
        ),
        (
            plain,
            Some(("ray.io/external-storage-namespace", "a")),
            "cannot set `ray.io/external-storage-namespace` annotation when GcsFaultToleranceOptions is enabled",
        ),
        (
            with(
                json!({"headGroupSpec": {"rayStartParams": {"redis-password": "x"}}}),
                redis(),
            ),
            None,
            "cannot set `redis-password` in rayStartParams when GcsFaultToleranceOptions is enabled",
        ),
        (
            with(head_env("REDIS_PASSWORD", "x"), redis()),
            None,
            "cannot set `REDIS_PASSWORD` env var in head Pod when GcsFaultToleranceOptions is enabled",
        ),
        (
            with(json!({}), json!({"storage": {"size": "1Gi"}})),
            None,
            "cannot set GcsFaultToleranceOptions.Storage when backend is 'redis' - it only applies to the 'rocksdb' backend",
        ),
        (
            with(
                json!({}),
                json!({"backend": "rocksdb", "redisPassword": {"value": "x"}}),
            ),
            None,
            "cannot set GcsFaultToleranceOptions.RedisPassword when backend is 'rocksdb'",
        ),
        (
            with(
                json!({}),
                json!({"backend": "rocksdb", "storage": {"claimName": "c", "size": "1Gi"}}),
            ),
            None,
            "GcsFaultToleranceOptions.Storage.ClaimName is mutually exclusive with size, storageClassName, and accessModes",
        ),
    ] {
        let annotations: Vec<_> = annotation.into_iter().collect();
        assert_named(&wrong(spec, &annotations), &format!("{FIELD}: {expected}"));
    }
    let embedded = json!({"backend": "rocksdb", "storage": {"claimName": "c", "subPath": "a"}});
    assert_eq!(wrong(with(json!({}), embedded), &[]), [""; 0]);
}

#[test]
fn tokens_need_a_ray_that_has_them() {
    let tokens = |version: Value, more: Value| {
        let mut options = json!({"mode": "token"});
        merge(&mut options, more);
        json!({"rayVersion": version, "authOptions": options})
    };
    let kubernetes = || json!({"enableK8sTokenAuth": true});
    for (spec, expected) in [
        (
            tokens(json!(null), json!({})),
            "authOptions.mode is 'token' but RayVersion was not specified. Ray version 2.52.0 or later is required",
        ),
        (
            tokens(json!("latest"), json!({})),
            "authOptions.mode is 'token' but RayVersion format is invalid: latest",
        ),
        (
            tokens(json!("2.51.9"), json!({})),
            "authOptions.mode is 'token' but minimum Ray version is 2.52.0, got 2.51.9",
        ),
        (
            tokens(json!("2.54.0"), kubernetes()),
            "authOptions.enableK8sTokenAuth is enabled but minimum Ray version is 2.55.0, got 2.54.0",
        ),
        (
            tokens(
                json!("2.55.0"),
                json!({"enableK8sTokenAuth": true, "secretName": "s"}),
            ),
            "authOptions.enableK8sTokenAuth is enabled and authOptions.secretName is also set",
        ),
        (
            json!({"authOptions": {"enableK8sTokenAuth": true}}),
            "authOptions.enableK8sTokenAuth is enabled but authOptions.mode not set to 'token'",
        ),
    ] {
        assert_named(&wrong(spec, &[]), &format!("spec.authOptions: {expected}"));
    }
    for version in ["2.52.0", "2.52", "v2.53.1-rc1", "3.0.0"] {
        assert_eq!(
            wrong(tokens(json!(version), json!({})), &[]),
            [""; 0],
            "{version}"
        );
    }
    assert_eq!(wrong(tokens(json!("2.55.0"), kubernetes()), &[]), [""; 0]);
    assert_named(
        &job_is_wrong(json!({"rayClusterSpec": tokens(json!("2.55.0"), kubernetes())})),
        "spec.rayClusterSpec.authOptions: K8s token auth mode is currently not supported for RayJob",
    );
}

#[test]
fn what_only_the_autoscaler_reads_is_refused_without_it() {
    let group = |more: Value| {
        let mut group = json!({"groupName": "g", "template": template()});
        merge(&mut group, more);
        json!({"workerGroupSpecs": [group]})
    };
    for (spec, expected) in [
        (
            group(json!({"idleTimeoutSeconds": 60})),
            "spec.workerGroupSpecs[0].idleTimeoutSeconds: worker group g: idleTimeoutSeconds is set, but autoscaler v2 is not enabled",
        ),
        (
            group(json!({"idleTimeoutSeconds": -1})),
            "spec.workerGroupSpecs[0].idleTimeoutSeconds: worker group g: idleTimeoutSeconds must be non-negative, got -1",
        ),
        (
            group(json!({"priority": 3})),
            "spec.workerGroupSpecs[0].priority: worker group g: priority is set to 3, but autoscaler v2 is not enabled. Priority is only \
             supported with autoscaler v2 enabled",
        ),
        (
            json!({"autoscalerOptions": {"idleTimeoutSeconds": -5}}),
            "spec.autoscalerOptions.idleTimeoutSeconds: autoscalerOptions.idleTimeoutSeconds must be non-negative, got -5",
        ),
        (
            json!({"autoscalerOptions": {"env": [{"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "x"}]}}),
            "spec.autoscalerOptions.env: autoscalerOptions.env must not contain KUBERAY_GEN_AUTOSCALER_START_CMD",
        ),
    ] {
        assert_named(&wrong(spec, &[]), expected);
    }
    assert_eq!(
        wrong(
            group(json!({"priority": 0, "scaleStrategy": {"workersToDelete": ["a"]}})),
            &[]
        ),
        [""; 0]
    );
}

#[test]
fn upgrades_are_of_two_kinds_and_not_of_a_jobs_cluster() {
    let kind = |kind: &str| json!({"upgradeStrategy": {"type": kind}});
    assert_eq!(wrong(kind("Recreate"), &[]), [""; 0]);
    assert_named(
        &wrong(kind("Rolling"), &[]),
        "spec.upgradeStrategy.type: Spec.UpgradeStrategy.Type value Rolling is invalid, valid options are Recreate or None",
    );
    assert_named(
        &job_is_wrong(json!({"rayClusterSpec": kind("None")})),
        "spec.rayClusterSpec.upgradeStrategy: upgradeStrategy cannot be set when RayCluster is created by RayJob",
    );
}

#[test]
fn deletion_strategies_are_whole_and_in_order() {
    let rule = |policy: &str, condition: Value| json!({"policy": policy, "condition": condition});
    let failed =
        |policy: &str, seconds: i64| rule(policy, json!({"jobStatus": "FAILED", "ttlSeconds": seconds}));
    let both = |policy: &str| json!({"onSuccess": {"policy": policy}, "onFailure": {"policy": "DeleteSelf"}});
    for (strategy, shuts_down, expected) in [
        (
            json!({}),
            false,
            "DeletionStrategy requires either BOTH onSuccess and onFailure, OR the deletionRules field (cannot be empty)",
        ),
        (
            json!({"onSuccess": {"policy": "DeleteSelf"}}),
            false,
            "both DeletionStrategy.OnSuccess and DeletionStrategy.OnFailure must be set when using the legacy deletion policy fields of \
             DeletionStrategy",
        ),
        (
            json!({"onSuccess": {}, "onFailure": {"policy": "DeleteSelf"}}),
            false,
            "the DeletionPolicyType field of DeletionStrategy.OnSuccess cannot be unset when DeletionStrategy is enabled",
        ),
        (
            both("DeleteNone"),
            true,
            "shutdownAfterJobFinshes is set to 'true' while deletion policy is 'DeleteNone'",
        ),
        (
            json!({"onSuccess": {"policy": "DeleteSelf"}, "deletionRules": [failed("DeleteSelf", 1)]}),
            false,
            "Cannot use both legacy onSuccess/onFailure fields and deletionRules simultaneously",
        ),
        (
            json!({"deletionRules": [failed("DeleteSelf", 1)]}),
            true,
            "spec.shutdownAfterJobFinishes and spec.deletionStrategy.deletionRules are mutually exclusive",
        ),
        (
            json!({"deletionRules": [rule("DeleteSelf", json!({"ttlSeconds": 1}))]}),
            false,
            "deletionRules[0]: exactly one of JobStatus and JobDeploymentStatus must be set",
        ),
        (
            json!({"deletionRules": [rule("DeleteSelf", json!({"jobStatus": "FAILED", "jobDeploymentStatus": "Failed"}))]}),
            false,
            "deletionRules[0]: cannot set both JobStatus and JobDeploymentStatus at the same time",
        ),
        (
            json!({"deletionRules": [failed("DeleteSelf", -1)]}),
            false,
            "deletionRules[0]: TTLSeconds must be non-negative",
        ),
        (
            json!({"deletionRules": [failed("DeleteSelf", 1), failed("DeleteSelf", 2)]}),
            false,
            "deletionRules[1]: duplicate rule for DeletionPolicyType 'DeleteSelf' and JobStatus 'FAILED'",
        ),
        (
            json!({"deletionRules": [failed("DeleteCluster", 5), failed("DeleteWorkers", 9)]}),
            false,
            "for JobStatus 'FAILED': DeleteCluster TTL (5) must be >= DeleteWorkers TTL (9)",
        ),
    ] {
        let spec = json!({"deletionStrategy": strategy, "shutdownAfterJobFinishes": shuts_down});
        assert_named(&job_is_wrong(spec), &format!("spec.deletionStrategy: {expected}"));
    }
    let rules = json!({"deletionRules": [failed("DeleteSelf", 9), failed("DeleteWorkers", 5), failed("DeleteCluster", 5)]});
    for strategy in [both("DeleteCluster"), rules] {
        assert_eq!(job_is_wrong(json!({"deletionStrategy": strategy})), [""; 0]);
    }
}

#[test]
fn retries_need_a_cluster_and_a_submission_of_their_own() {
    for (spec, mode) in [
        (
            json!({"clusterSelector": {"ray.io/cluster": "c"}}),
            "ClusterSelector mode",
        ),
        (json!({"submissionMode": "InteractiveMode"}), "InteractiveMode"),
    ] {
        let mut retried = spec.clone();
        retried["backoffLimit"] = json!(1);
        let expected = format!("spec.backoffLimit: BackoffLimit is incompatible with {mode}");
        assert_named(&job_is_wrong(retried), &expected);
        assert_eq!(job_is_wrong(spec).len(), 1);
    }
}

#[test]
fn fields_that_ask_for_protection_are_refused_when_applied_and_reported_if_stored() {
    use crate::ray::admission;
    let refused = |spec: &Value| -> Vec<String> {
        let of_cluster = admission::validate(None, &cluster(spec.clone()), false);
        let of_job = admission::validate(None, &jobs::rayjob(json!({"rayClusterSpec": spec})), false);
        assert_eq!(of_cluster.len(), of_job.len());
        let fields = of_cluster.into_iter().map(|found| found.field).collect();
        for found in of_job {
            assert!(found.field.starts_with("spec.rayClusterSpec."), "{found}");
        }
        fields
    };
    for (field, value, asks) in [
        ("authOptions", json!({"mode": "token"}), true),
        ("authOptions", json!({}), true),
        ("authOptions", json!({"mode": "disabled"}), false),
        ("networkPolicy", json!({"mode": "DenyAll"}), true),
        ("networkPolicy", json!({}), true),
        ("tlsOptions", json!({"enabled": true}), true),
        ("tlsOptions", json!({"enabled": false}), false),
        ("tlsOptions", Value::Null, false),
    ] {
        let mut spec = json!({"rayVersion": "2.55.0"});
        spec[field] = value.clone();
        let expected: Vec<String> = asks.then(|| format!("spec.{field}")).into_iter().collect();
        assert_eq!(refused(&spec), expected, "{field} {value}");
        if asks {
            assert!(validation::cluster(&cluster(spec.clone())).is_empty());
            assert!(
                cluster(spec)
                    .spec
                    .unsupported("spec")
                    .contains(&format!("spec.{field}"))
            );
        }
    }
    // An object that was stored before can still be labelled, suspended and changed in other
    // fields.
    let old = cluster(json!({"networkPolicy": {}}));
    let new = cluster(json!({"networkPolicy": {}, "suspend": true}));
    assert!(admission::validate(Some(&old), &new, false).is_empty());
}

#[test]
fn quantities_that_are_none_are_refused_by_their_path() {
    let bad = json!({"spec": {"containers": [{"name": "ray", "image": "i", "resources": {"limits": {"cpu": "lots"}}}]}});
    let found = job_is_wrong(json!({
        "rayClusterSpec": {"headGroupSpec": {"template": bad}},
        "submitterPodTemplate": bad,
    }));
    for path in ["rayClusterSpec.headGroupSpec.template", "submitterPodTemplate"] {
        let path = format!("spec.{path}.spec.containers[0].resources.limits.cpu");
        assert!(
            found.iter().any(|message| message.starts_with(&path)),
            "{found:?}"
        );
    }
}
