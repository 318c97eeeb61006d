//! What a cluster becomes.

use lockstep_api::{DependsOnStatus, RestartStrategy, ray::keys};

use super::*;
use crate::{features::Features, in_place, validation};

#[test]
fn the_jobset_is_valid_and_restarts_by_process() {
    let jobset = compile(&cluster(json!({})));
    assert_eq!(validation::validate(&jobset, &Features::default()), []);
    assert_eq!(jobset.restart_strategy(), RestartStrategy::InPlaceRestart);
    let group = in_place::group(&jobset, &in_place::Agents::ByNode).unwrap();
    assert_eq!(group.reasons, [""; 0]);
}

#[test]
fn workers_wait_for_the_head_and_are_restarted_alone() {
    let jobset = compile(&cluster(json!({})));
    let [head, small] = jobset.spec.replicated_jobs.as_slice() else {
        panic!("{:?}", jobset.spec.replicated_jobs);
    };
    assert_eq!(
        (head.name.as_str(), head.pods(), small.name.as_str(), small.pods()),
        ("head", 1, "small", 2)
    );
    assert_eq!(
        (small.depends_on[0].name.as_str(), &small.depends_on[0].status),
        ("head", &DependsOnStatus::Ready)
    );
    let scope = |job: &lockstep_api::ReplicatedJob| {
        let meta = job.template.metadata.clone().unwrap_or_default();
        meta.annotations
            .and_then(|annotations| annotations.get(keys::RESTART_SCOPE).cloned())
    };
    assert_eq!((scope(head), scope(small).as_deref()), (None, Some("worker")));
}

#[test]
fn ray_is_started_with_what_the_container_has() {
    let jobset = compile(&cluster(
        json!({"headGroupSpec": {"rayStartParams": {"num-gpus": "1", "no-monitor": "true"}}}),
    ));
    assert_eq!(
        command(&jobset, "head"),
        "ulimit -n 65536; exec ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 \
         --memory=4294967296 --metrics-export-port=8080 --no-monitor --num-cpus=2 --num-gpus=1"
    );
    let workers = command(&jobset, "small");
    assert!(
        workers.starts_with("ulimit -n 65536; until (exec 3<>\"/dev/tcp/$FQ_RAY_IP/$RAY_PORT\")"),
        "{workers}"
    );
    assert!(
        workers.contains("exec ray start --address=rc-head-svc.ns.svc:6379 --block"),
        "{workers}"
    );
}

#[test]
fn another_port_of_the_head_reaches_the_workers() {
    let jobset = compile(&cluster(
        json!({"headGroupSpec": {"rayStartParams": {"port": "6380"}}}),
    ));
    assert!(command(&jobset, "small").contains("--address=rc-head-svc.ns.svc:6380"));
}

#[test]
fn the_users_command_runs_first_or_instead() {
    let mut own = cluster(json!({}));
    let pod = own.spec.head_group_spec.template.spec.as_mut().unwrap();
    pod.containers[0].command = Some(vec!["echo".to_owned()]);
    pod.containers[0].args = Some(vec!["hello".to_owned()]);
    assert!(
        command(&compile(&own), "head").starts_with("echo hello && ulimit -n 65536; exec ray start --head")
    );
    own.metadata.annotations =
        Some([(keys::OVERWRITE_CONTAINER_COMMAND.to_owned(), "true".to_owned())].into());
    let jobset = compile(&own);
    assert_eq!(command(&jobset, "head"), "hello");
    let template = &jobset.spec.replicated_jobs[0]
        .template
        .spec
        .as_ref()
        .unwrap()
        .template;
    let env = template.spec.as_ref().unwrap().containers[0].env.clone().unwrap();
    let generated = env
        .iter()
        .find(|variable| variable.name == "KUBERAY_GEN_RAY_START_CMD")
        .unwrap();
    assert!(
        generated
            .value
            .as_ref()
            .unwrap()
            .starts_with("ulimit -n 65536; ray start --head")
    );
}

#[test]
fn stated_resources_and_labels_become_flags() {
    let jobset = compile(&cluster(json!({"headGroupSpec": {
        "resources": {"CPU": "0", "memory": "1Gi", "slots": "3"},
        "labels": {"zone": "a"},
    }})));
    let head = command(&jobset, "head");
    assert!(
        head.contains("--num-cpus=0") && head.contains("--memory=1073741824"),
        "{head}"
    );
    assert!(
        head.contains("--resources='{\"slots\": 3}'") && head.contains("--labels='zone=a'"),
        "{head}"
    );
}

#[test]
fn pods_carry_kuberays_labels() {
    let jobset = compile(&cluster(json!({})));
    let template = &jobset.spec.replicated_jobs[1]
        .template
        .spec
        .as_ref()
        .unwrap()
        .template;
    let labels = template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
    let labels: Vec<(&str, &str)> = labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        labels,
        [
            ("ray.io/cluster", "rc"),
            ("ray.io/group", "small"),
            ("ray.io/identifier", "rc-worker"),
            ("ray.io/is-ray-node", "yes"),
            ("ray.io/node-type", "worker"),
        ]
    );
}

#[test]
fn the_service_selects_the_head_and_has_its_ports() {
    let service = crate::ray::service::head(&cluster(json!({})));
    assert_eq!(service.metadata.name.as_deref(), Some("rc-head-svc"));
    let spec = service.spec.unwrap();
    assert_eq!(spec.selector.unwrap()["ray.io/node-type"], "head");
    let ports: Vec<(String, i32)> = spec
        .ports
        .unwrap()
        .into_iter()
        .map(|port| (port.name.unwrap(), port.port))
        .collect();
    let ports: Vec<(&str, i32)> = ports.iter().map(|(name, port)| (name.as_str(), *port)).collect();
    assert_eq!(
        ports,
        [
            ("client", 10001),
            ("dashboard", 8265),
            ("gcs-server", 6379),
            ("metrics", 8080),
            ("serve", 8000)
        ]
    );
}

#[test]
fn the_longest_names_make_valid_jobsets() {
    let name = "c".repeat(53);
    let mut long = cluster(json!({}));
    long.metadata.name = Some(name.clone());
    long.spec.worker_group_specs[0].group_name = "Group_With_A_Very_Long_Name".to_owned();
    long.spec.worker_group_specs[0].replicas = Some(3);
    let jobset = compile(&long);
    assert_eq!(validation::validate(&jobset, &Features::default()), []);
    assert!(
        jobset.name().starts_with("ccc") && jobset.name().len() < 53,
        "{}",
        jobset.name()
    );
}

#[test]
fn a_gang_names_groups_and_leaves_out_those_without_pods() {
    let gang = json!({"replicatedJobs": [{"name": "small", "minAvailable": 1}]});
    let gang_of = |replicas: i32| {
        let mut stated = cluster(json!({"gang": gang.clone()}));
        stated.spec.worker_group_specs[0].replicas = Some(replicas);
        stated.spec.worker_group_specs[0].min_replicas = None;
        let jobset = compile(&stated);
        assert_eq!(validation::validate(&jobset, &Features::default()), []);
        jobset.spec.gang.unwrap().replicated_jobs.len()
    };
    assert_eq!((gang_of(2), gang_of(0)), (1, 0));
}
