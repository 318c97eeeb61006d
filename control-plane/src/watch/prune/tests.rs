use k8s_openapi::api::batch::v1::JobStatus;
use k8s_openapi::api::core::v1::{Container, PodSchedulingGate, Toleration};
use std::collections::BTreeMap;

use super::*;

fn map(keys: &[&str]) -> Option<BTreeMap<String, String>> {
    Some(
        keys.iter()
            .map(|key| ((*key).to_owned(), String::new()))
            .collect(),
    )
}

fn keys(map: Option<&BTreeMap<String, String>>) -> Vec<&str> {
    map.unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_jobset_loses_nothing_but_bookkeeping() {
    let mut object = JobSet::default();
    object.metadata.managed_fields = Some(Vec::new());
    object.metadata.annotations = map(&["note", LAST_APPLIED]);
    jobset(&mut object);
    assert_eq!(keys(object.metadata.annotations.as_ref()), ["note"]);
    assert_eq!(object.metadata.managed_fields, None);
}

#[test]
fn of_a_job_what_is_decided_on_is_kept() {
    let container = Container {
        name: "worker".to_owned(),
        ..Container::default()
    };
    let toleration = Toleration {
        key: Some("t".to_owned()),
        ..Toleration::default()
    };
    let gate = PodSchedulingGate { name: "g".to_owned() };
    let mut object = Job {
        metadata: ObjectMeta {
            name: Some("j".to_owned()),
            uid: Some("u".to_owned()),
            labels: map(&[
                "app",
                labels::JOBSET_NAME,
                labels::JOB_KEY,
                labels::RESTART_ATTEMPT,
            ]),
            annotations: map(&["note"]),
            managed_fields: Some(Vec::new()),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            parallelism: Some(2),
            completions: Some(3),
            suspend: Some(true),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta::default()),
                spec: Some(PodSpec {
                    containers: vec![container],
                    tolerations: Some(vec![toleration.clone()]),
                    scheduling_gates: Some(vec![gate.clone()]),
                    ..PodSpec::default()
                }),
            },
            ..JobSpec::default()
        }),
        status: Some(JobStatus {
            ready: Some(1),
            ..JobStatus::default()
        }),
    };
    job(&mut object);
    let meta = &object.metadata;
    assert_eq!(
        (meta.name.as_deref(), meta.uid.as_deref()),
        (Some("j"), Some("u"))
    );
    assert_eq!(
        keys(meta.labels.as_ref()),
        [labels::JOBSET_NAME, labels::RESTART_ATTEMPT]
    );
    assert_eq!((&meta.annotations, &meta.managed_fields), (&None, &None));
    let spec = object.spec.unwrap();
    assert_eq!(
        (spec.parallelism, spec.completions, spec.suspend),
        (Some(2), Some(3), Some(true))
    );
    let pod = spec.template.spec.unwrap();
    assert_eq!(
        (pod.tolerations, pod.scheduling_gates),
        (Some(vec![toleration]), Some(vec![gate]))
    );
    assert_eq!((spec.template.metadata, pod.containers), (None, Vec::new()));
    assert_eq!(object.status.unwrap().ready, Some(1));
}
