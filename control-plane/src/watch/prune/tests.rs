use k8s_openapi::api::core::v1::{ContainerStatus, EnvVar};

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
fn of_a_pod_only_what_is_read_is_kept() {
    let mut object = Pod::default();
    object.metadata.uid = Some("u".to_owned());
    object.metadata.managed_fields = Some(Vec::new());
    object.metadata.labels = map(&["app", labels::BATCH_JOB_NAME, labels::JOBSET_NAME]);
    object.metadata.annotations = map(&["note", labels::JOBSET_NAME, annotations::SUPERVISE]);
    let env = EnvVar {
        name: "E".to_owned(),
        ..EnvVar::default()
    };
    object.spec = Some(PodSpec {
        node_name: Some("n".to_owned()),
        host_network: Some(true),
        containers: vec![Container {
            env: Some(vec![env]),
            ..named("worker".to_owned())
        }],
        ..PodSpec::default()
    });
    object.status = Some(PodStatus {
        phase: Some("Running".to_owned()),
        pod_ip: Some("10.0.0.1".to_owned()),
        container_statuses: Some(vec![ContainerStatus {
            image: "i".to_owned(),
            ..ContainerStatus::default()
        }]),
        ..PodStatus::default()
    });
    pod(&mut object);
    assert_eq!(
        (object.metadata.uid.as_deref(), &object.metadata.managed_fields),
        (Some("u"), &None)
    );
    assert_eq!(
        keys(object.metadata.labels.as_ref()),
        [labels::BATCH_JOB_NAME, labels::JOBSET_NAME]
    );
    assert_eq!(
        keys(object.metadata.annotations.as_ref()),
        [annotations::SUPERVISE]
    );
    let spec = object.spec.unwrap();
    assert_eq!((spec.node_name.as_deref(), spec.host_network), (Some("n"), None));
    assert_eq!(spec.containers, [named("worker".to_owned())]);
    let status = object.status.unwrap();
    assert_eq!((status.phase.as_deref(), status.pod_ip), (Some("Running"), None));
    assert_eq!(status.container_statuses.unwrap(), [ContainerStatus::default()]);
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
