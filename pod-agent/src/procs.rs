//! The worker's process tree: every descendant of the agent, in any session or process group,
//! daemonised or not.
//!
//! Orphans become children of PID 1, so a process cannot leave the tree by double forking. What the
//! runtime executes in the container from outside (`kubectl exec`, probes) has parent 0 and is not
//! part of it, nor are its descendants while it lives. What another container leaves behind in this
//! PID namespace (`kubectl debug --target`) has the agent as its parent, but another cgroup. The
//! agent neither signals such strangers and their descendants nor waits for them.
//!
//! Signals go by PID. A child of the agent keeps its PID until the agent reaps it, which it does
//! not do during a scan. Any other PID that is reused between the scan and the signal still belongs
//! to this container: the agent reaches no other PID namespace, and has not started the next worker
//! yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::cgroup::Cgroup;
use crate::machine::KillReport;
use crate::sockets;
use crate::sys;

/// Scans per round of SIGKILL. Few, because the dead are reaped only between rounds, and their
/// number slows every scan.
const PASSES: usize = 4;
/// Most processes named in a note.
const NAMED: usize = 5;

/// The tree of one agent.
#[derive(Debug)]
pub(crate) struct Procs {
    /// The agent's own PID: 1, except when it runs outside a container.
    root: i32,
    /// `/proc`, or another directory in tests.
    proc: PathBuf,
    /// The container's cgroup, if it is known.
    cgroup: Option<Cgroup>,
    /// Set if the last scan found strangers among the agent's children.
    strangers: bool,
    /// Children of the agent that belong to no attempt: standbys. Treated as strangers.
    spared: BTreeSet<i32>,
    /// True if connections can be reset.
    resets: bool,
    /// Set once the connections of what is being killed are set to be reset.
    reset: bool,
}

/// What a scan of `/proc` found.
#[derive(Debug, Default)]
struct Scan {
    stats: BTreeMap<i32, Stat>,
    /// Processes of another container that are children of the agent, or are about to become its
    /// children as orphans.
    strangers: BTreeSet<i32>,
}

/// One line of `/proc/<pid>/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    pid: i32,
    name: String,
    state: char,
    parent: i32,
    group: i32,
}

impl Procs {
    pub(crate) fn new(root: i32) -> Self {
        Self::at(root, PathBuf::from("/proc"))
    }

    fn at(root: i32, proc: PathBuf) -> Self {
        Self {
            root,
            cgroup: Cgroup::own(&proc),
            resets: sockets::may_inspect(&proc),
            proc,
            strangers: false,
            spared: BTreeSet::new(),
            reset: false,
        }
    }

    /// Notes that nothing is left of the tree. Processes that come later belong to the next
    /// attempt.
    pub(crate) fn emptied(&mut self) {
        self.reset = false;
    }

    /// From now on these children of the agent, and their descendants, do not belong to the tree.
    pub(crate) fn spare(&mut self, pids: impl Iterator<Item = i32>) {
        self.spared = pids.collect();
    }

    /// Sends SIGTERM to every process of the tree once, and SIGCONT, so that stopped processes can
    /// act on it.
    ///
    /// A single pass: a process that appears now is a handler's clean-up.
    pub(crate) fn terminate(&mut self) {
        let seen = self.scan();
        let tree = members(&seen, self.root);
        if tree.is_empty() && !self.strangers {
            self.everything(libc::SIGTERM);
            self.everything(libc::SIGCONT);
        }
        if self.resets {
            let pids: Vec<i32> = tree.iter().map(|stat| stat.pid).collect();
            let doomed = |pid| sockets::dies_of_sigterm(&self.proc, pid);
            sockets::reset_at_end(&self.proc, &pids, doomed);
        }
        // Later, SIGKILL handles a process that has gone meanwhile, or that may not be signalled.
        for stat in tree {
            let _ = sys::kill(stat.pid, libc::SIGTERM);
            let _ = sys::kill(stat.pid, libc::SIGCONT);
        }
    }

    /// True if nothing is left of the tree although the agent has children: those are strangers.
    /// Cheap while no scan has found any.
    ///
    /// It takes two scans in a row. One scan may miss a process whose PID wrapped around to a place
    /// that was read already.
    pub(crate) fn only_strangers(&mut self) -> bool {
        (self.strangers || !self.spared.is_empty())
            && (0..2).all(|_| {
                let seen = self.scan();
                self.strangers && members(&seen, self.root).is_empty()
            })
    }

    /// One round of SIGKILL: until every process of the tree has got it, or the passes are used up.
    /// Returns `None` if no process of the tree is left, see [`Procs::only_strangers`].
    ///
    /// With `all`, it spares no process of the PID namespace. This is the last resort if processes
    /// fork faster than they can be listed.
    pub(crate) fn kill(&mut self, all: bool) -> Option<KillReport> {
        if all {
            self.everything(libc::SIGKILL);
        }
        if self.resets && !self.reset {
            self.reset = true;
            let seen = self.scan();
            let pids: Vec<i32> = members(&seen, self.root).iter().map(|stat| stat.pid).collect();
            sockets::reset_at_end(&self.proc, &pids, |_| true);
        }
        let mut killed = BTreeSet::new();
        for _ in 0..PASSES {
            // Orphans and descendants of what is known already are killed as they are read. PIDs
            // are listed in ascending order, so this overtakes a process that flees by forking.
            let mut tree = BTreeSet::from([self.root]);
            let mut fresh = false;
            let stats = scan(&self.proc, |stat| {
                let known = killed.contains(&stat.pid) || stat.parent != self.root;
                if stat.pid != self.root
                    && tree.contains(&stat.parent)
                    && (known || !self.is_stranger(stat.pid))
                {
                    tree.insert(stat.pid);
                    fresh |= !stat.is_dead() && killed.insert(stat.pid);
                    let _ = sys::kill(stat.pid, libc::SIGKILL);
                }
            });
            let seen = self.judge(stats);
            let tree = members(&seen, self.root);
            if tree.is_empty() && self.strangers {
                return (!self.only_strangers()).then(KillReport::default);
            }
            if tree.is_empty() {
                // This is called only while there are children, so /proc hides them.
                self.everything(libc::SIGKILL);
                return Some(KillReport {
                    unseen: true,
                    note: "processes that /proc does not show".to_owned(),
                    ..Default::default()
                });
            }
            // The kernel signals a group in one step, which no fork within it escapes.
            for group in groups(&seen.stats, &tree, self.root) {
                let _ = sys::kill(-group, libc::SIGKILL);
            }
            let alive: Vec<&Stat> = tree.into_iter().filter(|stat| !stat.is_dead()).collect();
            let mut denied = Vec::new();
            for stat in &alive {
                if sys::kill(stat.pid, libc::SIGKILL)
                    .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
                {
                    denied.push(*stat);
                }
                fresh |= killed.insert(stat.pid);
            }
            if !fresh {
                let note = if denied.is_empty() {
                    name(&alive)
                } else {
                    format!("not permitted to kill {}", name(&denied))
                };
                return Some(KillReport {
                    denied: !denied.is_empty(),
                    note,
                    ..Default::default()
                });
            }
        }
        Some(KillReport {
            forking: true,
            note: "processes that keep forking".to_owned(),
            ..Default::default()
        })
    }

    fn scan(&mut self) -> Scan {
        let stats = scan(&self.proc, |_| {});
        self.judge(stats)
    }

    /// Finds the strangers among these processes. It checks only the first process of a line of
    /// descent, since its descendants count as strangers too.
    fn judge(&mut self, stats: BTreeMap<i32, Stat>) -> Scan {
        let begins = |stat: &&Stat| {
            let orphan = stat.parent != 0 && !stats.contains_key(&stat.parent);
            stat.pid != self.root && (stat.parent == self.root || orphan)
        };
        let strangers: BTreeSet<i32> = stats
            .values()
            .filter(begins)
            .map(|stat| stat.pid)
            .filter(|pid| self.is_stranger(*pid))
            .collect();
        self.strangers = !strangers.is_empty();
        Scan { stats, strangers }
    }

    fn is_stranger(&self, pid: i32) -> bool {
        let other = |own: &Cgroup| own.is_stranger(&self.proc, pid);
        self.spared.contains(&pid) || self.cgroup.as_ref().is_some_and(other)
    }

    /// Signals every process of this PID namespace except the agent. Does so only in a container.
    fn everything(&self, signal: i32) {
        if self.root == 1 {
            // An error means that there is none.
            let _ = sys::kill(-1, signal);
        }
    }
}

impl Stat {
    /// True if it has ended and only waits to be reaped (or its first thread has ended: SIGKILL has
    /// reached the others as well).
    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Parses a line such as `12 (a (b) c) S 1 12 12 0 …`; the name may hold any character.
    fn parse(line: &str) -> Option<Self> {
        let (pid, rest) = line.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some(Self {
            pid: pid.parse().ok()?,
            name: name.to_owned(),
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
        })
    }

    fn read(proc: &Path, pid: i32) -> Option<Self> {
        // The kernel hands out a line of this length in one read.
        let mut line = [0; 1024];
        let length = File::open(proc.join(format!("{pid}/stat")))
            .ok()?
            .read(&mut line)
            .ok()?;
        Self::parse(&String::from_utf8_lossy(&line[..length]))
    }
}

/// All processes that /proc shows. Passes each one to `visit` as it is read. Returns none if it is
/// not the /proc of this PID namespace.
fn scan(proc: &Path, mut visit: impl FnMut(&Stat)) -> BTreeMap<i32, Stat> {
    let mut stats = BTreeMap::new();
    let own = std::process::id().to_string();
    if fs::read_link(proc.join("self"))
        .ok()
        .is_none_or(|link| link.as_os_str() != own.as_str())
    {
        return stats;
    }
    let Ok(entries) = fs::read_dir(proc) else {
        return stats;
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for stat in pids.filter_map(|pid| Stat::read(proc, pid)) {
        visit(&stat);
        stats.insert(stat.pid, stat);
    }
    complete(&mut stats, |pid| Stat::read(proc, pid));
    stats
}

/// Looks up parents that appeared, and children that got a new parent, while the list was being
/// read.
fn complete(stats: &mut BTreeMap<i32, Stat>, read: impl Fn(i32) -> Option<Stat>) {
    let mut open: Vec<i32> = stats.keys().copied().collect();
    while let Some(pid) = open.pop() {
        let Some(parent) = stats.get(&pid).map(|stat| stat.parent) else {
            continue;
        };
        if parent == 0 || stats.contains_key(&parent) {
            continue;
        }
        if let Some(stat) = read(parent) {
            open.push(parent);
            stats.insert(parent, stat);
        } else if let Some(stat) = read(pid) {
            // Its parent has gone: the new parent is in the list, or will be read next time.
            if stat.parent != parent {
                open.push(pid);
            }
            stats.insert(pid, stat);
        } else {
            stats.remove(&pid);
        }
    }
}

/// The descendants of `root`, without strangers and their descendants.
fn members(seen: &Scan, root: i32) -> Vec<&Stat> {
    seen.stats
        .values()
        .filter(|stat| stat.pid != root && descends(seen, stat, root))
        .collect()
}

fn descends(seen: &Scan, stat: &Stat, root: i32) -> bool {
    let Scan { stats, strangers } = seen;
    if strangers.contains(&stat.pid) {
        return false;
    }
    let mut parent = stat.parent;
    // A list that changes while it is read could have a cycle.
    for _ in 0..=stats.len() {
        match parent {
            0 => return false,
            pid if pid == root => return true,
            pid if strangers.contains(&pid) => return false,
            pid => match stats.get(&pid) {
                Some(stat) => parent = stat.parent,
                // Gone: its orphans are the agent's.
                None => return root == 1,
            },
        }
    }
    false
}

/// The process groups that consist only of the tree's processes.
fn groups(stats: &BTreeMap<i32, Stat>, tree: &[&Stat], root: i32) -> BTreeSet<i32> {
    let inside: BTreeSet<i32> = tree.iter().map(|stat| stat.pid).collect();
    let mut groups: BTreeSet<i32> = tree
        .iter()
        .map(|stat| stat.group)
        .filter(|group| *group > 1)
        .collect();
    for stat in stats
        .values()
        .filter(|stat| stat.pid == root || !inside.contains(&stat.pid))
    {
        groups.remove(&stat.group);
    }
    groups
}

fn name(stats: &[&Stat]) -> String {
    let mut names: Vec<String> = stats
        .iter()
        .take(NAMED)
        .map(|stat| format!("pid {} ({}, {})", stat.pid, stat.name, stat.state))
        .collect();
    if stats.len() > NAMED {
        names.push(format!("and {} more", stats.len() - NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;
