use k8s_openapi::api::core::v1::{PodSchedulingGate, ResourceRequirements, Toleration};

use super::*;
use crate::common::testing::{Fate, ReplicatedJobBuild, child, jobset, replicated_job};

fn map(pairs: &[(&str, &str)]) -> Map {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

#[test]
fn the_jobs_own_template_and_the_replicated_jobs_are_merged() {
    let toleration = |key: &str| Toleration {
        key: Some(key.to_owned()),
        ..Toleration::default()
    };
    let js = jobset([replicated_job("a", 1).pod_spec(|pod| {
        pod.node_selector = Some(map(&[("zone", "new")]));
        pod.tolerations = Some(vec![toleration("both"), toleration("new")]);
        pod.scheduling_gates = Some(vec![PodSchedulingGate {
            name: "gate".to_owned(),
        }]);
    })]);
    let mut job = child(&js, "a", 0, Fate::Pending);
    let template = &mut job.spec.as_mut().unwrap().template;
    template.metadata.as_mut().unwrap().labels = Some(map(&[("from", "job-controller")]));
    template.metadata.as_mut().unwrap().annotations = Some(map(&[
        (annotations::SUPERVISE, "worker"),
        (annotations::STANDBY, "python"),
    ]));
    let pod = template.spec.as_mut().unwrap();
    pod.node_selector = Some(map(&[("zone", "old"), ("disk", "ssd")]));
    pod.tolerations = Some(vec![toleration("old"), toleration("both")]);
    pod.scheduling_gates = None;

    let mut wished = js.spec.replicated_jobs[0].clone();
    let meta = wished
        .template
        .spec
        .as_mut()
        .unwrap()
        .template
        .metadata
        .get_or_insert_default();
    meta.labels = Some(map(&[("queue", "q")]));
    meta.annotations = Some(map(&[
        ("note", "n"),
        (annotations::SUPERVISE, "forged"),
        (annotations::STANDBY, "none"),
    ]));

    let merged = merge(&job, &wished);
    assert_eq!(merged.labels, map(&[("from", "job-controller"), ("queue", "q")]));
    assert_eq!(
        merged.annotations,
        map(&[
            ("note", "n"),
            (annotations::SUPERVISE, "worker"),
            (annotations::STANDBY, "python")
        ])
    );
    assert_eq!(merged.node_selector, map(&[("zone", "new"), ("disk", "ssd")]));
    assert_eq!(
        merged.tolerations,
        [toleration("old"), toleration("both"), toleration("new")]
    );
    assert_eq!(merged.scheduling_gates, ["gate"]);
    assert_eq!(merged.resource_version.as_deref(), Some("1"));
    assert!(!merged.clear_start_time);
}

#[test]
fn a_job_that_ran_before_has_its_start_time_cleared() {
    let js = jobset([replicated_job("a", 1)]);
    let job = child(&js, "a", 0, Fate::Running);
    assert!(merge(&job, &js.spec.replicated_jobs[0]).clear_start_time);
}

#[test]
fn resources_of_all_containers_are_those_of_the_template() {
    let stated = serde_json::json!({
        "requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}, "claims": [{"name": "gpu"}],
    });
    let stated: ResourceRequirements = serde_json::from_value(stated).unwrap();
    let job = replicated_job("a", 1).pod_spec(|pod| {
        pod.containers[0].resources = Some(stated.clone());
        pod.init_containers = Some(vec![Container {
            name: "init".to_owned(),
            ..Container::default()
        }]);
    });
    let of = |container: &str, is_init, resources| ContainerResources {
        container: container.to_owned(),
        is_init,
        resources,
    };
    let init = of("init", true, ResourceRequirements::default());
    assert_eq!(resources(&job), [init, of("worker", false, stated)]);
}
