//! What a process inherits besides its command, environment, working directory and streams. A rank
//! is started from a standby only if it inherits the same as the standby has inherited from the
//! agent.
//!
//! The agent reads most of it in `/proc`. A caller reports the rest itself. What neither of them
//! can see, such as rules of Landlock, is not compared.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sys;

/// Lines of `/proc/<pid>/status` that a process inherits.
const LINES: [&str; 14] = [
    "Uid",
    "Gid",
    "Groups",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "NoNewPrivs",
    "Seccomp",
    "Seccomp_filters",
    "THP_enabled",
    "Cpus_allowed",
    "Mems_allowed",
];
/// Fields of `/proc/<pid>/stat`, counted after the name.
const FIELDS: [(&str, usize); 3] = [("nice", 16), ("rt_priority", 37), ("policy", 38)];
/// Files of `/proc/<pid>` that are compared as they are.
const FILES: [&str; 4] = ["oom_score_adj", "limits", "cgroup", "attr/current"];
/// Links of `/proc/<pid>`.
const LINKS: [&str; 10] = [
    "ns/cgroup",
    "ns/ipc",
    "ns/mnt",
    "ns/net",
    "ns/pid",
    "ns/pid_for_children",
    "ns/time",
    "ns/time_for_children",
    "ns/user",
    "ns/uts",
];
/// Signals that a program cannot have inherited: SIGPIPE, which std ignores here, and two that the
/// C library keeps for itself.
const OUR_OWN: u64 = 1 << (libc::SIGPIPE - 1) | 0b11 << 31;

/// What a process has inherited: names, and values to compare. A value that the kernel does not
/// have, or that may not be read, is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inherited(Vec<(&'static str, String)>);

impl Inherited {
    /// What this process has inherited. `None` if it cannot be read.
    pub(super) fn own() -> Option<Self> {
        Self::at(Path::new("/proc/self"))
    }

    /// What another process has inherited.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::at(Path::new(&format!("/proc/{pid}")))
    }

    fn at(proc: &Path) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(proc.join(name)).ok();
        let (status, stat) = (read("status")?, read("stat")?);
        let line = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let link = |name: &str| fs::read_link(proc.join(name)).unwrap_or_default();
        let root = fs::metadata(proc.join("root"));
        let root = root.map(|found| format!("{} {}", found.dev(), found.ino()));
        let lines = LINES.map(|name| (name, line(name).unwrap_or_default().to_owned()));
        let fields = FIELDS.map(|(name, at)| (name, fields.get(at).copied().unwrap_or_default().to_owned()));
        let files = FILES.map(|name| (name, read(name).unwrap_or_default()));
        let links = LINKS.map(|name| (name, link(name).to_string_lossy().into_owned()));
        let all = lines.into_iter().chain(fields).chain(files).chain(links);
        Some(Self(all.chain([("root", root.unwrap_or_default())]).collect()))
    }

    /// The name of a value that is different in another process.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let mut pairs = self.0.iter().zip(&other.0);
        pairs.find_map(|(own, other)| (own != other).then_some(own.0))
    }
}

/// What only a process itself can tell of what it has inherited, as a text to compare.
pub(crate) fn unseen() -> String {
    format!(
        "{:?} {:?} {:?}",
        sys::personality(),
        sys::io_priority(),
        sys::memory_policy()
    )
}

/// The umask of this process, if no signal is blocked or ignored that a program usually begins
/// with. Otherwise `None`. Call it before this process blocks any signal.
pub(crate) fn usual_umask() -> Option<String> {
    usual(&fs::read_to_string("/proc/self/status").ok()?)
}

fn usual(status: &str) -> Option<String> {
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    let mask = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let usual = mask("SigBlk:")? == 0 && mask("SigIgn:")? & !OUR_OWN == 0;
    let umask = u32::from_str_radix(field("Umask:")?, 8).ok()?;
    usual.then(|| umask.to_string())
}

/// True if nothing but the standard streams is open.
pub(crate) fn only_streams() -> bool {
    let folder = Path::new("/proc/self/fd");
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let numbers: Vec<i32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    // The listing's own descriptor is closed again.
    let open = |number: &i32| fs::symlink_metadata(folder.join(number.to_string())).is_ok();
    !numbers.iter().any(|number| *number > 2 && open(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that a shell has become, after it did this.
    fn after(script: &str) -> Inherited {
        let script = format!("{script} exec sleep 100");
        let mut child = std::process::Command::new("sh")
            .args(["-c", &script])
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let is_asleep =
            || fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.starts_with("sleep"));
        while !is_asleep() {
            std::thread::yield_now();
        }
        let found = Inherited::of(pid);
        child.kill().unwrap();
        child.wait().unwrap();
        found.unwrap()
    }

    #[test]
    fn a_child_has_what_its_parent_has() {
        let own = Inherited::own().unwrap();
        for name in ["Uid", "Cpus_allowed", "limits", "ns/mnt", "root", "policy"] {
            let found = own.0.iter().find(|(found, _)| *found == name).unwrap();
            assert_ne!(found.1, "", "{name}");
        }
        assert_eq!(own.difference(&after("")), None);
        assert_eq!(Inherited::at(Path::new("/missing")), None);
        assert_eq!(unseen(), unseen());
    }

    #[test]
    fn what_differs_is_named() {
        let own = Inherited::own().unwrap();
        assert_eq!(own.difference(&after("ulimit -n 77;")), Some("limits"));
        assert_eq!(
            own.difference(&after("exec chrt --batch 0 sleep 100;")),
            Some("policy")
        );
    }

    #[test]
    fn signals_that_are_blocked_or_ignored_are_unusual() {
        let status = |blocked: &str, ignored: &str| {
            format!("Name:\tx\nUmask:\t0027\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n")
        };
        assert_eq!(usual(&status("0", "0000000180001000")).as_deref(), Some("23"));
        assert_eq!(usual(&status("0", "1")), None);
        assert_eq!(usual(&status("4000", "0")), None);
        assert_eq!(usual("SigBlk:\t0\n"), None);
    }
}
