//! Warnings for users who create or change something that is accepted.

use lockstep_api::ray::RayJobStatus;

use super::jobs::rayjob;
use super::*;
use crate::ray::admission::RayResource;

#[test]
fn replicas_that_their_limits_do_not_let_be_are_named() {
    let group = |replicas: i32| {
        let mut stated = cluster(json!({}));
        let group = &mut stated.spec.worker_group_specs[0];
        (group.replicas, group.min_replicas, group.max_replicas) = (Some(replicas), Some(2), Some(5));
        stated
    };
    let path = "spec.workerGroupSpecs[0].replicas";
    for (replicas, expected) in [
        (1, Some(format!("{path}: 1, but minReplicas is 2: taken as 2"))),
        (2, None),
        (5, None),
        (9, Some(format!("{path}: 9, but maxReplicas is 5: taken as 5"))),
    ] {
        let stated = group(replicas);
        let expected: Vec<String> = expected.into_iter().collect();
        assert_eq!(stated.warnings(None), expected, "{replicas}");
        let mut job = rayjob(json!({}));
        job.spec.ray_cluster_spec = Some(stated.spec);
        let below = |said: &String| said.replacen("spec.", "spec.rayClusterSpec.", 1);
        let expected: Vec<String> = expected.iter().map(below).collect();
        assert_eq!(job.warnings(None), expected, "{replicas}");
    }
}

#[test]
fn changes_of_a_started_job_that_take_effect_later_or_never_are_reported() {
    let cluster = "spec.rayClusterSpec: takes effect with the job's next cluster";
    let attempt = "spec.entrypoint, spec.metadata: takes effect with the next attempt";
    let never = "has no effect: the job has ended";
    let (cluster_never, attempt_never) = (
        format!("spec.rayClusterSpec: {never}"),
        format!("spec.entrypoint, spec.metadata: {never}"),
    );
    for (phase, expected) in [
        (None, vec![]),
        (Some("Suspended"), vec![]),
        (Some("Initializing"), vec![cluster]),
        (Some("Retrying"), vec![cluster]),
        (Some("Running"), vec![cluster, attempt]),
        (Some("Complete"), vec![&*cluster_never, &*attempt_never]),
    ] {
        let mut old = rayjob(json!({}));
        old.status = phase.map(|phase| RayJobStatus {
            job_deployment_status: Some(serde_json::from_value(json!(phase)).unwrap()),
            ..RayJobStatus::default()
        });
        let mut new = old.clone();
        new.spec.ttl_seconds_after_finished = Some(7);
        assert!(new.warnings(Some(&old)).is_empty(), "{phase:?}");
        new.spec.entrypoint = "python other.py".to_owned();
        new.spec.metadata.insert("a".to_owned(), "b".to_owned());
        let spec = new.spec.ray_cluster_spec.as_mut().unwrap();
        spec.ray_version = Some("9.9".to_owned());
        assert_eq!(new.warnings(Some(&old)), expected, "{phase:?}");
        assert!(new.warnings(None).is_empty());
    }
}

#[test]
fn a_misspelled_field_is_named_wherever_it_stands() {
    use crate::ray::admission::unknown_fields;
    let found = unknown_fields(&json!({
        "backofLimit": 3,
        "submitterPodTemplate": {"spec": {"containers": [{"name": "s", "imge": "i"}]}},
        "rayClusterSpec": {"headGroupSpec": {"template": {
            "metadata": {"labels": {"anything": "goes"}},
            "spec": {
                "nodeSelecter": {"disktype": "ssd"},
                "nodeSelector": {"any": "label"},
                "restartPolicy": null,
                "containers": [{"name": "ray", "imagePullPolice": "Never", "resources": {"limits": {"gpus": "1"}}}],
            },
        }}},
    }));
    assert_eq!(
        found,
        [
            "unknown field \"spec.rayClusterSpec.headGroupSpec.template.spec.containers[0].imagePullPolice\": ignored",
            "unknown field \"spec.rayClusterSpec.headGroupSpec.template.spec.nodeSelecter\": ignored",
            "unknown field \"spec.submitterPodTemplate.spec.containers[0].imge\": ignored",
        ]
    );
    // Long names, and many below them: few are named, and cut.
    let many: serde_json::Map<String, Value> =
        (0..50_000).map(|field| (format!("a{field}"), json!(1))).collect();
    let long = "k".repeat(700_000);
    let found = unknown_fields(&json!({long: {"template": many}}));
    assert_eq!(found.len(), 20);
    assert!(found.iter().all(|said| said.len() < 2048), "{}", found[0].len());
    let warned = RayResource::warnings(&rayjob(json!({"backofLimit": 3})), None);
    assert_eq!(warned, ["spec.backofLimit: not supported, and ignored"]);
}
