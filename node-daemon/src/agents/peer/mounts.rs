//! Verifies by a container's mounts that its first process is the agent. The kernel shows the
//! running file itself only to processes that may trace it.
//!
//! The runtime has started `/.lockstep/bin/lockstep-pod-agent`. The mount at that directory is the
//! daemon's, or comes with the pod's template: a container with its own mount there gets no agent
//! (`nri/inject.rs`). Two ways to deceive the daemon are left. Symbolic links in the image may
//! redirect the daemon's mount or the start; then no mount is at exactly that path, or one lies
//! over the file. Or the process has moved its root to a place that looks right; that root has no
//! `/proc`.

use lockstep_protocol::pods::BIN_DIR;

/// Checks that these mounts, from a process's `mountinfo`, are those of a container that runs the
/// agent.
///
/// # Errors
/// The reason why they are not.
pub(super) fn show_agent(mountinfo: &str) -> Result<(), &'static str> {
    let mut agents = 0;
    let mut has_proc = false;
    for line in mountinfo.lines() {
        let (at, kind) = mount(line).ok_or("its mounts cannot be read")?;
        has_proc |= at == "/proc" && kind == "proc";
        if at == BIN_DIR {
            agents += 1;
        } else if is_over(at, BIN_DIR) {
            return Err("something is mounted over the agent");
        }
    }
    match (agents, has_proc) {
        (1, true) => Ok(()),
        (0, _) => Err("the agent is not mounted where it is started"),
        (1, false) => Err("its root is not that of its container"),
        _ => Err("something is mounted over the agent"),
    }
}

/// True if a mount at `at` may hide what the agent's directory holds: it is inside the directory,
/// or the directory is inside it. The root of the container does not count.
fn is_over(at: &str, agents: &str) -> bool {
    let within = |inner: &str, outer: &str| {
        let rest = inner.strip_prefix(outer);
        outer != "/" && rest.is_some_and(|rest| rest.starts_with('/'))
    };
    within(at, agents) || within(agents, at)
}

/// Mount point and file system type of a line:
/// `id parent major:minor root AT options [fields] - KIND source options`.
fn mount(line: &str) -> Option<(&str, &str)> {
    let at = line.split(' ').nth(4)?;
    let (_, rest) = line.split_once(" - ")?;
    Some((at, rest.split(' ').next()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Mounts of a container with an injected agent, as containerd makes them.
    pub(in super::super) const INJECTED: &str = "\
610 540 0:72 / / rw,relatime master:170 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d
611 610 0:75 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
612 610 0:76 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
620 610 0:26 /lockstep/bin/0123456789ab /.lockstep/bin ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=1000k,mode=755
621 610 0:26 /lockstep/pods/6f1a /.lockstep/run ro,nosuid,nodev,relatime - tmpfs tmpfs rw,size=1000k,mode=755
622 610 0:80 / /.lockstep/heartbeat rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,size=64k,nr_inodes=16
623 610 254:1 /var/lib/kubelet/pods/6f1a/volumes/kubernetes.io~empty-dir/my\\040data /data rw,relatime - ext4 /dev/vda1 rw
540 611 0:75 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
";

    fn with(line: &str) -> String {
        format!("{INJECTED}{line}\n")
    }

    #[test]
    fn a_container_with_its_agent_is_accepted() {
        assert_eq!(show_agent(INJECTED), Ok(()));
        // Mounted by the pod's template.
        let volume = "/var/lib/kubelet/pods/6f1a/volumes/kubernetes.io~empty-dir/lockstep-agent";
        let by_template = INJECTED.replace("/lockstep/bin/0123456789ab", volume);
        assert_eq!(show_agent(&by_template), Ok(()));
        for beside in [
            "/.lockstep/binary",
            "/.lockstep/standby",
            "/data/.lockstep/bin/lockstep-pod-agent",
            "/.lock",
        ] {
            let beside = with(&format!("700 610 254:1 /x {beside} rw - ext4 /dev/vda1 rw"));
            assert_eq!(show_agent(&beside), Ok(()), "{beside}");
        }
    }

    #[test]
    fn a_mount_over_the_agent_is_refused() {
        for over in [
            "/.lockstep/bin/lockstep-pod-agent",
            "/.lockstep/bin/lockstep-pod-agent//deleted",
            "/.lockstep/bin",
            "/.lockstep",
        ] {
            let over = with(&format!(
                "700 620 254:1 /evil {over} rw,relatime - ext4 /dev/vda1 rw"
            ));
            assert_eq!(
                show_agent(&over),
                Err("something is mounted over the agent"),
                "{over}"
            );
        }
    }

    #[test]
    fn links_in_the_image_and_another_root_are_refused() {
        // A link has redirected the daemon's mount.
        let elsewhere = INJECTED.replace(" /.lockstep/", " /data/");
        let nowhere = Err("the agent is not mounted where it is started");
        assert_eq!(show_agent(&elsewhere), nowhere);
        assert_eq!(show_agent(""), nowhere);
        // The process has moved to a root that looks like the container's.
        let other_root: String = INJECTED
            .lines()
            .filter(|line| !line.contains(" /proc "))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(
            show_agent(&other_root),
            Err("its root is not that of its container")
        );
        assert_eq!(show_agent("nonsense"), Err("its mounts cannot be read"));
    }
}
