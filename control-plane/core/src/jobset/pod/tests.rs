use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

use super::*;

fn pod(phase: &str, labels: &[(&str, &str)]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("js-w-0-1-x".to_owned());
    pod.metadata.uid = Some("uid".to_owned());
    pod.metadata.labels = Some(
        labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    );
    pod.spec = Some(PodSpec {
        node_name: Some("n".to_owned()),
        ..PodSpec::default()
    });
    pod.status = Some(PodStatus {
        phase: Some(phase.to_owned()),
        ..PodStatus::default()
    });
    pod
}

#[test]
fn a_summary_has_the_owner_the_node_and_the_outcome_of_a_pod() {
    let labels = [
        (labels::JOBSET_UID, "js"),
        (labels::RESTART_ATTEMPT, "2"),
        (labels::BATCH_JOB_NAME, "js-w-0"),
        (labels::BATCH_JOB_COMPLETION_INDEX, "1"),
    ];
    let expected = PodSummary {
        name: "js-w-0-1-x".to_owned(),
        uid: "uid".to_owned(),
        jobset_uid: Some("js".to_owned()),
        restart_attempt: Some(2),
        job: Some("js-w-0".to_owned()),
        job_uid: None,
        index: Some(1),
        node: Some("n".to_owned()),
        running: true,
        in_gang: false,
        node_lost: false,
        deleting: false,
        obstacle: None,
        agent: AgentPod::default(),
    };
    assert_eq!(PodSummary::of(&pod("Running", &labels)), expected);
    let ended = |phase| PodSummary::of(&pod(phase, &labels));
    assert!(ended("Succeeded").is_terminal() && ended("Succeeded").agent.succeeded);
    assert!(ended("Failed").is_terminal() && !ended("Failed").running);
    assert!(!expected.is_terminal() && !ended("Pending").is_terminal());
    let mut leaving = pod("Running", &labels);
    leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert!(PodSummary::of(&leaving).deleting);
}

#[test]
fn a_pod_is_of_the_job_that_controls_it_and_not_of_one_that_its_labels_name() {
    let labels = [
        (labels::BATCH_JOB_NAME, "js-w-0"),
        (labels::BATCH_CONTROLLER_UID, "uid-label"),
    ];
    let owned = |kind: &str, name: &str, controller: bool| {
        let mut pod = pod("Running", &labels);
        pod.metadata.owner_references = Some(vec![OwnerReference {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: "uid-job".to_owned(),
            controller: Some(controller),
            ..OwnerReference::default()
        }]);
        PodSummary::of(&pod).job_uid
    };
    assert_eq!(owned("Job", "js-w-0", true).as_deref(), Some("uid-job"));
    assert_eq!(owned("Job", "js-w-0", false), None);
    assert_eq!(owned("ReplicaSet", "js-w-0", true), None);
    assert_eq!(owned("Job", "another", true), None);
    assert_eq!(PodSummary::of(&pod("Running", &labels)).job_uid, None);
}

#[test]
fn numbers_that_cannot_be_read_are_missing() {
    let nonsense = [
        (labels::RESTART_ATTEMPT, "two"),
        (labels::BATCH_JOB_COMPLETION_INDEX, "-1"),
    ];
    let summary = PodSummary::of(&pod("Running", &nonsense));
    assert_eq!((summary.restart_attempt, summary.index), (None, None));
    assert_eq!(PodSummary::of(&Pod::default()), PodSummary::default());
}

#[test]
fn a_lost_node_is_distinguished_from_a_pod_that_is_not_ready() {
    let with = |conditions: &[(&str, &str, Option<&str>)]| {
        let mut pod = pod("Running", &[]);
        let conditions = conditions.iter().map(|(type_, status, reason)| PodCondition {
            type_: (*type_).to_owned(),
            status: (*status).to_owned(),
            reason: reason.map(str::to_owned),
            ..PodCondition::default()
        });
        pod.status.get_or_insert_default().conditions = Some(conditions.collect());
        PodSummary::of(&pod).node_lost
    };
    assert!(with(&[
        ("Ready", "False", None),
        ("ContainersReady", "True", None)
    ]));
    let containers = Some("ContainersNotReady");
    assert!(!with(&[
        ("Ready", "False", containers),
        ("ContainersReady", "False", containers)
    ]));
    let gates = Some("ReadinessGatesNotReady");
    assert!(!with(&[
        ("Ready", "False", gates),
        ("ContainersReady", "True", None)
    ]));
    assert!(!with(&[
        ("Ready", "True", None),
        ("ContainersReady", "True", None)
    ]));
    assert!(!with(&[]));
    let mut pod = pod("Running", &[]);
    pod.status.get_or_insert_default().reason = Some("NodeLost".to_owned());
    assert!(PodSummary::of(&pod).node_lost);
}
