//! RayJobs that are invalid, or belong to another controller.

use lockstep_api::ray::RayClusterStatus;

use super::*;

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let cases = [
        (
            json!({"submissionMode": "SidecarMode"}),
            "spec.submissionMode: SidecarMode is not supported",
        ),
        (
            json!({"submissionMode": "InteractiveMode"}),
            "spec.submissionMode: InteractiveMode is not supported",
        ),
        (
            json!({"clusterSelector": {"ray.io/cluster": "c"}}),
            "spec.clusterSelector: is not supported",
        ),
        (
            json!({"rayClusterSpec": null}),
            "spec.rayClusterSpec: one of RayClusterSpec or ClusterSelector must be set",
        ),
        (
            json!({"rayClusterSpec": {"enableInTreeAutoscaling": true}}),
            "spec.rayClusterSpec.enableInTreeAutoscaling: is not supported",
        ),
        (
            json!({"suspend": true}),
            "spec.suspend: a RayJob with shutdownAfterJobFinishes set to false",
        ),
        (
            json!({"ttlSecondsAfterFinished": 5}),
            "spec.ttlSecondsAfterFinished: a RayJob with",
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: activeDeadlineSeconds must be a positive",
        ),
        (
            json!({"backoffLimit": -1}),
            "spec.backoffLimit: backoffLimit must be a positive integer",
        ),
        (
            json!({"runtimeEnvYAML": "a: [b"}),
            "spec.runtimeEnvYAML: failed to unmarshal RuntimeEnvYAML: ",
        ),
        (
            json!({"runtimeEnvYAML": "just words"}),
            "spec.runtimeEnvYAML: failed to unmarshal RuntimeEnvYAML: ",
        ),
        (
            json!({"jobId": "a/../../nodes?x"}),
            "spec.jobId: must consist of at most 253 letters, digits, '-', '_' and '.'",
        ),
        (json!({"jobId": ".."}), "spec.jobId: must consist of"),
        (
            json!({"entrypointResources": "{"}),
            "spec.entrypointResources: must be JSON",
        ),
    ];
    for (spec, expected) in cases {
        let mut stage = Stage::new(spec.clone());
        stage.step();
        let told = &stage.step().events[0];
        assert_eq!(
            (told.reason.as_str(), &told.message),
            ("InvalidRayJobSpec", &stage.status().message)
        );
        stage.settle();
        assert_eq!(stage.phase(), Phase::ValidationFailed, "{spec}");
        assert!(stage.status().message.starts_with("The RayJob spec is invalid: "));
        assert!(
            stage.status().message.contains(expected),
            "{spec}: {}",
            stage.status().message
        );
        assert!(stage.clusters.is_empty());
    }
    let mut long = Stage::new(json!({}));
    long.job.metadata.name = Some("j".repeat(48));
    long.settle();
    assert!(
        long.status()
            .message
            .contains("RayJob name should be no more than 47 characters")
    );
    assert!(
        long.status()
            .message
            .starts_with("The RayJob metadata is invalid: ")
    );
}

#[test]
fn a_spec_that_was_put_right_is_looked_at_again() {
    let mut stage = Stage::new(json!({"submissionMode": "SidecarMode"}));
    stage.settle();
    stage.job.spec.submission_mode = None;
    stage.job.metadata.generation = Some(2);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Initializing);
}

/// A strategy that KubeRay accepts.
fn strategy() -> Value {
    json!({"onSuccess": {"policy": "DeleteSelf"}, "onFailure": {"policy": "DeleteWorkers"}})
}

#[test]
fn ignored_fields_are_named() {
    let mut stage = Stage::new(json!({"deletionStrategy": strategy()}));
    stage.step();
    let told = &stage.step().events[0];
    assert_eq!(
        (told.reason.as_str(), told.message.as_str()),
        (
            "UnsupportedFields",
            "not supported, and ignored: spec.deletionStrategy"
        )
    );
    stage.settle();
    assert_eq!(
        stage.status().conditions[0].message,
        "not supported, and ignored: spec.deletionStrategy"
    );
    assert_eq!(stage.phase(), Phase::Initializing);
    let mut stage = Stage::new(json!({"rayClusterSpec": {"networkPolicy": {}}}));
    stage.job.metadata.annotations = Some([("ray.io/ft-enabled".to_owned(), "true".to_owned())].into());
    stage.settle();
    assert_eq!(
        stage.status().conditions[0].message,
        "not supported, and ignored: spec.rayClusterSpec.networkPolicy, metadata.annotations[ray.io/ft-enabled]"
    );
}

#[test]
fn a_field_that_comes_while_the_job_runs_is_named_once() {
    let mut stage = running(json!({}));
    let told = |plan: &JobPlan| {
        let events = plan.events.iter();
        let named = events.filter(|event| event.reason == "UnsupportedFields");
        named.map(|event| event.message.clone()).collect::<Vec<_>>()
    };
    let changed = |stage: &mut Stage, strategy: Value| {
        let mut spec = serde_json::to_value(&stage.job.spec).unwrap();
        let fields = spec.as_object_mut().unwrap();
        match strategy {
            Value::Null => fields.remove("deletionStrategy"),
            strategy => fields.insert("deletionStrategy".to_owned(), strategy),
        };
        stage.job.spec = serde_json::from_value(spec).unwrap();
        *stage.job.metadata.generation.get_or_insert(1) += 1;
        told(&stage.step())
    };
    let strategy = strategy();
    let message = "not supported, and ignored: spec.deletionStrategy";
    assert_eq!(changed(&mut stage, strategy.clone()), [message]);
    stage.settle();
    assert_eq!(
        (
            stage.phase(),
            stage.status().conditions.last().unwrap().message.as_str()
        ),
        (Phase::Running, message)
    );
    assert!(
        changed(&mut stage, strategy).is_empty(),
        "that was reported before"
    );
    assert!(changed(&mut stage, Value::Null).is_empty());
    assert!(stage.settle().status().conditions.is_empty());
}

#[test]
fn jobs_of_other_controllers_are_left_unchanged() {
    for (manager, kuberay) in [(Some("kueue.x-k8s.io/multikueue"), false), (None, true)] {
        let mut stage = Stage::new(json!({"managedBy": manager}));
        stage.kuberay = kuberay;
        stage.settle();
        assert!(
            stage.plan().notice.is_some()
                && stage.job.status.is_none()
                && stage.job.metadata.finalizers.is_none()
        );
    }
}

/// A job that KubeRay's controller has begun. That controller writes the same status and the same
/// finalizer.
fn kuberays(phase: Phase, managed_by: Value) -> Stage {
    let mut stage =
        Stage::new(json!({"jobId": "stated", "shutdownAfterJobFinishes": true, "managedBy": managed_by}));
    stage.job.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    stage.job.status = Some(RayJobStatus {
        job_deployment_status: Some(phase),
        job_id: "stated".to_owned(),
        ray_cluster_name: "rj-x7k2p".to_owned(),
        failed: i32::MAX,
        ..RayJobStatus::default()
    });
    stage
}

const PHASES: [Phase; 4] = [
    Phase::Initializing,
    Phase::Running,
    Phase::Complete,
    Phase::Failed,
];

#[test]
fn a_job_that_kuberay_has_begun_is_left_to_it() {
    // With and without a running controller of KubeRay.
    for (phase, kuberay) in PHASES
        .into_iter()
        .flat_map(|phase| [(phase.clone(), true), (phase, false)])
    {
        let mut stage = kuberays(phase, json!(null));
        stage.kuberay = kuberay;
        let left = JobPlan {
            notice: stage.plan().notice,
            ..JobPlan::default()
        };
        assert!(left.notice.is_some());
        assert_eq!(stage.step(), left);
    }
}

#[test]
fn the_finalizer_of_a_job_that_kuberay_has_begun_is_removed_if_kuberay_is_gone() {
    for kuberay in [true, false] {
        let mut stage = kuberays(Phase::Complete, json!(null));
        stage.kuberay = kuberay;
        stage.job.metadata.deletion_timestamp = Some(Time(at(0)));
        stage.step();
        assert_eq!(stage.job.metadata.finalizers.is_some(), kuberay);
    }
}

#[test]
fn a_job_that_kuberay_has_begun_and_that_is_given_to_this_controller_is_followed() {
    let stage = kuberays(Phase::Initializing, json!("lockstep.dev/ray-controller"));
    let plan = stage.plan();
    assert!(plan.notice.is_none() && plan.create_cluster.is_some());
}

#[test]
fn the_finalizer_of_another_controller_is_left_to_it() {
    let mut stage = Stage::new(json!({"managedBy": "ray.io/kuberay-operator"}));
    stage.job.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    stage.job.metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(stage.plan(), JobPlan::default());
}

#[test]
fn a_job_that_was_begun_here_stays_here_when_kuberay_comes() {
    let mut stage = Stage::new(json!({"backoffLimit": 1, "retryPolicy": "NewCluster"}));
    stage.settle();
    assert_eq!(stage.clusters.len(), 1);
    stage.kuberay = true;
    assert!(stage.plan().notice.is_none());
    // With the cluster of the second attempt too.
    stage
        .cluster
        .as_mut()
        .unwrap()
        .status
        .get_or_insert_default()
        .state = Some(RayClusterState::failed);
    stage.settle();
    assert_eq!(stage.clusters.len(), 2);
    assert!(stage.plan().notice.is_none());
    stage.job.metadata.deletion_timestamp = Some(Time(at(60)));
    assert!(stage.plan().remove_finalizer);
}

#[test]
fn the_jobs_own_id_is_used_if_it_is_valid_in_a_path() {
    let mut stage = Stage::new(json!({"jobId": "Team_a.train-1"}));
    stage.settle();
    assert_eq!(stage.status().job_id, "Team_a.train-1");
}

#[test]
fn a_job_that_was_tried_very_often_is_still_known_as_begun() {
    // KubeRay runs, and the job names no manager: a job that has not begun would be left to
    // KubeRay.
    for attempts in [1000, 1001, 5000, i32::MAX] {
        let mut stage = Stage::new(json!({"backoffLimit": i32::MAX, "retryPolicy": "NewCluster"}));
        stage.settle();
        let status = stage.job.status.as_mut().unwrap();
        status.num_retries = attempts - 1;
        status.failed = attempts - 1;
        stage.cluster.as_mut().unwrap().status = Some(failed());
        stage.settle();
        assert_eq!(stage.status().num_retries, attempts);
        stage.kuberay = true;
        stage.cluster = None;
        assert_eq!(stage.plan().notice, None, "{attempts}");
        stage.settle();
        assert_eq!(stage.clusters.len(), 3, "{attempts}");
    }
}

/// Of a cluster that has failed.
fn failed() -> RayClusterStatus {
    RayClusterStatus {
        state: Some(RayClusterState::failed),
        ..RayClusterStatus::default()
    }
}

#[test]
fn why_the_cluster_does_not_come_up_is_shown_until_it_does() {
    let mut stage = Stage::new(json!({}));
    stage.settle();
    let failure = |status: &str, message: &str| {
        let condition = json!([{
            "type": conditions::REPLICA_FAILURE, "status": status, "reason": "FailedCreateHeadPod", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        serde_json::from_value(condition).unwrap()
    };
    let said = "JobSet rc cannot be created: exceeded quota";
    stage.cluster.as_mut().unwrap().status = Some(RayClusterStatus {
        conditions: failure("False", said),
        ..RayClusterStatus::default()
    });
    stage.settle();
    assert_eq!(stage.status().message, "", "it has not lasted");
    let status = stage.cluster.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions = failure("True", said);
    let events = stage.step().events;
    let name = stage.status().ray_cluster_name.clone();
    let message = format!("waiting until RayCluster {name} comes up: {said}");
    assert_eq!(stage.status().message, message);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(
        (events[0].reason.as_str(), &events[0].message),
        (conditions::REPLICA_FAILURE, &message)
    );
    assert!(stage.step().events.is_empty(), "once");
    stage.head_is_ready().settle();
    assert_eq!(
        (stage.phase(), stage.status().message.as_str()),
        (Phase::Initializing, "")
    );
}

#[test]
fn why_a_cluster_that_was_up_does_not_come_up_is_reported_once() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready();
    stage.ray = Ray::Unreachable;
    stage.settle();
    assert!(stage.status().unreachable_since.is_some());
    let status = stage.cluster.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions = serde_json::from_value(json!([{
        "type": conditions::REPLICA_FAILURE, "status": "True", "reason": "FailedCreateHeadPod", "message": "exceeded quota",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]))
    .unwrap();
    let events = stage.step().events;
    assert_eq!(events.len(), 1, "{events:?}");
    let shown = stage.status().clone();
    assert!(shown.unreachable_since.is_none());
    assert_eq!(shown.message, events[0].message);
    assert!(stage.step().events.is_empty(), "once");
    assert_eq!(*stage.status(), shown);
}

#[test]
fn what_the_api_server_refuses_is_shown_until_it_is_there() {
    let mut stage = Stage::new(json!({}));
    until_rest(20, || {
        let creates = stage.plan().create_cluster.is_some();
        if !creates {
            stage.step();
        }
        creates
    });
    let shown = refused(&stage.observed(), "RayCluster rj-x", "exceeded quota");
    assert_eq!((&shown.create_cluster, &shown.events), (&None, &vec![]));
    stage.job.status = shown.status.map(|status| *status);
    assert_eq!(
        stage.status().message,
        "waiting until RayCluster rj-x can be created: exceeded quota"
    );
    assert_eq!(stage.phase(), Phase::Initializing);
    let again = refused(&stage.observed(), "RayCluster rj-x", "exceeded quota");
    assert_eq!(again.status, None, "it is no news");
    stage.settle();
    assert!(stage.cluster.is_some());
    assert_eq!(stage.status().message, "");
}

#[test]
fn a_submitter_that_was_refused_while_the_job_runs_is_not_waited_for_once_it_is_there() {
    for unreachable in [false, true] {
        let mut stage = submitted(json!({}));
        stage.submitter = None;
        if unreachable {
            stage.ray = Ray::Unreachable;
        }
        let creates = stage.plan().create_submitter;
        assert!(creates.is_some(), "unreachable: {unreachable}");
        let shown = refused(&stage.observed(), "Job rj", "exceeded quota");
        stage.job.status = shown.status.map(|status| *status);
        assert_eq!(
            stage.status().message,
            "waiting until Job rj can be created: exceeded quota"
        );
        stage.settle();
        assert!(stage.submitter.is_some());
        assert_eq!(
            (stage.phase(), stage.status().message.as_str()),
            (Phase::Running, "")
        );
    }
}

#[test]
fn variables_that_ray_never_takes_are_refused_by_name() {
    for (variables, expected) in [
        (
            "{A: 1}",
            "env_vars.A: must be a string, Ray accepts nothing else: quote it: write \"1\" and not 1",
        ),
        (
            "{B: b, A: true}",
            "env_vars.A: must be a string, Ray accepts nothing else: quote it: write \"true\" and not true",
        ),
        (
            "{A: 1.5}",
            "env_vars.A: must be a string, Ray accepts nothing else: quote it: write \"1.5\" and not 1.5",
        ),
        (
            "{A: }",
            "env_vars.A: must be a string, Ray accepts nothing else: it has no value: write \"\" or omit it",
        ),
        (
            "{A: [a]}",
            "env_vars.A: must be a string, Ray accepts nothing else: it is a list or a map",
        ),
        ("{<<: {A: b}}", "merge keys"),
    ] {
        let mut stage = Stage::new(json!({"runtimeEnvYAML": format!("env_vars: {variables}\n")}));
        stage.settle();
        let status = stage.status();
        assert_eq!(stage.phase(), Phase::ValidationFailed);
        assert!(
            status.message.contains("spec.runtimeEnvYAML: ") && status.message.contains(expected),
            "{}",
            status.message
        );
    }
    // A job that has begun keeps its values, and Ray reports the fault.
    let mut stage = Stage::new(json!({"submissionMode": "HTTPMode"}));
    stage.settle().head_is_ready().settle();
    stage.job.spec.runtime_env_yaml = "env_vars: {A: 1}\npip: [x]\n".to_owned();
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: None,
    };
    stage.step();
    let body = stage.plan().submit.unwrap();
    assert_eq!(body["runtime_env"]["pip"], json!(["x"]));
    assert_eq!(body["runtime_env"]["env_vars"]["A"], json!(1));
}
