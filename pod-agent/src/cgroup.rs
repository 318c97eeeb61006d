//! Which processes are another container's, though the agent is their parent: `kubectl debug --target` starts a container in the worker's PID
//! namespace, and what it leaves behind becomes a child of PID 1.
//!
//! The container's cgroup tells them apart, as the container runtime made it. Whatever cannot be told counts as the worker's own: better one process
//! too many ended than one of an attempt that is over beside the next.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest `/proc/<pid>/cgroup` that is looked at, in bytes. What stands behind it says nothing.
const MAX_TEXT: usize = 16 << 10;
/// Controllers in whose hierarchies (cgroup v1) every runtime places a container. In others, such as a hybrid system's `name=systemd`, it may be
/// wherever the runtime itself is, and so nowhere of its own.
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
    /// That of this process, before anything in the container can have moved it; none where it cannot be read, and then nobody is a stranger.
    pub(crate) fn own(proc: &Path) -> Option<Self> {
        let text = read(&proc.join("self"))?;
        Some(Self::parse(&text)).filter(|cgroup| !cgroup.lines.is_empty())
    }

    /// From the text of `/proc/<pid>/cgroup`. Of cgroup v1 the hierarchies in which containers are placed count, of a pure v2 its only one.
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

    /// Whether this process of the PID namespace belongs to another container.
    pub(crate) fn is_stranger(&self, proc: &Path, pid: i32) -> bool {
        read(&proc.join(pid.to_string())).is_some_and(|text| self.excludes(&text))
    }

    /// Whether a process with this text is outside in every hierarchy that says anything.
    fn excludes(&self, text: &str) -> bool {
        let mut outside = false;
        for line in &Self::parse(text).lines {
            let Some(own) = self.lines.iter().find(|own| own.controllers == line.controllers) else {
                continue;
            };
            // The kernel says `/` of a process that is ending (v1), and of one that was placed nowhere. Outside a cgroup namespace, whose own
            // root it is, that shows nothing.
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

/// Whether a path is this one or below it. In a cgroup namespace those outside begin with `/..`.
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
mod tests;
