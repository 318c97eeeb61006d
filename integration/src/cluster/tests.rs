use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::network::{MAX_NODES, Network, SLOTS};
use super::process::Enter;
use super::process_id::{ProcessId, parse_stat};
use super::state::{Daemon, Mode, State};
use super::{Spec, cgroup};

const API_SERVER: Mode = Mode::ApiServer {
    controllers: true,
    scheduler: true,
    brisk: true,
};

#[test]
fn no_two_instances_share_an_address() {
    let mut seen = BTreeSet::new();
    for network in (0..SLOTS).map(Network::new) {
        assert!(seen.insert(network.control_plane().to_string()));
        assert!(seen.insert(network.host().to_string()));
        assert!(seen.insert(network.host_link()));
        for index in 1..=MAX_NODES {
            assert!(seen.insert(network.node(index).to_string()));
            assert!(seen.insert(network.pods(index)));
        }
    }
}

#[test]
fn the_pods_of_every_node_are_among_all_pods() {
    let network = Network::new(SLOTS - 1);
    assert_eq!(network.all_pods(), "198.19.240.0/20");
    assert_eq!(network.pods(1), "198.19.240.0/24");
    assert_eq!(network.pods(MAX_NODES), "198.19.255.0/24");
}

#[test]
fn links_have_names_that_the_kernel_takes() {
    assert!(
        (0..SLOTS)
            .map(Network::new)
            .all(|network| network.host_link().len() <= 15)
    );
}

#[test]
fn control_group_hierarchies_of_both_versions_are_found() {
    let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                  cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                  proc /proc proc rw 0 0\n";
    let expected = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/unified"].map(PathBuf::from);
    assert_eq!(cgroup::parse_mounts(mounts), expected);
}

#[test]
fn a_command_with_brackets_in_its_name_has_a_start_time() {
    let rest = "S 1 2 3 0 -1 4 5 6 7 8 9 10 11 12 20 0 1 0 987654 13 14";
    assert_eq!(parse_stat(&format!("42 (a ) R b) {rest}")), Some(('S', 987_654)));
    assert_eq!(parse_stat("42 (cut off) S 1"), None);
}

#[test]
fn a_process_that_has_ended_is_not_another_of_the_same_id() {
    let own = ProcessId::own().unwrap();
    assert!(own.is_alive());
    let former = ProcessId {
        start_time: own.start_time - 1,
        ..own
    };
    assert!(!former.is_alive());
    // Would end this test if it were sent.
    assert!(!former.signal(nix::sys::signal::Signal::SIGKILL));
}

#[test]
fn a_process_lives_while_one_of_its_threads_does() {
    // Ends its first thread, as a kill does a moment before it ends the others.
    let script = "import ctypes, sys, threading\n\
        threading.Thread(target=sys.stdin.read).start()\n\
        ctypes.CDLL(None).pthread_exit(None)";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let process = ProcessId::of(nix::unistd::Pid::from_raw(child.id().cast_signed())).unwrap();
    while ProcessId::of(process.pid()).is_some() {
        std::thread::yield_now();
    }
    assert!(process.is_alive());
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(!process.is_alive());
}

#[test]
fn a_program_enters_only_the_requested_namespaces() {
    let pid = nix::unistd::Pid::from_raw(7);
    let line = |enter: Enter| crate::command::line(enter.command("ls").arg("/"));
    assert_eq!(line(Enter::Nothing), "ls /");
    assert_eq!(line(Enter::Network(pid)), "nsenter -t 7 -n -- ls /");
    assert_eq!(line(Enter::Node(pid)), "nsenter -t 7 -m -n -u -- ls /");
}

#[test]
fn the_record_is_read_as_it_was_written() {
    let dir = tempfile::tempdir().unwrap();
    assert!(State::load(dir.path()).is_none());
    let mut state = State::new(API_SERVER, ProcessId::own());
    state.slot = Some(3);
    state.daemons.push(Daemon {
        name: "etcd".to_owned(),
        process: ProcessId::own().unwrap(),
    });
    state.save(dir.path()).unwrap();

    let read = State::load(dir.path()).unwrap();
    assert_eq!(
        (read.mode, read.slot, read.owner),
        (state.mode, state.slot, state.owner)
    );
    assert_eq!(read.daemons, state.daemons);
    assert!(!read.is_healthy(), "it has not come up yet");
}

#[test]
fn an_instance_with_a_dead_daemon_is_not_healthy() {
    let mut state = State::new(Mode::Nodes, None);
    state.ready = true;
    assert!(state.is_healthy());
    let own = ProcessId::own().unwrap();
    let process = ProcessId {
        start_time: own.start_time - 1,
        ..own
    };
    state.daemons.push(Daemon {
        name: "etcd".to_owned(),
        process,
    });
    assert!(!state.is_healthy());
}

#[test]
fn a_lost_node_is_removed_with_its_daemons_and_its_number_is_not_reused() {
    let mut state = State::new(Mode::Nodes, None);
    let process = ProcessId::own().unwrap();
    state.last_node = 14;
    for name in [
        "etcd",
        "node-1",
        "kubelet-1",
        "node-4",
        "containerd-4",
        "kube-proxy-4",
        "node-14",
        "kubelet-14",
    ] {
        let name = name.to_owned();
        state.daemons.push(Daemon { name, process });
    }
    state.remove_node(4);
    assert_eq!(state.node_numbers().collect::<Vec<_>>(), [1, 14]);
    let left: Vec<_> = state.daemons.iter().map(|daemon| daemon.name.as_str()).collect();
    assert_eq!(left, ["etcd", "node-1", "kubelet-1", "node-14", "kubelet-14"]);
    assert_eq!(state.last_node, 14);
}

#[test]
fn names_that_would_lead_elsewhere_are_refused() {
    for name in ["", "../up", "a/b", "A", "a b", &"x".repeat(41)] {
        assert!(
            Spec {
                mode: API_SERVER,
                ..Spec::new(name)
            }
            .check()
            .is_err()
        );
    }
    assert!(Spec::api_server().check().is_ok());
    assert!(Spec::api_server().nodes(MAX_NODES + 1).check().is_err());
}
