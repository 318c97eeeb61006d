use super::*;
use crate::testing;

fn pod() -> Pod {
    testing::pod("u")
}

fn container() -> Container {
    Container {
        id: "c1".into(),
        name: "worker".into(),
        args: vec!["python3".into(), "train.py".into()],
        mounts: vec!["/proc".into(), "/dev/shm".into(), "/data/.lockstep".into()],
        pid_namespace: PidNamespace::Own,
        termination_grace: None,
    }
}

fn paths() -> Paths {
    Paths {
        bin: "/run/lockstep/bin/abc".into(),
        run: "/run/lockstep/pods/u".into(),
    }
}

#[test]
fn only_the_named_containers_are_workers() {
    assert_eq!(decide(&pod(), &container()), Decision::Inject);
    let sidecar = Container {
        name: "sidecar".into(),
        ..container()
    };
    assert_eq!(decide(&pod(), &sidecar), Decision::NotOurs);
}

#[test]
fn injection_is_idempotent() {
    assert_eq!(decide(&pod(), &injected(&pod())), Decision::Already);
    assert_eq!(decide(&asks(), &injected(&asks())), Decision::Already);
    // Whatever the annotation said when the container was made.
    assert_eq!(decide(&asks(), &injected(&pod())), Decision::Already);
}

/// A pod that asks for standbys of Python.
fn asks() -> Pod {
    Pod {
        standby: Standby::Python,
        ..pod()
    }
}

/// As it is shown once the agent was put in front.
fn injected(pod: &Pod) -> Container {
    let adjustment = adjustment(pod, &container(), paths());
    let mut injected = Container {
        args: adjustment.args,
        ..container()
    };
    let mounts = adjustment.mounts.iter().map(|(_, to)| (*to).to_owned());
    injected.mounts.extend(mounts);
    let scratch = adjustment.scratch.iter().map(|scratch| scratch.place.to_owned());
    injected.mounts.extend(scratch);
    injected
}

#[test]
fn a_pods_own_mount_over_the_agent_is_never_started_as_the_agent() {
    for hostile in [
        "/",
        "//",
        "/.",
        "/data/..",
        "/.lockstep",
        "/.lockstep/",
        "/.lockstep/bin",
        "/.lockstep/bin/lockstep-pod-agent",
        "/.lockstep/run/agent.sock",
        "/.lockstep/heartbeat/beat",
        "/.lockstep/standby",
        "/.lockstep/standby/sitecustomize.py",
        "/.lockstep/other",
        "//.lockstep//bin",
        "/./.lockstep/./bin/",
        "/data/../.lockstep/bin",
        "/link/../../.lockstep",
        "/data/.lockstep/../../.lockstep/bin",
        "/data/.lockstep/../x",
        ".lockstep/bin",
        "",
    ] {
        let mut container = container();
        container.mounts.push(hostile.to_owned());
        let decision = decide(&pod(), &container);
        assert!(matches!(decision, Decision::Refuse(_)), "{hostile}");
        // Nor is it stopped for a restart as one that could have had an agent.
        assert!(!misses_agent(&pod(), &container), "{hostile}");
    }
    for harmless in [
        "/data",
        "/.lockstep-data",
        "/lockstep",
        "/data/.lockstep/bin",
        "/a/../b",
    ] {
        let mut container = container();
        container.mounts.push(harmless.to_owned());
        assert_eq!(decide(&pod(), &container), Decision::Inject, "{harmless}");
    }
}

#[test]
fn a_command_with_the_agents_path_is_not_mistaken_for_it() {
    let called = Container {
        args: injected(&pod()).args,
        ..container()
    };
    assert!(matches!(decide(&pod(), &called), Decision::Refuse(_)));
}

#[test]
fn a_worker_misses_its_agent_if_it_could_have_one_and_starts_something_else() {
    assert!(misses_agent(&pod(), &container()));
    let of = |change: fn(&mut Container)| {
        let mut container = container();
        change(&mut container);
        misses_agent(&pod(), &container)
    };
    assert!(!of(
        |container| container.args = adjustment(&pod(), container, paths()).args
    ));
    assert!(!of(|container| {
        container.args = adjustment(&pod(), container, paths()).args;
        container.args.insert(0, "/usr/bin/wrapper".to_owned());
    }));
    assert!(!of(|container| container.args.clear()));
    assert!(!of(|container| container.pid_namespace = PidNamespace::Shared));
    assert!(!of(|container| *container = injected(&pod())));
    assert!(!of(|container| *container = injected(&asks())));
    assert!(!of(|container| "sidecar".clone_into(&mut container.name)));
}

#[test]
fn the_agent_must_be_first_of_its_namespace() {
    let shared = Container {
        pid_namespace: PidNamespace::Shared,
        ..container()
    };
    assert!(matches!(decide(&pod(), &shared), Decision::Refuse(_)));
    assert!(makes_plain(&pod(), &shared) && !makes_plain(&pod(), &container()));
    let sidecar = Container {
        name: "sidecar".into(),
        ..shared
    };
    assert!(!makes_plain(&pod(), &sidecar));
    let empty = Container {
        args: vec![],
        ..container()
    };
    assert!(matches!(decide(&pod(), &empty), Decision::Refuse(_)));
}

#[test]
fn the_final_args_follow_the_separator() {
    let adjustment = adjustment(&pod(), &container(), paths());
    assert_eq!(
        adjustment.args.join(" "),
        "/.lockstep/bin/lockstep-pod-agent --socket /.lockstep/run/agent.sock --container worker --container-id c1 --heartbeat /.lockstep/heartbeat/beat -- python3 train.py"
    );
    assert_eq!(
        adjustment.mounts,
        [
            (PathBuf::from("/run/lockstep/bin/abc"), "/.lockstep/bin"),
            (PathBuf::from("/run/lockstep/pods/u"), "/.lockstep/run"),
        ]
    );
}

#[test]
fn a_pod_that_asks_for_standbys_gets_one_more_place_and_two_more_args() {
    let without = adjustment(&pod(), &container(), paths());
    let with = adjustment(&asks(), &container(), paths());
    assert_eq!(without.scratch, [HEARTBEATS]);
    assert_eq!(with.scratch, [HEARTBEATS, STANDBYS]);
    assert_eq!(with.mounts, without.mounts);
    assert_eq!(
        with.args.join(" "),
        without
            .args
            .join(" ")
            .replace(" -- ", " --standby /.lockstep/standby -- ")
    );
}

#[test]
fn a_pod_whose_programs_park_gets_one_more_arg_and_no_place() {
    let without = adjustment(&pod(), &container(), paths());
    let parks = Pod {
        standby: Standby::Program,
        ..pod()
    };
    let with = adjustment(&parks, &container(), paths());
    assert_eq!((with.scratch, with.mounts), (without.scratch, without.mounts));
    let args = without.args.join(" ");
    assert_eq!(
        with.args.join(" "),
        args.replace(" -- ", " --standby-program -- ")
    );
    assert_eq!(decide(&parks, &injected(&parks)), Decision::Already);
}
