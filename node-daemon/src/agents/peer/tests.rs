use proptest::prelude::*;

use super::*;

pub(super) const ID: &str = "0f6c1c8b8a4c4f6fb8f05f6f1c8b8a4c4f6fb8f05f6f1c8b8a4c4f6fb8f05f6f";

pub(super) fn proc_with(pid: i32, cgroup: &str, nspid: &str) -> (tempfile::TempDir, ProcPeerCheck) {
    let dir = tempfile::tempdir().unwrap();
    let entry = dir.path().join(pid.to_string());
    fs::create_dir(&entry).unwrap();
    fs::write(entry.join("cgroup"), cgroup).unwrap();
    fs::write(entry.join("status"), format!("Name:\tx\nNSpid:\t{nspid}\n")).unwrap();
    fs::write(entry.join("mountinfo"), mounts::tests::INJECTED).unwrap();
    let check = ProcPeerCheck {
        proc_root: dir.path().to_owned(),
    };
    (dir, check)
}

#[test]
fn cgroup_paths_of_both_drivers_are_recognised() {
    let id = ContainerId::from(ID);
    for cgroup in [
        format!("0::/kubepods/besteffort/pod1234/{ID}\n"),
        format!("0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-{ID}.scope\n"),
        format!("12:pids:/kubepods/pod1/{ID}\n11:memory:/kubepods/pod1/{ID}\n"),
        format!("0::/../../pod1/{ID}/nested\n"),
    ] {
        assert!(in_container(&cgroup, &id), "{cgroup}");
    }
}

#[test]
fn the_container_of_a_process_is_found_by_its_cgroup() {
    for cgroup in [
        format!("0::/kubepods/besteffort/pod1234/{ID}\n"),
        format!("0::/kubepods.slice/kubepods-pod12.slice/cri-containerd-{ID}.scope\n"),
    ] {
        let (_dir, check) = proc_with(77, &cgroup, "77\t1");
        assert_eq!(
            check.container(&Peer::numbered(Some(77))).unwrap(),
            ContainerId::from(ID)
        );
    }
    let (_dir, check) = proc_with(77, "0::/user.slice/session-0123.scope\n", "77\t1");
    assert!(matches!(
        check.container(&Peer::numbered(Some(77))),
        Err(PeerError::NoContainer(77))
    ));
    assert!(matches!(
        check.container(&Peer::numbered(None)),
        Err(PeerError::Invisible)
    ));
}

#[test]
fn other_containers_and_odd_ids_are_not() {
    let cgroup = format!("0::/kubepods/pod1/{ID}\n");
    for id in [
        "",
        "pod1",
        "kubepods",
        &ID[..12],
        "0::/kubepods/pod1",
        "../../../../x",
    ] {
        assert!(!in_container(&cgroup, &ContainerId::from(id)), "{id}");
    }
}

#[test]
fn the_agent_is_the_first_process_of_its_container() {
    let cgroup = format!("0::/kubepods/pod1/{ID}\n");
    let (id, pod) = (ContainerId::from(ID), PodUid::from("1"));
    let (_dir, check) = proc_with(77, &cgroup, "77\t1");
    assert_eq!(check.check(&Peer::numbered(Some(77)), &id, &pod).unwrap(), 77);
    // One of the worker's processes. It may run the agent's own binary, in the same mounts, as the
    // stand-ins for torchrun's ranks do. The last two are first in a pid namespace that they have
    // made themselves; the one before is not in a container's.
    for nspid in ["77\t12", "1", "77\t12\t1", "77\t1\t1"] {
        let (_dir, check) = proc_with(77, &cgroup, nspid);
        assert!(
            matches!(
                check.check(&Peer::numbered(Some(77)), &id, &pod),
                Err(PeerError::NotInit(77))
            ),
            "{nspid}"
        );
    }
    let (_dir, check) = proc_with(77, "0::/user.slice\n", "77\t1");
    assert!(matches!(
        check.check(&Peer::numbered(Some(77)), &id, &pod),
        Err(PeerError::OtherContainer { .. })
    ));
    assert!(matches!(
        check.check(&Peer::numbered(Some(78)), &id, &pod),
        Err(PeerError::Unreadable { .. })
    ));
    for pid in [None, Some(0), Some(-1)] {
        assert!(matches!(
            check.check(&Peer::numbered(pid), &id, &pod),
            Err(PeerError::Invisible)
        ));
    }
}

#[test]
fn a_first_process_that_may_be_another_program_is_refused() {
    let cgroup = format!("0::/kubepods/pod1/{ID}\n");
    let (id, pod) = (ContainerId::from(ID), PodUid::from("1"));
    let (dir, check) = proc_with(77, &cgroup, "77\t1");
    let refused = || check.check(&Peer::numbered(Some(77)), &id, &pod).unwrap_err();
    let mounts = dir.path().join("77/mountinfo");
    let over = "700 620 254:1 /evil /.lockstep/bin/lockstep-pod-agent ro - ext4 /dev/vda1 rw\n";
    fs::write(&mounts, format!("{}{over}", mounts::tests::INJECTED)).unwrap();
    assert_eq!(
        refused().to_string(),
        "process 77 cannot be verified as the agent: something is mounted over the agent"
    );
    // Nor one whose namespaces are unknown.
    fs::write(&mounts, mounts::tests::INJECTED.repeat(2000)).unwrap();
    assert!(matches!(refused(), PeerError::Unreadable { .. }));
    fs::remove_file(&mounts).unwrap();
    assert!(matches!(refused(), PeerError::Unreadable { .. }));
}

#[test]
fn the_agent_of_one_pod_cannot_use_the_socket_of_another() {
    let (mine, yours) = (
        "6f1a7a35-0b9e-4d0e-9f5e-0a6f5b1f2c3d",
        "c0ffee00-0b9e-4d0e-9f5e-0a6f5b1f2c3d",
    );
    let id = ContainerId::from(ID);
    for cgroup in [
        format!("0::/kubepods/besteffort/pod{mine}/{ID}\n"),
        format!("0::/../../pod{mine}/{ID}\n"),
        format!(
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/cri-containerd-{ID}.scope\n",
            mine.replace('-', "_")
        ),
    ] {
        let (_dir, check) = proc_with(77, &cgroup, "77\t1");
        assert_eq!(
            check.check(&Peer::numbered(Some(77)), &id, &mine.into()).unwrap(),
            77
        );
        let refused = check
            .check(&Peer::numbered(Some(77)), &id, &yours.into())
            .unwrap_err();
        assert!(refused.to_string().contains(mine), "{refused}");
    }
}

#[test]
fn the_pod_and_the_container_are_those_that_the_kubelet_named() {
    let uid = "6f1a7a35-0b9e-4d0e-9f5e-0a6f5b1f2c3d";
    let yours = "c0ffee00-0b9e-4d0e-9f5e-0a6f5b1f2c3d";
    let theirs = ID.replace('0', "9");
    let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
    for (path, believed) in [
        (format!("/kubepods/pod{uid}/{ID}"), true),
        (format!("/kubepods/burstable/pod{uid}/{ID}/nested"), true),
        // With the systemd driver, of containerd and of CRI-O; guaranteed pods have no class.
        (
            format!("/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{ID}.scope"),
            true,
        ),
        (format!("/kubepods.slice/{slice}/crio-{ID}.scope/container"), true),
        // Seen from another cgroup namespace, and of a node that is a container itself.
        (format!("/../../pod{uid}/{ID}"), true),
        (format!("/../{slice}/cri-containerd-{ID}.scope"), true),
        (
            format!("/docker/{theirs}/kubelet/kubepods/besteffort/pod{uid}/{ID}"),
            true,
        ),
        // Names that a container that may make cgroups could choose.
        (format!("/kubepods/pod{yours}/{theirs}/pod{uid}/{ID}"), false),
        (format!("/kubepods/pod{yours}/{theirs}/{ID}"), false),
        (format!("/kubepods/pod{uid}/{theirs}/{ID}"), false),
        (format!("/kubepods/pod{yours}/{ID}"), false),
        // Of no pod.
        (format!("/{ID}"), false),
        (format!("/docker/{ID}"), false),
        (format!("/system.slice/docker-{ID}.scope"), false),
        (format!("/kubepods/pod/{ID}"), false),
        (format!("/kubepods/podx{uid}/{ID}"), false),
    ] {
        // Only version 2, version 1, and both.
        for cgroup in [
            format!("0::{path}\n"),
            format!("9:name=systemd:{path}\n8:cpu,cpuacct:{path}\n"),
            format!("2:pids:/\n1:name=systemd:{path}\n0::/\n"),
        ] {
            let (_dir, check) = proc_with(77, &cgroup, "77\t1");
            let checked = check.check(&Peer::numbered(Some(77)), &ID.into(), &uid.into());
            assert_eq!(checked.is_ok(), believed, "{cgroup}: {checked:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_cgroup_text_names_a_container_of_a_pod_or_none(
        text in "(0::|1:name=systemd:)?(/[a-f0-9_.-]{0,20}|/pod[a-f0-9-]{0,40}|/x-[a-z0-9]{0,20}.scope|\\n|\\PC){0,12}",
    ) {
        if let Some((pod, container)) = place_of(&text) {
            prop_assert!(!pod.is_empty() && pod.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()));
            prop_assert!(container.len() >= 12 && container.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
        let is_first = is_first_of_container(&format!("NSpid:{text}"));
        let pids = text.lines().next().unwrap_or_default().split_whitespace();
        prop_assert!(!is_first || pids.count() == 2);
    }

    #[test]
    fn other_mounts_never_hide_one_over_the_agent(
        others in prop::collection::vec("([0-9a-z:/,.-]{1,12} ){4}/[a-z/ .-]{0,20} - (proc|ext4) x y|\\PC{0,60}", 0..12),
        over in "/[.]lockstep(/bin(/[a-z]{0,8})?)?",
        at in any::<prop::sample::Index>(),
    ) {
        let mut lines: Vec<&str> = mounts::tests::INJECTED.lines().collect();
        lines.extend(others.iter().map(String::as_str));
        let over = format!("700 620 254:1 /evil {over} rw,relatime - ext4 /dev/vda1 rw");
        lines.insert(at.index(lines.len() + 1), &over);
        prop_assert!(mounts::show_agent(&lines.join("\n")).is_err());
    }
}
