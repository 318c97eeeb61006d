use std::collections::BTreeSet;

use super::*;

fn container(name: &str) -> Container {
    Container {
        name: name.to_owned(),
        command: Some(vec!["python3".to_owned()]),
        args: Some(vec!["train.py".to_owned()]),
        ..Container::default()
    }
}

fn injected(change: impl FnOnce(&mut PodSpec)) -> PodSpec {
    let mut pod = PodSpec {
        containers: vec![container("worker"), container("sidecar")],
        init_containers: Some(vec![container("first")]),
        ..PodSpec::default()
    };
    change(&mut pod);
    inject(&mut pod, &["worker".to_owned()], "registry/daemon:1");
    pod
}

#[test]
fn only_the_workers_get_the_agent() {
    let pod = injected(|_| {});
    let worker = &pod.containers[0];
    assert_eq!(
        worker.command.as_ref().unwrap().join(" "),
        "/.lockstep/bin/lockstep-pod-agent --socket /.lockstep/run/agent.sock --container worker \
         --heartbeat /.lockstep/heartbeat/worker --termination-grace-ms 30000 -- python3"
    );
    assert_eq!(worker.args.as_ref().unwrap(), &["train.py"]);
    assert_eq!(pod.containers[1], container("sidecar"));
    let socket = worker.volume_mounts.as_ref().unwrap().last().unwrap();
    let uid = &worker.env.as_ref().unwrap()[0];
    assert_eq!(socket.sub_path_expr, Some(format!("$({})", uid.name)));
}

#[test]
fn the_agent_knows_how_long_its_worker_has_to_end() {
    let pod = injected(|pod| pod.termination_grace_period_seconds = Some(5));
    let command = pod.containers[0].command.as_ref().unwrap().join(" ");
    assert!(command.contains("--termination-grace-ms 5000 "), "{command}");
}

#[test]
fn the_agent_is_copied_before_anything_else_and_every_mount_has_its_volume() {
    let pod = injected(|_| {});
    let init = pod.init_containers.as_ref().unwrap();
    let names: Vec<&str> = init.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["lockstep-agent", "first"]);
    assert_eq!(init[0].image.as_deref(), Some("registry/daemon:1"));
    let volumes: BTreeSet<&str> = pod
        .volumes
        .iter()
        .flatten()
        .map(|volume| volume.name.as_str())
        .collect();
    let mounts = init
        .iter()
        .chain(&pod.containers)
        .flat_map(|container| container.volume_mounts.iter().flatten());
    assert_eq!(
        mounts.map(|mount| mount.name.as_str()).collect::<BTreeSet<_>>(),
        volumes
    );
}

#[test]
fn resources_are_set_if_the_pod_sets_some() {
    let of_copier = |pod: &PodSpec| pod.init_containers.as_ref().unwrap()[0].resources.clone();
    assert_eq!(of_copier(&injected(|_| {})), None);
    let pod = injected(|pod| {
        pod.containers[1].resources = Some(ResourceRequirements {
            requests: Some([("cpu".to_owned(), Quantity("1".to_owned()))].into()),
            ..ResourceRequirements::default()
        });
    });
    let resources = of_copier(&pod).unwrap();
    assert!(resources.limits.is_some() && resources.limits == resources.requests);
}
