//! Recognises processes of another container that have the agent as their parent: `kubectl debug
//! --target` starts a container in the worker's PID namespace, and what it leaves behind becomes a
//! child of PID 1.
//!
//! The cgroup that the container runtime made tells them apart. A process that cannot be told apart
//! counts as the worker's own: it is better to end one process too many than to leave one of a
//! former attempt beside the next.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest `/proc/<pid>/cgroup` that is read, in bytes. Nothing of interest comes after that.
const MAX_TEXT: usize = 16 << 10;
/// Controllers in whose hierarchies (cgroup v1) every runtime places a container. In others, such
/// as a hybrid system's `name=systemd`, it may be in the runtime's own cgroup.
const PLACED: [&str; 6] = ["memory", "pids", "cpu", "cpuset", "devices", "freezer"];

/// The cgroup of a container: its paths, as its first process sees them when it starts.
#[derive(Debug)]
pub(crate) struct Cgroup {
    lines: Vec<Line>,
}

/// One line of `/proc/<pid>/cgroup`.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// The controllers as listed; none for cgroup v2.
    controllers: String,
    path: String,
}

impl Cgroup {
    /// The cgroup of this process, before anything in the container can have moved it; none if it
    /// cannot be read, and then no process is a stranger.
    pub(crate) fn own(proc: &Path) -> Option<Self> {
        let text = read(&proc.join("self"))?;
        Some(Self::parse(&text)).filter(|cgroup| !cgroup.lines.is_empty())
    }

    /// From the text of `/proc/<pid>/cgroup`. With cgroup v1, the hierarchies in which containers
    /// are placed count; with pure v2, its only one.
    fn parse(text: &str) -> Self {
        let (mut placed, mut unified) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            if !path.starts_with('/') {
                continue;
            }
            let line = Line {
                controllers: controllers.to_owned(),
                path: path.to_owned(),
            };
            if controllers.is_empty() {
                unified.push(line);
            } else if controllers.split(',').any(|name| PLACED.contains(&name)) {
                placed.push(line);
            }
        }
        Self {
            lines: if placed.is_empty() { unified } else { placed },
        }
    }

    /// True if this process of the PID namespace belongs to another container.
    pub(crate) fn is_stranger(&self, proc: &Path, pid: i32) -> bool {
        read(&proc.join(pid.to_string())).is_some_and(|text| self.excludes(&text))
    }

    /// True if a process with this text is outside in every hierarchy that tells the containers
    /// apart.
    fn excludes(&self, text: &str) -> bool {
        let mut outside = false;
        for line in &Self::parse(text).lines {
            let Some(own) = self.lines.iter().find(|own| own.controllers == line.controllers) else {
                continue;
            };
            // The kernel shows `/` for a process that is ending (v1), and for one that was placed
            // nowhere. Outside a cgroup namespace, whose own root it is, that proves nothing.
            if line.path == "/" {
                continue;
            }
            if is_within(&line.path, &own.path) {
                return false;
            }
            outside = true;
        }
        outside
    }
}

/// True if a path is this one or below it. In a cgroup namespace those outside begin with `/..`.
fn is_within(path: &str, own: &str) -> bool {
    let leaves = path == "/.." || path.starts_with("/../");
    if own == "/" {
        return !leaves;
    }
    path.strip_prefix(own)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest == " (deleted)")
}

fn read(process: &Path) -> Option<String> {
    let mut text = Vec::new();
    let file = File::open(process.join("cgroup")).ok()?;
    file.take(MAX_TEXT as u64).read_to_end(&mut text).ok()?;
    if text.len() == MAX_TEXT {
        // The last line may be cut off.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    }
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the second belongs to another container, for an agent that started as the first.
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
        let own =
            "9:name=systemd:/\n8:pids:/pod7/w\n4:memory:/pod7/w\n3:cpu,cpuacct:/pod7/w\n2:misc:/\n0::/\n";
        let other =
            "9:name=systemd:/\n8:pids:/pod7/d\n4:memory:/pod7/d\n3:cpu,cpuacct:/pod7/d\n2:misc:/\n0::/\n";
        assert!(stranger(own, other));
        assert!(!stranger(own, own));
        // A worker with the permission has moved its child in one of them.
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
    fn the_runtimes_own_cgroup_in_a_hybrid_system_proves_nothing() {
        let runtime =
            "1:name=systemd:/system.slice/containerd.service\n0::/system.slice/containerd.service\n";
        assert!(stranger(
            &format!("8:pids:/pod7/w\n{runtime}"),
            &format!("8:pids:/pod7/d\n{runtime}")
        ));
        // Nor does it if no container has cgroups of its own.
        assert!(!stranger("8:pids:/\n0::/\n", "8:pids:/\n0::/user\n"));
    }

    #[test]
    fn unclear_processes_count_as_the_workers() {
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
        // Its path continues beyond the bound, and the part before proves nothing.
        process("9", &format!("4:memory:/pod7/{}\n", "d".repeat(MAX_TEXT)));
        let own = Cgroup::own(dir.path()).expect("its own");
        let strangers: Vec<i32> = (6..=9).filter(|pid| own.is_stranger(dir.path(), *pid)).collect();
        assert_eq!(strangers, [7]);
        assert!(Cgroup::own(&dir.path().join("8")).is_none());
    }
}
