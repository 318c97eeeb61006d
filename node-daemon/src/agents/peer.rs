//! Identifies the peer of an agent's socket.
//!
//! The socket's directory is mounted into every worker container of its pod, so the worker's
//! processes can reach it as well as the agent. The kernel says which process connected. `/proc`
//! says which container of which pod it is in, and if it is the first process of the container's
//! pid namespace. That process is the agent if nothing is mounted over the file from which the
//! runtime started it ([`mounts`]). A process can be the first of a pid namespace that it made
//! itself, but that one is nested deeper. What `/proc` says counts only while the process that
//! connected still has its PID ([`Peer`]).

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::worker::types::{ContainerId, PodUid};

mod mounts;
mod process;

pub use process::Peer;

/// Longest file of a process that is read, in bytes: room for thousands of mounts.
const MAX_FILE: u64 = 1 << 20;

/// Why a peer is not believed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The kernel names no process: the daemon is not in the host's pid namespace.
    #[error("the peer's process is not visible from here (does the daemon run with hostPID?)")]
    Invisible,
    /// It has ended, and another process may have its PID.
    #[error("process {0} has ended")]
    Gone(i32),
    /// The kernel supports the check that it still runs, but the check failed.
    #[error("process {pid} cannot be held: {error}")]
    Unheld {
        /// Host pid.
        pid: i32,
        /// Why.
        error: Errno,
    },
    /// Its `/proc` entry cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its cgroup is not the container's, or was not made by the kubelet.
    #[error("process {pid} is not in container {container} of a pod")]
    OtherContainer {
        /// Host pid.
        pid: i32,
        /// The container it registered for.
        container: ContainerId,
    },
    /// Its cgroup belongs to another pod than the socket.
    #[error("process {pid} belongs to pod {pod}, but the socket to another pod")]
    OtherPod {
        /// Host pid.
        pid: i32,
        /// The pod it is in.
        pod: String,
    },
    /// Its cgroup names no container.
    #[error("process {0} is in no container")]
    NoContainer(i32),
    /// It is not the first process of its container.
    #[error("process {0} is not the first of its container")]
    NotInit(i32),
    /// Its container may have started another program in place of the agent.
    #[error("process {pid} cannot be verified as the agent: {why}")]
    NotAgent {
        /// Host pid.
        pid: i32,
        /// What its mounts show.
        why: &'static str,
    },
}

/// Checks a peer; replaced in tests.
pub trait PeerCheck: Send + Sync + 'static {
    /// The peer's host pid, if it is the agent of `container`, in the pod whose socket it has
    /// opened.
    ///
    /// # Errors
    /// When it is not, or when that cannot be determined.
    fn check(&self, peer: &Peer, container: &ContainerId, pod: &PodUid) -> Result<i32, PeerError>;

    /// The container of a peer that does not know it.
    ///
    /// # Errors
    /// When it is in none, or when that cannot be determined.
    fn container(&self, peer: &Peer) -> Result<ContainerId, PeerError>;
}

/// The check by `/proc`.
#[derive(Debug)]
pub struct ProcPeerCheck {
    /// `/proc`, or what stands in for it.
    pub proc_root: PathBuf,
}

impl PeerCheck for ProcPeerCheck {
    fn check(&self, peer: &Peer, container: &ContainerId, pod: &PodUid) -> Result<i32, PeerError> {
        let pid = peer.pid()?;
        let cgroup = self.read(pid, "cgroup")?;
        let other = || PeerError::OtherContainer {
            pid,
            container: container.clone(),
        };
        let (named, id) = place_of(&cgroup).ok_or_else(other)?;
        if id != container.as_str() {
            return Err(other());
        }
        if named != pod.as_str() {
            return Err(PeerError::OtherPod { pid, pod: named });
        }
        if !is_first_of_container(&self.read(pid, "status")?) {
            return Err(PeerError::NotInit(pid));
        }
        mounts::show_agent(&self.read(pid, "mountinfo")?).map_err(|why| PeerError::NotAgent { pid, why })?;
        peer.check_unchanged(pid)?;
        Ok(pid)
    }

    fn container(&self, peer: &Peer) -> Result<ContainerId, PeerError> {
        let pid = peer.pid()?;
        let cgroup = self.read(pid, "cgroup")?;
        let (_, id) = place_of(&cgroup).ok_or(PeerError::NoContainer(pid))?;
        peer.check_unchanged(pid)?;
        Ok(id.into())
    }
}

impl ProcPeerCheck {
    fn read(&self, pid: i32, file: &str) -> Result<String, PeerError> {
        let path = self.proc_root.join(pid.to_string()).join(file);
        read_bounded(&path).map_err(|source| PeerError::Unreadable { path, source })
    }
}

/// Reads a file whose length a container may control.
fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(text)
}

/// The pod and the container that `/proc/<pid>/cgroup` names: the kubelet's `pod<uid>` (with the
/// systemd driver `kubepods-…-pod<uid>.slice`, with underscores for dashes), and right below it the
/// id, or `…-<id>.scope`. The first such pair counts: a container that may make cgroups makes them
/// below its own, under any name.
fn place_of(cgroup: &str) -> Option<(String, &str)> {
    // hierarchy:controllers:path
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().find_map(|path| {
        let below = path.split('/').skip(1);
        let mut pairs = path.split('/').zip(below);
        pairs.find_map(|(pod, container)| Some((pod_of(pod)?, id_of(container)?)))
    })
}

/// The UID in the name of a pod's cgroup; for a static pod, a hash.
fn pod_of(part: &str) -> Option<String> {
    let slice = part.strip_suffix(".slice");
    let name = slice.map_or(part, |name| name.rsplit_once('-').map_or(name, |(_, last)| last));
    let uid = name.strip_prefix("pod")?.replace('_', "-");
    let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    is_uid.then_some(uid)
}

/// The id in the name of a container's cgroup.
fn id_of(part: &str) -> Option<&str> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let id = name.rsplit_once('-').map_or(name, |(_, last)| last);
    // A short or odd id would match by accident.
    (id.len() >= 12 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(id)
}

/// True if `/proc/<pid>/cgroup` names the container.
#[must_use]
pub fn in_container(cgroup: &str, container: &ContainerId) -> bool {
    place_of(cgroup).is_some_and(|(_, id)| id == container.as_str())
}

/// True if `/proc/<pid>/status` belongs to the first process of a container. It lists the process's
/// PID in each pid namespace, outermost first: in the node's, which is the daemon's, and in the
/// container's. A namespace that the process has made itself adds another.
fn is_first_of_container(status: &str) -> bool {
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut inner = pids.into_iter().flat_map(|pids| pids.split_whitespace().skip(1));
    inner.next() == Some("1") && inner.next().is_none()
}

#[cfg(test)]
mod tests;
