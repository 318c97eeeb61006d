//! The JobSet of a cluster.

use lockstep_api::annotations::{RESTART_SCOPE, SUPERVISE};
use lockstep_api::{DependsOnStatus, InPlaceKind, RestartStrategy, ray::keys};

use super::*;
use crate::{admission::validation, common::features::Features, jobset::in_place};

#[test]
fn the_jobset_is_valid_and_restarts_by_process() {
    let jobset = compile(&cluster(json!({})));
    assert_eq!(validation::validate(&jobset, &Features::default()), []);
    assert_eq!(jobset.restart_strategy(), RestartStrategy::InPlaceRestart);
    let group = in_place::mode(&jobset, &in_place::Agents::ByNode).unwrap();
    assert_eq!(group.reasons, [""; 0]);
}

/// Typical pod templates, each with a container beside Ray's that has a probe and hooks.
fn with_sidecars() -> RayCluster {
    let beside = json!({
        "name": "shipper", "image": "fluent/fluent-bit:3.2.2",
        "livenessProbe": {"tcpSocket": {"port": 1}}, "startupProbe": {"tcpSocket": {"port": 1}},
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
    });
    let pod = |ray: &str| json!({"spec": {"containers": [{"name": ray, "image": "ray"}, beside]}});
    cluster(json!({
        "headGroupSpec": {"template": pod("ray-head")},
        "workerGroupSpecs": [
            {"groupName": "small", "replicas": 2, "template": pod("ray-worker")},
            {"groupName": "large", "replicas": 1, "template": pod("ray-worker")},
        ],
    }))
}

#[test]
fn containers_beside_ray_are_no_workers_and_their_probes_do_not_prevent_process_restarts() {
    let jobset = compile(&with_sidecars());
    assert_eq!(jobset.annotation(SUPERVISE), Some("ray-head,ray-worker"));
    assert_eq!(validation::validate(&jobset, &Features::default()), []);
    let group = in_place::mode(&jobset, &in_place::Agents::ByNode).unwrap();
    assert_eq!((group.kind, group.reasons), (InPlaceKind::Supervised, vec![]));
    for (job, workers) in [
        ("head", ["ray-head"]),
        ("small", ["ray-worker"]),
        ("large", ["ray-worker"]),
    ] {
        assert_eq!(in_place::workers(&jobset, &pod_template(&jobset, job)), workers);
    }
}

#[test]
fn an_explicit_list_of_workers_wins() {
    for stated in ["ray-head,shipper", "none"] {
        let mut own = with_sidecars();
        own.metadata.annotations = Some([(SUPERVISE.to_owned(), stated.to_owned())].into());
        assert_eq!(compile(&own).annotation(SUPERVISE), Some(stated));
    }
    // A name with another meaning is not listed.
    let mut own = with_sidecars();
    let pod = own.spec.head_group_spec.template.spec.as_mut().unwrap();
    pod.containers[0].name = "none".to_owned();
    let jobset = compile(&own);
    assert_eq!(jobset.annotation(SUPERVISE), None);
    assert_eq!(validation::validate(&jobset, &Features::default()), []);
}

#[test]
fn workers_wait_for_the_head_and_have_worker_restarts() {
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
            .and_then(|annotations| annotations.get(RESTART_SCOPE).cloned())
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
        "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; exec ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 \
         --memory=4294967296 --metrics-export-port=8080 --no-monitor --num-cpus=2 --num-gpus=1"
    );
    let workers = command(&jobset, "small");
    assert!(
        workers.starts_with("ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; until (exec 3<>\"/dev/tcp/$FQ_RAY_IP/$RAY_PORT\")"),
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

/// A cluster whose head's container runs this.
fn with_command(command: &str, args: &str) -> RayCluster {
    let mut own = cluster(json!({}));
    let pod = own.spec.head_group_spec.template.spec.as_mut().unwrap();
    pod.containers[0].command = Some(vec![command.to_owned()]);
    pod.containers[0].args = Some(vec![args.to_owned()]);
    own
}

#[test]
fn the_users_command_runs_first() {
    let head = command(&compile(&with_command("echo", "hello")), "head");
    assert!(
        head.starts_with(
            "echo hello && ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; exec ray start --head"
        ),
        "{head}"
    );
}

#[test]
fn the_users_command_stays_if_requested_or_if_it_starts_ray() {
    let overwrite =
        |value: &str| Some([(keys::OVERWRITE_CONTAINER_COMMAND.to_owned(), value.to_owned())].into());
    let mut by_cluster = with_command("echo", "hello");
    by_cluster.metadata.annotations = overwrite("true");
    let mut by_template = with_command("echo", "hello");
    let meta = &mut by_template.spec.head_group_spec.template.metadata;
    meta.get_or_insert_default().annotations = overwrite("True");
    for (own, args) in [
        (by_cluster, "hello"),
        (by_template, "hello"),
        (
            with_command("sh", "-c 'ray start --head --block'"),
            "-c 'ray start --head --block'",
        ),
    ] {
        let jobset = compile(&own);
        assert_eq!(command(&jobset, "head"), args);
        // KubeRay's users run it as `$KUBERAY_GEN_RAY_START_CMD`, which a shell reads as one
        // command with its arguments.
        let generated = variable(&jobset, "head", "KUBERAY_GEN_RAY_START_CMD");
        assert!(
            generated.starts_with("ray start --head --block") && !generated.contains(';'),
            "{generated}"
        );
    }
}

/// A variable of the Ray container of a replicatedJob.
fn variable(jobset: &JobSet, job: &str, name: &str) -> String {
    let found = ray_container(jobset, job).env.unwrap();
    let found = found.into_iter().find(|variable| variable.name == name);
    found.unwrap().value.unwrap()
}

#[test]
fn resources_and_labels_become_flags() {
    let jobset = compile(&cluster(json!({"headGroupSpec": {
        "resources": {"CPU": "0", "memory": "1Gi", "slots": "3", "half": "500m"},
        "labels": {"zone": "a"},
    }})));
    let head = command(&jobset, "head");
    assert!(
        head.contains("--num-cpus=0") && head.contains("--memory=1073741824"),
        "{head}"
    );
    assert!(
        head.contains("--resources='{\"half\": 0.500, \"slots\": 3}'") && head.contains("--labels='zone=a'"),
        "{head}"
    );
}

#[test]
fn what_a_group_does_not_state_is_what_its_container_has() {
    for (resources, flags) in [
        (json!({"cpu": "1500m"}), ["--memory=4294967296", "--num-cpus=2"]),
        (json!({"Memory": "1Ki"}), ["--memory=1024", "--num-cpus=2"]),
        (json!({"nvidia.com/gpu": "3"}), ["--num-cpus=2", "--num-gpus=3"]),
    ] {
        let head = command(
            &compile(&cluster(json!({"headGroupSpec": {"resources": resources}}))),
            "head",
        );
        assert!(
            flags.iter().all(|flag| head.contains(flag)) && !head.contains("--resources"),
            "{head}"
        );
    }
}

#[test]
fn nodes_know_their_namespace_show_their_metrics_and_share_their_memory() {
    let jobset = compile(&cluster(json!({})));
    for job in ["head", "small"] {
        assert_eq!(variable(&jobset, job, "RAY_CLUSTER_NAMESPACE"), "ns");
        let ports = ray_container(&jobset, job).ports.unwrap();
        assert_eq!(
            (ports[0].name.as_deref(), ports[0].container_port),
            (Some("metrics"), 8080)
        );
        let volumes = pod_template(&jobset, job).spec.unwrap().volumes.unwrap();
        let limit = volumes[0].empty_dir.as_ref().unwrap().size_limit.as_ref();
        assert_eq!(limit.map(|limit| limit.0.as_str()), Some("4Gi"));
    }
    let elsewhere = json!({"headGroupSpec": {"rayStartParams": {"plasma-directory": "/mnt"}}});
    let head = pod_template(&compile(&cluster(elsewhere)), "head");
    assert_eq!(head.spec.unwrap().volumes, None);
}

#[test]
fn labels_of_a_group_are_on_its_pods_beside_kuberays() {
    let labels = json!({"zone": "a", "ray.io/node-type": "other", "ray.io/group": "other"});
    let jobset = compile(&cluster(json!({"headGroupSpec": {"labels": labels}})));
    let labels = pod_template(&jobset, "head").metadata.unwrap().labels.unwrap();
    let of = |key: &str| labels[key].as_str();
    assert_eq!(
        (of("zone"), of("ray.io/node-type"), of("ray.io/group")),
        ("a", "head", "headgroup")
    );
}

#[test]
fn pods_carry_kuberays_labels() {
    let jobset = compile(&cluster(json!({})));
    let template = pod_template(&jobset, "small");
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
fn the_service_is_headless_unless_another_type_is_set() {
    for (type_, address) in [
        (None, Some("None")),
        (Some("ClusterIP"), Some("None")),
        (Some("NodePort"), None),
    ] {
        let stated = cluster(json!({"headGroupSpec": {"serviceType": type_}}));
        let service = crate::ray::service::head(&stated);
        let spec = service.spec.as_ref().unwrap();
        assert_eq!(
            (spec.cluster_ip.as_deref(), spec.type_.as_deref()),
            (address, type_)
        );
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
    }
}

#[test]
fn ports_that_the_flags_of_ray_state_are_those_of_the_service() {
    let params = json!({"port": "6380", "dashboard-port": "9999"});
    let service = crate::ray::service::head(&cluster(json!({"headGroupSpec": {"rayStartParams": params}})));
    let ports = service.spec.unwrap().ports.unwrap();
    let port = |name: &str| {
        ports
            .iter()
            .find(|port| port.name.as_deref() == Some(name))
            .unwrap()
            .port
    };
    assert_eq!(
        (port("gcs-server"), port("dashboard"), port("client")),
        (6380, 9999, 10001)
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
fn a_jobset_is_found_by_its_name_whatever_groups_come_later() {
    use crate::ray::names::{jobset, jobsets, unshortened};
    for (length, names) in [(2, 1), (28, 1), (40, 13), (53, 17)] {
        let name = "c".repeat(length);
        let all = jobsets(&name);
        assert_eq!(all.len(), names, "{all:?}");
        let mut grown = cluster(json!({})).spec;
        for group in [
            "s",
            "a-longer-one",
            "A_NAME_THAT_IS_DIGESTED",
            "of-twenty-characters",
        ] {
            grown.worker_group_specs[0].group_name = group.to_owned();
            let made = jobset(&name, &grown);
            assert!(all.contains(&made), "{made}");
            let start = unshortened(&made);
            assert!(
                made == name || start.is_some_and(|start| name.starts_with(start)),
                "{made}"
            );
        }
    }
    assert_eq!(["c-abcde", "abcdef01", "c-workers0"].map(unshortened), [None; 3]);
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
