//! Undoes the mounts that a worker has made, so that the next attempt finds those of a fresh
//! container.
//!
//! It compares the current mounts with those at the agent's start. Two kinds of mounts stay. Those
//! that were there at the start stay, even if the worker has moved them; below a mount of the
//! worker they go with it. Those that the node mounts into a volume while the container runs
//! (`mountPropagation`) stay, too: copies that follow a mount of the node, and anything right below
//! a volume that shares its mounts with the node, because undoing that would undo it on the node.
//!
//! Mounts are detached from the tree, not written back. If the agent is the last user of a file
//! system, the kernel closes it as it is detached. One that hangs holds up the agent until it
//! answers; only a worker with the right to mount can cause that. What is mounted below a mount
//! goes with it, so no path leads through a mount of the worker. What the worker has unmounted is
//! not mounted again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sys;

/// Longest list of mounts that is read, in bytes: some 40,000 of them.
const MAX_TEXT: usize = 4 << 20;
/// Most mounts undone at a time. The rest stays.
const MAX_UNDONE: usize = 10_000;
/// Time limit for undoing mounts.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Most looks at the list at a time: one mount may hide another's place until it is undone.
const LOOKS: usize = 4;
/// Most mounts named in the log.
const NAMED: usize = 3;

/// The mounts of one container.
#[derive(Debug)]
pub(crate) struct Mounts {
    list: PathBuf,
    /// Those that were there when the agent started, by ID; none: not known, and nothing is undone.
    before: Option<BTreeMap<u64, Original>>,
    /// Mounts that could not be undone the last time.
    left: usize,
}

/// What is remembered of a mount that the container came with.
#[derive(Debug)]
struct Original {
    /// With the ID, it tells the mount from a later one with the same ID.
    device: String,
    shared: bool,
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    parent: u64,
    device: String,
    point: PathBuf,
    /// What is mounted below appears in the mounts of its peer group, and the reverse.
    shared: bool,
    /// It follows a mount elsewhere.
    follows: bool,
}

impl Mounts {
    /// The mounts that this process sees now.
    pub(crate) fn remember() -> Self {
        Self::listed_in(PathBuf::from("/proc/self/mountinfo"))
    }

    fn listed_in(list: PathBuf) -> Self {
        let before = match read(&list) {
            Ok((mounts, true)) => Some(
                mounts
                    .into_iter()
                    .map(|mount| (mount.id, mount.original()))
                    .collect(),
            ),
            Ok((_, false)) | Err(_) => None,
        };
        Self {
            list,
            before,
            left: 0,
        }
    }

    /// Undoes what was mounted since. Returns a line for the log, if there is something to report.
    pub(crate) fn undo(&mut self) -> Option<String> {
        self.undo_with(sys::detach)
    }

    fn undo_with(&mut self, detach: impl Fn(&Path) -> io::Result<()>) -> Option<String> {
        let before = self.before.as_ref()?;
        let end = Instant::now() + MAX_TIME;
        let mut done: Vec<PathBuf> = Vec::new();
        let (mut left, mut denied) = (0, false);
        for _ in 0..LOOKS {
            let Ok((now, _)) = read(&self.list) else { break };
            let plan = plan(before, &now);
            let size = plan.len();
            let undone = done.len();
            for point in plan {
                if done.len() == MAX_UNDONE || Instant::now() >= end || denied {
                    break;
                }
                match detach(point) {
                    Ok(()) => done.push(point.to_owned()),
                    Err(error) => denied = error.kind() == ErrorKind::PermissionDenied,
                }
            }
            left = size - (done.len() - undone);
            if size == 0 || done.len() == undone {
                break;
            }
        }
        let newly_left = (left != self.left).then_some(left).filter(|left| *left > 0);
        self.left = left;
        let undone = (!done.is_empty()).then(|| {
            let count = done.len();
            format!("undid mounts of the last attempt: {count} ({})", name(&done))
        });
        let stay = newly_left.map(|left| {
            let why = if denied { " (not permitted to undo)" } else { "" };
            format!("mounts of the last attempt that remain{why}: {left}")
        });
        match (undone, stay) {
            (Some(undone), Some(stay)) => Some(format!("{undone}; {stay}")),
            (undone, stay) => undone.or(stay),
        }
    }
}

impl Mount {
    fn original(&self) -> Original {
        Original {
            device: self.device.clone(),
            shared: self.shared,
        }
    }

    /// Parses a line such as `36 35 98:0 /root /point rw,noatime shared:7 master:1 - ext3 /dev/root
    /// rw`.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (id, parent, device) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?.to_owned());
        let point = unescape(fields.nth(1)?);
        let tags: Vec<&[u8]> = fields.skip(1).take_while(|field| *field != b"-").collect();
        let tagged = |with: &[u8]| tags.iter().any(|tag| tag.starts_with(with));
        Some(Self {
            id,
            parent,
            device,
            point: OsString::from_vec(point).into(),
            shared: tagged(b"shared:"),
            follows: tagged(b"master:") || tagged(b"propagate_from:"),
        })
    }
}

/// The places to detach a mount from, in this order; a place is listed as often as mounts are
/// stacked there.
fn plan<'a>(before: &BTreeMap<u64, Original>, now: &'a [Mount]) -> Vec<&'a Path> {
    let old = |mount: &Mount| {
        before
            .get(&mount.id)
            .is_some_and(|original| original.device == mount.device)
    };
    let shared = |id: u64| before.get(&id).is_some_and(|original| original.shared);
    let doomed: BTreeSet<u64> = now
        .iter()
        .filter(|mount| !old(mount) && !mount.follows && !shared(mount.parent))
        .map(|mount| mount.id)
        .collect();
    let mut upon: BTreeMap<(u64, &Path), &Mount> = BTreeMap::new();
    for mount in now {
        upon.insert((mount.parent, &mount.point), mount);
    }
    let mut plan = Vec::new();
    // The newest first, since it may hide the place of one before it.
    for base in now.iter().rev() {
        if !doomed.contains(&base.id) || doomed.contains(&base.parent) {
            continue;
        }
        let mut pile = vec![base.point.as_path()];
        let mut top = base;
        // No longer than the list, in case the list has a cycle.
        while let Some(next) = upon.get(&(top.id, base.point.as_path()))
            && pile.len() <= now.len()
        {
            top = next;
            pile.push(&base.point);
        }
        // Otherwise the topmost mount is not the worker's, and the pile stays.
        if doomed.contains(&top.id) {
            plan.extend(pile);
        }
    }
    plan
}

/// The listed mounts, and true if the list is complete.
fn read(list: &Path) -> io::Result<(Vec<Mount>, bool)> {
    let mut text = Vec::new();
    File::open(list)?.take(MAX_TEXT as u64).read_to_end(&mut text)?;
    let whole = text.len() < MAX_TEXT;
    if !whole {
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    }
    let lines = text.split(|byte| *byte == b'\n');
    Ok((lines.filter_map(Mount::parse).collect(), whole))
}

/// The kernel writes spaces, tabs, newlines and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let code = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    plain
}

fn name(points: &[PathBuf]) -> String {
    let mut names: Vec<String> = points
        .iter()
        .take(NAMED)
        .map(|point| {
            let mut name = format!("{point:?}");
            name.truncate(name.floor_char_boundary(128));
            name
        })
        .collect();
    if points.len() > NAMED {
        names.push(format!("and {} more", points.len() - NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;
