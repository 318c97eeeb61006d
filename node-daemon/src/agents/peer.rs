//! Who is at the other end of an agent's socket.
//!
//! The socket's directory is mounted into every container of its pod that is a worker, so the processes of the worker can reach it as well as
//! the agent. The kernel says which process connected; `/proc` says which container it is in, and that it is the first process of the
//! container's pid namespace: the agent and nobody else. A process may make a pid namespace of its own there and be the
//! first in that one, but it lies deeper.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::worker::types::{ContainerId, PodUid};

/// Why a peer is not believed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The kernel names no process: the daemon is not in the host's pid namespace.
    #[error("the peer's process is not visible from here (does the daemon run with hostPID?)")]
    Invisible,
    /// Its `/proc` entry cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its cgroup is not the container's.
    #[error("process {pid} is not in container {container}")]
    OtherContainer {
        /// Host pid.
        pid: i32,
        /// What it said it was.
        container: ContainerId,
    },
    /// Its cgroup is another pod's than the socket's.
    #[error("process {pid} is of pod {pod}, and the socket is another one's")]
    OtherPod {
        /// Host pid.
        pid: i32,
        /// Whose it is.
        pod: String,
    },
    /// Its cgroup names no container.
    #[error("process {0} is in no container")]
    NoContainer(i32),
    /// It is not the first process of its container.
    #[error("process {0} is not the first of its container")]
    NotInit(i32),
}

/// Checks a peer; replaced in tests.
pub trait PeerCheck: Send + Sync + 'static {
    /// The peer's host pid, if it is the agent of `container`, and not of another pod than that whose socket it has opened.
    ///
    /// # Errors
    /// When it is not, or that cannot be known.
    fn check(&self, pid: Option<i32>, container: &ContainerId, pod: &PodUid) -> Result<i32, PeerError>;

    /// The container of a peer that does not know it.
    ///
    /// # Errors
    /// When it is in none, or that cannot be known.
    fn container(&self, pid: Option<i32>) -> Result<ContainerId, PeerError>;
}

/// The check by `/proc`.
#[derive(Debug)]
pub struct ProcPeerCheck {
    /// `/proc`, or what stands in for it.
    pub proc_root: PathBuf,
}

impl PeerCheck for ProcPeerCheck {
    fn check(&self, pid: Option<i32>, container: &ContainerId, pod: &PodUid) -> Result<i32, PeerError> {
        let pid = visible(pid)?;
        let cgroup = self.read(pid, "cgroup")?;
        if !in_container(&cgroup, container) {
            return Err(PeerError::OtherContainer {
                pid,
                container: container.clone(),
            });
        }
        if let Some(other) = pod_of(&cgroup).filter(|named| *named != pod.as_str()) {
            return Err(PeerError::OtherPod { pid, pod: other });
        }
        if !is_first_of_container(&self.read(pid, "status")?) {
            return Err(PeerError::NotInit(pid));
        }
        Ok(pid)
    }

    fn container(&self, pid: Option<i32>) -> Result<ContainerId, PeerError> {
        let pid = visible(pid)?;
        container_of(&self.read(pid, "cgroup")?).ok_or(PeerError::NoContainer(pid))
    }
}

impl ProcPeerCheck {
    fn read(&self, pid: i32, file: &str) -> Result<String, PeerError> {
        let path = self.proc_root.join(pid.to_string()).join(file);
        fs::read_to_string(&path).map_err(|source| PeerError::Unreadable { path, source })
    }
}

fn visible(pid: Option<i32>) -> Result<i32, PeerError> {
    pid.filter(|pid| *pid > 0).ok_or(PeerError::Invisible)
}

/// The container that `/proc/<pid>/cgroup` names: containerd's ids are 64 hexadecimal digits.
fn container_of(cgroup: &str) -> Option<ContainerId> {
    let mut ids = cgroup.lines().flat_map(|line| line.split('/')).map(|part| {
        let name = part.strip_suffix(".scope").unwrap_or(part);
        name.rsplit_once('-').map_or(name, |(_, last)| last)
    });
    ids.rfind(|id| id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .map(ContainerId::from)
}

/// The pod that `/proc/<pid>/cgroup` names, where it does: kubelet's `pod<uid>`, or `kubepods-…-pod<uid>.slice` with underscores in the place of
/// dashes with the systemd driver.
fn pod_of(cgroup: &str) -> Option<String> {
    let mut parts = cgroup.lines().flat_map(|line| line.split('/'));
    parts.find_map(|part| {
        let name = part.strip_suffix(".slice").unwrap_or(part);
        let name = name
            .rsplit_once('-')
            .filter(|_| part != name)
            .map_or(name, |(_, last)| last);
        let uid = name.strip_prefix("pod")?.replace('_', "-");
        let is_uid = uid.len() == 36 && uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        is_uid.then_some(uid)
    })
}

/// Whether `/proc/<pid>/cgroup` names the container: a path component that is its id, or ends in `-<id>.scope` with the systemd driver.
#[must_use]
pub fn in_container(cgroup: &str, container: &ContainerId) -> bool {
    let id = container.as_str();
    // A short or odd id would match by accident.
    if id.len() < 12 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return false;
    }
    cgroup.lines().any(|line| {
        line.split('/').any(|part| {
            let name = part.strip_suffix(".scope").unwrap_or(part);
            name == id || name.rsplit_once('-').is_some_and(|(_, last)| last == id)
        })
    })
}

/// Whether `/proc/<pid>/status` is that of the first process of a container. It names the process in each pid namespace, from that of the `/proc`
/// inwards: in the daemon's, which is the node's, and in the container's. In one more where the process has made that itself.
fn is_first_of_container(status: &str) -> bool {
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let mut inner = pids.into_iter().flat_map(|pids| pids.split_whitespace().skip(1));
    inner.next() == Some("1") && inner.next().is_none()
}

#[cfg(test)]
mod tests;
