use k8s_openapi::api::core::v1::{
    ContainerRestartRule, EnvVar, Lifecycle, LifecycleHandler, PodSpec, Probe, VolumeMount,
};
use lockstep_api::{InPlaceRestartStatus, RestartStrategy, annotations};

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job};

fn in_place(change: impl FnOnce(&mut PodSpec)) -> JobSet {
    jobset([replicated_job("a", 1), replicated_job("b", 1).pod_spec(change)])
        .restarting(RestartStrategy::InPlaceRestart, 1)
}

fn kind(jobset: &JobSet) -> Option<(InPlaceKind, Vec<String>)> {
    mode(jobset, &Agents::ByNode).map(|group| (group.kind, group.reasons))
}

fn plain(reason: &str) -> Option<(InPlaceKind, Vec<String>)> {
    Some((InPlaceKind::Plain, vec![reason.to_owned()]))
}

const SUPERVISED: Option<(InPlaceKind, Vec<String>)> = Some((InPlaceKind::Supervised, Vec::new()));

#[test]
fn only_jobsets_that_ask_for_it_are_groups() {
    let js = jobset([replicated_job("a", 1)]);
    assert_eq!(kind(&js), None);
    assert_eq!(kind(&js.clone().restarting(RestartStrategy::Recreate, 1)), None);
    assert_eq!(
        kind(&js.clone().restarting(RestartStrategy::InPlaceRestart, 1)),
        SUPERVISED
    );
    assert_eq!(
        kind(&js.annotated(annotations::IN_PLACE_TIMEOUT, "60s")),
        SUPERVISED
    );
}

#[test]
fn workers_still_wait_for_their_group_after_the_annotation_is_removed() {
    let mut js = jobset([replicated_job("a", 1)]);
    for (said, found) in [
        (None, None),
        (Some(InPlaceKind::UpstreamAgent), None),
        (Some(InPlaceKind::Supervised), SUPERVISED),
    ] {
        let status = InPlaceRestartStatus {
            kind: said,
            ..InPlaceRestartStatus::default()
        };
        js.status.get_or_insert_default().in_place_restart = Some(status);
        assert_eq!(kind(&js), found);
    }
}

#[test]
fn what_is_mounted_in_the_place_of_the_agent_makes_the_group_plain() {
    let mounting = |path: &str| {
        in_place(|pod| {
            pod.containers[0].volume_mounts = Some(vec![VolumeMount {
                name: "own".to_owned(),
                mount_path: path.to_owned(),
                sub_path: Some("program".to_owned()),
                ..VolumeMount::default()
            }]);
        })
    };
    for path in [
        "/.lockstep/bin/lockstep-pod-agent",
        "/.lockstep",
        "//data/../.lockstep/run",
        "/",
    ] {
        let reason =
            format!("container worker of replicatedJob b mounts {path:?}, where the agent is mounted");
        assert_eq!(kind(&mounting(path)), plain(&reason));
        // There is no opt-out of that.
        let listed = mounting(path).annotated(annotations::SUPERVISE, "worker");
        assert_eq!(kind(&listed), plain(&reason));
    }
    assert_eq!(kind(&mounting("/data/.lockstep")), SUPERVISED);
}

#[test]
fn what_kubelet_does_once_per_container_makes_the_group_plain_unless_the_user_opts_in() {
    let probed = in_place(|pod| pod.containers[0].liveness_probe = Some(Probe::default()));
    assert_eq!(
        kind(&probed),
        plain("container worker of replicatedJob b has a livenessProbe")
    );
    assert_eq!(
        kind(&probed.annotated(annotations::SUPERVISE, "worker")),
        SUPERVISED
    );

    let slow = in_place(|pod| pod.containers[0].startup_probe = Some(Probe::default()));
    assert_eq!(
        kind(&slow),
        plain("container worker of replicatedJob b has a startupProbe")
    );

    let hooked = in_place(|pod| {
        pod.containers[0].lifecycle = Some(Lifecycle {
            post_start: Some(LifecycleHandler::default()),
            ..Lifecycle::default()
        });
    });
    assert_eq!(
        kind(&hooked),
        plain("container worker of replicatedJob b has a postStart hook")
    );
    let pre_stop = in_place(|pod| {
        pod.containers[0].lifecycle = Some(Lifecycle {
            pre_stop: Some(LifecycleHandler::default()),
            ..Lifecycle::default()
        });
    });
    assert_eq!(kind(&pre_stop), SUPERVISED);
}

#[test]
fn shared_process_namespaces_and_a_refusal_make_the_group_plain() {
    let shared = in_place(|pod| pod.share_process_namespace = Some(true));
    assert_eq!(kind(&shared), plain("replicatedJob b sets shareProcessNamespace"));
    let host = in_place(|pod| pod.host_pid = Some(true)).annotated(annotations::SUPERVISE, "worker");
    assert_eq!(kind(&host), plain("replicatedJob b sets hostPID"));
    for (class, sandboxed) in [
        ("kata", true),
        ("kata-qemu", true),
        ("gvisor", true),
        ("runsc", true),
        ("nvidia", false),
        ("katamaran", false),
    ] {
        let of_class = in_place(|pod| pod.runtime_class_name = Some(class.to_owned()))
            .annotated(annotations::SUPERVISE, "worker");
        let why = format!("replicatedJob b sets runtimeClassName {class}");
        let expected = if sandboxed { plain(&why) } else { SUPERVISED };
        assert_eq!(kind(&of_class), expected, "{class}");
    }
    let refused = in_place(|_| {}).annotated(annotations::SUPERVISE, "none");
    assert_eq!(
        kind(&refused),
        plain("the JobSet is annotated lockstep.dev/supervise: none")
    );
}

fn env(names: &[&str]) -> Option<Vec<EnvVar>> {
    let env = names.iter().map(|name| EnvVar {
        name: (*name).to_owned(),
        ..EnvVar::default()
    });
    Some(env.collect())
}

fn restarting_all() -> Option<Vec<ContainerRestartRule>> {
    Some(vec![ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        ..Default::default()
    }])
}

/// A sidecar with these variables, and with the rule that its exit restarts all containers.
fn with_sidecar(names: &[&str]) -> JobSet {
    in_place(|pod| {
        pod.init_containers = Some(vec![Container {
            name: "side".to_owned(),
            restart_policy: Some("Always".to_owned()),
            restart_policy_rules: restarting_all(),
            env: env(names),
            ..Container::default()
        }]);
    })
}

#[test]
fn pods_that_bring_upstreams_agent_are_left_to_it() {
    let upstream = Some((InPlaceKind::UpstreamAgent, Vec::new()));
    let sidecar = in_place(|pod| {
        pod.containers[0].restart_policy_rules = restarting_all();
        pod.containers[0].env = env(&["JOBSET_NAME", "POD_NAME"]);
    });
    assert_eq!(kind(&sidecar), upstream);
    assert_eq!(kind(&with_sidecar(&["JOBSET_NAME", "POD_NAME"])), upstream);
    let env = |names: &[&str]| in_place(|pod| pod.containers[0].env = env(names));
    assert_eq!(
        kind(&env(&["JOBSET_NAME", "POD_NAME", "WORKER_COMMAND"])),
        upstream
    );
    assert_eq!(
        kind(&env(&["JOBSET_NAME", "POD_NAME", "STARTUP_PROBE_PORT"])),
        upstream
    );
    assert_eq!(kind(&env(&["JOBSET_NAME", "POD_NAME"])), SUPERVISED);
}

#[test]
fn a_rule_of_the_user_is_no_sign_of_an_agent() {
    assert_eq!(kind(&with_sidecar(&[])), SUPERVISED);
    assert_eq!(kind(&with_sidecar(&["POD_NAME", "WORKER_COMMAND"])), SUPERVISED);
    let worker = in_place(|pod| pod.containers[0].restart_policy_rules = restarting_all());
    assert_eq!(kind(&worker), SUPERVISED);
    let names_of_worker = with_sidecar(&[]).with(|js| {
        let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        let pod = job.template.spec.as_mut().unwrap();
        pod.containers[0].env = env(&["JOBSET_NAME", "POD_NAME"]);
    });
    assert_eq!(kind(&names_of_worker), SUPERVISED);
    // The kubelet restarts all containers of such a pod, including the worker.
    let refused = with_sidecar(&[]).annotated(annotations::SUPERVISE, "none");
    assert_eq!(
        mode(&refused, &Agents::ByNode).unwrap().level,
        Some(RestartLevel::Container)
    );
}

#[test]
fn workers_are_the_regular_containers_or_those_of_them_that_are_listed() {
    let js = in_place(|pod| {
        pod.containers.push(Container {
            name: "other".to_owned(),
            ..Container::default()
        });
        pod.init_containers = Some(vec![Container {
            name: "sidecar".to_owned(),
            ..Container::default()
        }]);
    });
    let of = |js: &JobSet, index: usize| -> Vec<String> {
        let template = &js.spec.replicated_jobs[index]
            .template
            .spec
            .as_ref()
            .unwrap()
            .template;
        workers(js, template).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(of(&js, 1), ["worker", "other"]);
    let listed = js.clone().annotated(annotations::SUPERVISE, "other, sidecar");
    assert_eq!(of(&listed, 0), Vec::<String>::new());
    assert_eq!(of(&listed, 1), ["other"]);
    assert_eq!(
        of(&js.annotated(annotations::SUPERVISE, "none"), 1),
        ["worker", "other"]
    );
}

#[test]
fn a_plain_group_restarts_by_container_if_the_kubelet_restarts_killed_containers() {
    let level = |change: fn(&mut PodSpec)| {
        let refused = in_place(change).annotated(annotations::SUPERVISE, "none");
        mode(&refused, &Agents::ByNode).unwrap().level
    };
    assert_eq!(level(|_| {}), Some(RestartLevel::Container));
    assert_eq!(
        level(|pod| pod.restart_policy = Some("OnFailure".to_owned())),
        Some(RestartLevel::Container)
    );
    assert_eq!(level(|pod| pod.restart_policy = Some("Never".to_owned())), None);
    assert_eq!(
        level(|pod| pod.containers[0].restart_policy = Some("Always".to_owned())),
        None
    );
    assert_eq!(
        level(|pod| pod.containers[0].restart_policy_rules = Some(vec![ContainerRestartRule::default()])),
        None
    );
    assert_eq!(
        mode(&in_place(|_| {}), &Agents::ByNode).unwrap().level,
        Some(RestartLevel::Process)
    );
}

#[test]
fn agents_by_template_need_commands_to_stand_in_front_of() {
    let by_template = Agents::ByTemplate("image".to_owned());
    let command = |name: &str| Container {
        name: name.to_owned(),
        command: Some(vec!["run".to_owned()]),
        ..Container::default()
    };
    let js = jobset([replicated_job("a", 1).pod_spec(|pod| {
        pod.containers = vec![command("worker"), command("sidecar")];
        pod.containers[1].command = None;
    })])
    .restarting(RestartStrategy::InPlaceRestart, 1);
    let group_of = |js: &JobSet| mode(js, &by_template).map(|group| (group.kind, group.reasons));
    assert_eq!(
        group_of(&js),
        plain("container sidecar of replicatedJob a has no command for the agent to run")
    );
    assert_eq!(
        group_of(&js.annotated(annotations::SUPERVISE, "worker")),
        SUPERVISED
    );
}

#[test]
fn groups_that_run_stay_what_they_are_when_the_setting_changes() {
    // The kubelet restarts none of these containers, and they set no command.
    let js = in_place(|pod| pod.restart_policy = Some("Never".to_owned()));
    let by_template = Agents::ByTemplate("image".to_owned());
    let stated = |kind| {
        let mut js = js.clone();
        js.status.get_or_insert_default().in_place_restart = Some(InPlaceRestartStatus {
            kind,
            ..InPlaceRestartStatus::default()
        });
        js
    };
    let found = |js: &JobSet, agents| mode(js, agents).map(|group| (group.kind, group.level));
    let supervised = Some((InPlaceKind::Supervised, Some(RestartLevel::Process)));
    let plain = Some((InPlaceKind::Plain, None));
    for (kind, by_node, by_templates) in [
        (None, &supervised, &plain),
        (Some(InPlaceKind::Supervised), &supervised, &supervised),
        (Some(InPlaceKind::Plain), &plain, &plain),
    ] {
        let js = stated(kind);
        assert_eq!(&found(&js, &Agents::ByNode), by_node);
        assert_eq!(&found(&js, &by_template), by_templates);
        // The mode once its Jobs are recreated.
        let of_new_jobs = |agents| mode_of_new_jobs(&js, agents).map(|group| (group.kind, group.level));
        assert_eq!(
            (of_new_jobs(&Agents::ByNode), of_new_jobs(&by_template)),
            (supervised.clone(), plain.clone())
        );
    }
}

#[test]
fn workers_without_indexes_are_not_restarted_in_place() {
    let unindexed = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1).job_spec(|spec| spec.completion_mode = Some("NonIndexed".to_owned())),
    ])
    .restarting(RestartStrategy::InPlaceRestart, 1);
    assert_eq!(
        kind(&unindexed),
        plain("replicatedJob b has completionMode NonIndexed")
    );
    assert_eq!(mode(&unindexed, &Agents::ByNode).unwrap().level, None);
}
