//! A process and its descendants, by `/proc`: what they use, and how soon the kernel ends them when
//! memory is short.

use std::fs;
use std::io::{self, ErrorKind};
use std::time::Duration;

use super::memory::resident_kib;

/// The score of a process that the kernel ends first.
const FIRST: i32 = 1000;
/// Ticks per second in `/proc/<pid>/stat`: USER_HZ, which is the same on all our platforms.
const TICKS_PER_SECOND: u32 = 100;
/// Index of the first of these times, counted from the state: utime, stime, cutime and cstime.
const TIMES: usize = 11;
/// Most processes that are visited.
const MOST: usize = 4096;

/// Resources that a process and its descendants have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) memory_kib: u64,
    /// CPU time, with that of children that have ended.
    pub(super) time: Duration,
}

impl Usage {
    /// The usage of this process and its descendants, as far as they can be read.
    pub(super) fn of(pid: i32) -> Self {
        let mut all = Self::default();
        walk(pid, |pid| {
            all.memory_kib += resident_kib(pid);
            all.time += time(pid).unwrap_or_default();
        });
        all
    }
}

/// Makes a process, and those that it starts from now on, the first to be ended when memory is
/// short. Returns its former score, if that could be changed.
pub(super) fn expose(pid: i32) -> Option<i32> {
    // Otherwise the PID may be that of another process.
    let own = fs::read_link("/proc/self").ok()?;
    if own.as_os_str() != std::process::id().to_string().as_str() {
        return None;
    }
    let before = score(pid).ok()?;
    set_score(pid, FIRST).ok()?;
    Some(before)
}

/// Gives a process that was [exposed](expose), and its descendants, their former score. Returns
/// false if one of them keeps the raised score.
pub(super) fn shelter(pid: i32, before: i32) -> bool {
    let mut done = true;
    // A child that is started meanwhile inherits the restored score of its parent.
    walk(pid, |pid| {
        let kept = match score(pid) {
            Ok(FIRST) => set_score(pid, before),
            // The process has chosen this score itself.
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        done &= kept.map_or_else(|error| has_gone(&error), |()| true);
    });
    done
}

/// Visits a process, and then those that it has started: each before its children are listed.
fn walk(pid: i32, mut visit: impl FnMut(i32)) {
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len().min(MOST) {
        let pid = found[at];
        at += 1;
        visit(pid);
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let children = text.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            found.extend(children);
        }
    }
}

fn score(pid: i32) -> io::Result<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))?;
    text.trim().parse().map_err(io::Error::other)
}

fn set_score(pid: i32, score: i32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/oom_score_adj"), score.to_string())
}

fn has_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn time(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let times = fields.split(' ').skip(TIMES).take(4);
    let ticks: u64 = times.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_secs(ticks) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// A shell with a child, until it is dropped.
    struct Parent(Child, i32);

    impl Parent {
        fn new() -> Self {
            let shell = Command::new("sh")
                .args(["-c", "sleep 1000; exit 1"])
                .spawn()
                .unwrap();
            let mut own = Self(shell, 0);
            let pid = own.pid();
            while own.1 == 0 {
                walk(pid, |child| own.1 = if child == pid { own.1 } else { child });
            }
            own
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }
    }

    impl Drop for Parent {
        fn drop(&mut self) {
            let _ = crate::sys::kill(self.1, libc::SIGKILL);
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_a_process_has_started_counts() {
        let parent = Parent::new();
        let own = Usage::of(parent.pid());
        assert!(own.memory_kib > resident_kib(parent.1), "{own:?}");
        assert!(resident_kib(parent.1) > 0);
        assert_eq!(Usage::of(-5), Usage::default());
        let end = std::time::Instant::now() + Duration::from_millis(50);
        while std::time::Instant::now() < end {}
        let this = Usage::of(std::process::id().cast_signed());
        assert!(this.time >= Duration::from_millis(20), "{this:?}");
    }

    #[test]
    fn all_get_their_score_back_unless_they_have_chosen_their_own() {
        let parent = Parent::new();
        let before = score(parent.pid()).unwrap();
        assert_eq!(expose(parent.pid()), Some(before));
        // As if it had been started after that.
        set_score(parent.1, FIRST).unwrap();
        assert!(shelter(parent.pid(), before));
        assert_eq!(score(parent.pid()).unwrap(), before);
        assert_eq!(score(parent.1).unwrap(), before);
        set_score(parent.1, 998).unwrap();
        assert!(shelter(parent.pid(), before));
        assert_eq!(score(parent.1).unwrap(), 998);
    }

    #[test]
    fn one_that_has_gone_has_nothing_to_get_back() {
        assert_eq!(expose(-5), None);
        assert!(shelter(-5, 0));
    }
}
