use serde_json::{Value, json};

use super::*;

fn here(name: &str, is_pod: bool) -> Identity {
    Identity {
        name: name.to_owned(),
        is_pod,
        process: Process::this(),
    }
}

/// The Lease of this process.
fn held_by(holder: &str, process: &str) -> Lease {
    let lease: Value = json!({
        "metadata": {"annotations": {"lockstep.dev/leader-process": process}},
        "spec": {"holderIdentity": holder},
    });
    serde_json::from_value(lease).unwrap()
}

/// The Lease that another process with the same name has left.
fn left_by(former: &Process) -> Lease {
    held_by(&format!("host_{}", former.token), &former.to_string())
}

/// A process that does not run: no process has had this id at that time.
fn ended() -> Process {
    Process {
        started: "1".to_owned(),
        ..Process::this()
    }
}

#[test]
fn no_two_have_one_identity() {
    let (one, other) = (here("host", false), here("host", false));
    assert_ne!(one.holder(), other.holder());
    assert!(one.holder().starts_with("host_"));
    assert_eq!(Process::parse(&one.process()), Some(one.process.clone()));
}

#[test]
fn one_that_was_killed_is_followed_by_the_next_of_its_host() {
    let next = here("host", false);
    assert!(next.follows(&left_by(&ended())));
    assert!(!here("another", false).follows(&left_by(&ended())));
}

#[test]
fn one_that_lives_is_not_followed() {
    let next = here("host", false);
    let parent = std::os::unix::process::parent_id();
    let living = Process {
        pid: parent,
        started: started(parent).unwrap(),
        ..Process::this()
    };
    assert!(!next.follows(&left_by(&living)));
    // Nor a process whose id belongs to another one since: it has ended.
    let reused = Process {
        started: format!("1{}", living.started),
        ..living
    };
    assert!(next.follows(&left_by(&reused)));
}

#[test]
fn one_that_ended_and_was_not_waited_for_is_followed() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id();
    let former = Process {
        pid,
        started: started(pid).unwrap(),
        ..Process::this()
    };
    let next = here("host", false);
    assert!(!next.follows(&left_by(&former)));
    child.kill().unwrap();
    let zombie = nix::sys::wait::waitid(
        nix::sys::wait::Id::Pid(Pid::from_raw(pid.try_into().unwrap())),
        nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT,
    );
    assert!(zombie.is_ok());
    assert!(next.follows(&left_by(&former)));
    child.wait().unwrap();
}

#[test]
fn the_container_before_in_the_same_pod_has_ended() {
    let before = Process {
        namespace: "4026531999".to_owned(),
        ..Process::this()
    };
    assert!(here("host", true).follows(&left_by(&before)));
    assert!(
        !here("host", false).follows(&left_by(&before)),
        "two containers with the same name"
    );
}

#[test]
fn nothing_is_known_of_processes_of_other_hosts() {
    let elsewhere = Process {
        boot: "another".to_owned(),
        ..ended()
    };
    for unknown in [
        elsewhere,
        Process {
            boot: String::new(),
            ..ended()
        },
    ] {
        assert!(!here("host", true).follows(&left_by(&unknown)));
    }
}

#[test]
fn a_holder_without_a_recorded_process_is_not_replaced() {
    let next = here("host", false);
    let former = ended().to_string();
    for (holder, process) in [
        ("host_its-own", former.as_str()),
        ("host", &former),
        ("", &former),
        ("host_x", "7-1-x"),
    ] {
        assert!(!next.follows(&held_by(holder, process)), "{holder} {process}");
    }
    assert!(!next.follows(&Lease::default()));
}
