//! What a process inherits besides its command, environment, working directory and streams. A rank
//! is started from a standby only if it inherits the same as the standby has inherited from the
//! agent.

use std::fs;
use std::path::Path;

/// Lines of `/proc/<pid>/status` that a process inherits.
const LINES: [&str; 12] = [
    "Uid:",
    "Gid:",
    "Groups:",
    "CapInh:",
    "CapPrm:",
    "CapEff:",
    "CapBnd:",
    "CapAmb:",
    "NoNewPrivs:",
    "Seccomp:",
    "Cpus_allowed:",
    "Mems_allowed:",
];
/// Field of `/proc/<pid>/stat` with the nice value, counted after the name.
const NICE: usize = 16;
/// Signals that a program cannot have inherited: SIGPIPE, which std ignores here, and two that the
/// C library keeps for itself.
const OUR_OWN: u64 = 1 << (libc::SIGPIPE - 1) | 0b11 << 31;

/// What this process has inherited, as a text to compare. `None` if it cannot be read.
pub(crate) fn own() -> Option<String> {
    at(Path::new("/proc/self"))
}

fn at(proc: &Path) -> Option<String> {
    let read = |name: &str| fs::read_to_string(proc.join(name)).ok();
    let status = read("status")?;
    let mut text: String = status
        .lines()
        .filter(|line| LINES.iter().any(|name| line.starts_with(name)))
        .flat_map(|line| [line, "\n"])
        .collect();
    let stat = read("stat")?;
    text += stat.rsplit_once(") ")?.1.split(' ').nth(NICE)?;
    text.push('\n');
    text += &read("oom_score_adj")?;
    text += &read("limits")?;
    Some(text)
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

    #[test]
    fn it_is_the_same_for_a_child_and_not_for_another_limit() {
        let text = own().unwrap();
        for name in ["Uid:", "Cpus_allowed:", "Max open files"] {
            assert!(text.contains(name), "{text}");
        }
        let child = |before: &str| {
            let script = format!("{before} exec sleep 100");
            let mut child = std::process::Command::new("sh")
                .args(["-c", &script])
                .spawn()
                .unwrap();
            let proc = format!("/proc/{}", child.id());
            while !fs::read_to_string(format!("{proc}/cmdline"))
                .unwrap()
                .starts_with("sleep")
            {
                std::thread::yield_now();
            }
            let text = at(Path::new(&proc));
            child.kill().unwrap();
            child.wait().unwrap();
            text.unwrap()
        };
        assert_eq!(child(""), text);
        assert_ne!(child("ulimit -n 77;"), text);
        assert_eq!(at(Path::new("/missing")), None);
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
