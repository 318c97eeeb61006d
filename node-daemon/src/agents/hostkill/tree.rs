//! What `/proc` shows of the processes below an agent.
//!
//! Promises: a look costs no more than [`MAX_READS`] reads, however many processes and threads the
//! container has, and no reads for other containers, if the kernel lists children
//! (CONFIG_PROC_CHILDREN, which distributions set). If it does not, each look reads all processes
//! of the node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::agents::peer::in_container;
use crate::worker::types::ContainerId;

/// A start time, in ticks since the machine booted.
pub(super) type Ticks = u64;

/// Files that one look reads: two for each process, and one for each of its threads. That takes
/// about 10 ms.
const MAX_READS: usize = 2_048;
/// Longest list of children that is read, in bytes: more than one look gets to.
const MAX_LIST: u64 = 64 << 10;

/// A live process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) parent: i32,
    pub(super) started: Ticks,
}

/// What a PID stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lookup {
    /// A live process of the container.
    Alive(Process),
    /// A process of another container.
    Elsewhere,
    /// No process, or one that has ended and is not reaped yet.
    Gone,
}

/// What was found below an agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Descendants {
    /// Parents come before their children.
    pub(super) processes: Vec<(i32, Process)>,
    /// True if nothing is missing. A look may stop early, or a process may end during it: the
    /// kernel may then leave out what comes after.
    pub(super) is_whole: bool,
}

/// A `/proc` file system.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    root: PathBuf,
    lists_children: bool,
}

impl Tree {
    pub(super) fn new(root: PathBuf) -> Self {
        let lists_children = root.join("thread-self/children").exists();
        Self { root, lists_children }
    }

    /// The live processes of the container that descend from `agent`, without the agent. Sessions
    /// of `kubectl exec` do not descend from it.
    pub(super) fn below(&self, agent: i32, container: &ContainerId) -> Descendants {
        if self.lists_children {
            self.by_children(agent, container)
        } else {
            self.by_parents(agent, container)
        }
    }

    fn by_children(&self, agent: i32, container: &ContainerId) -> Descendants {
        let mut below = Descendants {
            processes: Vec::new(),
            is_whole: true,
        };
        let (mut known, mut left) = (BTreeSet::from([agent]), MAX_READS);
        let mut parents = VecDeque::from([agent]);
        while let Some(parent) = parents.pop_front() {
            let threads = match entries(&self.root.join(format!("{parent}/task"))) {
                Ok(threads) => threads,
                // Nothing is below an agent that is gone.
                Err(error) if parent == agent && error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => {
                    below.is_whole = false;
                    continue;
                }
            };
            // A thread lists the children that it started and those that it inherited.
            for thread in threads {
                let Some(rest) = left.checked_sub(1) else {
                    below.is_whole = false;
                    return below;
                };
                left = rest;
                let children = self.root.join(format!("{parent}/task/{thread}/children"));
                let Ok(children) = numbers(&children) else {
                    below.is_whole = false;
                    continue;
                };
                for pid in children {
                    if !known.insert(pid) {
                        continue;
                    }
                    let Some(rest) = left.checked_sub(2) else {
                        below.is_whole = false;
                        return below;
                    };
                    left = rest;
                    match self.process(pid, container) {
                        Lookup::Alive(process) => {
                            below.processes.push((pid, process));
                            parents.push_back(pid);
                        }
                        Lookup::Elsewhere => {}
                        Lookup::Gone => below.is_whole = false,
                    }
                }
            }
        }
        below
    }

    fn by_parents(&self, agent: i32, container: &ContainerId) -> Descendants {
        let mut children: BTreeMap<i32, Vec<(i32, Process)>> = BTreeMap::new();
        let all = entries(&self.root);
        let is_whole = all.is_ok();
        for pid in all.into_iter().flatten() {
            if let Lookup::Alive(process) = self.process(pid, container) {
                children.entry(process.parent).or_default().push((pid, process));
            }
        }
        let mut processes = Vec::new();
        let mut parents = VecDeque::from([agent]);
        while let Some(parent) = parents.pop_front() {
            for (pid, process) in children.remove(&parent).unwrap_or_default() {
                if pid != agent {
                    processes.push((pid, process));
                    parents.push_back(pid);
                }
            }
        }
        Descendants { processes, is_whole }
    }

    /// The process with this PID, if it is one of the container.
    pub(super) fn process(&self, pid: i32, container: &ContainerId) -> Lookup {
        let entry = self.root.join(pid.to_string());
        let stat = fs::read_to_string(entry.join("stat")).ok();
        let Some(process) = stat.and_then(|stat| live(&stat)) else {
            return Lookup::Gone;
        };
        match fs::read_to_string(entry.join("cgroup")) {
            Ok(cgroup) if in_container(&cgroup, container) => Lookup::Alive(process),
            Ok(_) => Lookup::Elsewhere,
            Err(_) => Lookup::Gone,
        }
    }
}

/// The names in a directory that are numbers.
fn entries(directory: &Path) -> io::Result<impl Iterator<Item = i32> + use<>> {
    let entries = fs::read_dir(directory)?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// The numbers in a file, as far as [`MAX_LIST`].
fn numbers(file: &Path) -> io::Result<Vec<i32>> {
    let mut text = Vec::new();
    fs::File::open(file)?.take(MAX_LIST).read_to_end(&mut text)?;
    // A number that was cut off would name another process.
    let end = text.iter().rposition(u8::is_ascii_whitespace).unwrap_or(0);
    let text = String::from_utf8_lossy(text.get(..end).unwrap_or_default());
    let numbers = text.split_ascii_whitespace();
    Ok(numbers.filter_map(|number| number.parse().ok()).collect())
}

/// Parses `/proc/<pid>/stat`; none for a zombie without threads. The command in parentheses may
/// hold any character, so its last `)` counts.
fn live(stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // Fields 20 and 22 of the line; the state was the third.
    let threads: u32 = fields.nth(15)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    let has_ended = state == "X" || state == "Z" && threads <= 1;
    (!has_ended).then_some(Process { parent, started })
}

/// Selects the processes to kill: those started before this time, and those they start while they
/// are being killed. The next worker is neither, however soon it starts; nor is a standby that the
/// agent starts later. `doomed` remembers them from look to look, including those that are gone.
pub(super) fn select_doomed(
    below: &[(i32, Process)],
    before: Ticks,
    doomed: &mut BTreeSet<(i32, Ticks)>,
) -> Vec<(i32, Ticks)> {
    let started: BTreeMap<i32, Ticks> = below
        .iter()
        .map(|(pid, process)| (*pid, process.started))
        .collect();
    let mut living = Vec::new();
    for (pid, process) in below {
        let parent = started.get(&process.parent);
        let of_doomed = parent.is_some_and(|started| doomed.contains(&(process.parent, *started)));
        let this = (*pid, process.started);
        if process.started < before || of_doomed {
            doomed.insert(this);
        }
        if doomed.contains(&this) {
            living.push(this);
        }
    }
    living
}

#[cfg(test)]
pub(super) mod tests;
