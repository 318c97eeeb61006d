use super::*;

/// Whether the second is another container's for an agent that started as the first.
fn stranger(own: &str, other: &str) -> bool {
    Cgroup::parse(own).excludes(other)
}

#[test]
fn in_a_cgroup_namespace_of_its_own() {
    let own = "0::/\n";
    for inside in [
        "0::/\n",
        "0::/init\n",
        "0::/..a\n",
        "0::/a/..\n",
        "0::/gone (deleted)\n",
    ] {
        assert!(!stranger(own, inside), "{inside}");
    }
    for outside in ["0::/../other\n", "0::/../../pod7/other\n", "0::/..\n"] {
        assert!(stranger(own, outside), "{outside}");
    }
}

#[test]
fn in_the_nodes_cgroup_namespace() {
    let own = "0::/kubepods/burstable/pod7/worker\n";
    for inside in [
        own,
        "0::/kubepods/burstable/pod7/worker/sub\n",
        "0::/kubepods/burstable/pod7/worker (deleted)\n",
        // It is ending.
        "0::/\n",
    ] {
        assert!(!stranger(own, inside), "{inside}");
    }
    for outside in [
        "0::/kubepods/burstable/pod7/worker2\n",
        "0::/kubepods/burstable/pod7/debugger\n",
        "0::/kubepods/burstable/pod7\n",
        "0::/system.slice\n",
    ] {
        assert!(stranger(own, outside), "{outside}");
    }
}

#[test]
fn in_hierarchies_of_version_1() {
    let own = "9:name=systemd:/\n8:pids:/pod7/w\n4:memory:/pod7/w\n3:cpu,cpuacct:/pod7/w\n2:misc:/\n0::/\n";
    let other = "9:name=systemd:/\n8:pids:/pod7/d\n4:memory:/pod7/d\n3:cpu,cpuacct:/pod7/d\n2:misc:/\n0::/\n";
    assert!(stranger(own, other));
    assert!(!stranger(own, own));
    // A worker that may has moved its child in one of them.
    assert!(!stranger(
        own,
        "8:pids:/elsewhere\n4:memory:/pod7/w\n3:cpu,cpuacct:/pod7/w\n"
    ));
    // It is ending.
    assert!(!stranger(
        own,
        "9:name=systemd:/\n8:pids:/\n4:memory:/\n3:cpu,cpuacct:/\n0::/\n"
    ));
}

#[test]
fn the_runtimes_own_place_in_a_hybrid_system_says_nothing() {
    let runtime = "1:name=systemd:/system.slice/containerd.service\n0::/system.slice/containerd.service\n";
    assert!(stranger(
        &format!("8:pids:/pod7/w\n{runtime}"),
        &format!("8:pids:/pod7/d\n{runtime}")
    ));
    // Nor does it where cgroups are nobody's.
    assert!(!stranger("8:pids:/\n0::/\n", "8:pids:/\n0::/user\n"));
}

#[test]
fn what_cannot_be_told_is_the_workers() {
    let own = "0::/pod7/w\n";
    for odd in ["", "\n", "0::", "0", "x", "0:/pod7/d", "8:pids:/pod7/d\n"] {
        assert!(!stranger(own, odd), "{odd:?}");
    }
}

#[test]
fn files_are_read_up_to_a_bound() {
    let dir = tempfile::tempdir().expect("tempdir");
    let process = |pid: &str, text: &str| {
        let at = dir.path().join(pid);
        std::fs::create_dir(&at).expect("its folder");
        std::fs::write(at.join("cgroup"), text).expect("its cgroup");
    };
    process("self", "4:memory:/pod7/w\n");
    process("7", "4:memory:/pod7/d\n");
    process("8", "4:memory:/pod7/w/sub\n");
    // Its path goes on behind the bound, and nothing is concluded from the part before.
    process("9", &format!("4:memory:/pod7/{}\n", "d".repeat(MAX_TEXT)));
    let own = Cgroup::own(dir.path()).expect("its own");
    let strangers: Vec<i32> = (6..=9).filter(|pid| own.is_stranger(dir.path(), *pid)).collect();
    assert_eq!(strangers, [7]);
    assert!(Cgroup::own(&dir.path().join("8")).is_none());
}
