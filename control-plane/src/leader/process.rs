//! The processes that hold Leases, and how to find out that one has ended.
//!
//! Promises: no two processes share an identity, even if their pods or hosts share a name, so that
//! a Lease has one holder. The next process of the same pod or host follows a killed one at once.
//! No process takes a Lease from one that may still run.

use std::env;

use k8s_openapi::api::coordination::v1::Lease;
use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use procfs::process::Stat;
use thiserror::Error;

use super::{holder, leader_process};

#[cfg(test)]
mod tests;

/// Neither `POD_NAME` nor the host's name can be read.
#[derive(Debug, Error)]
#[error("neither POD_NAME nor the host's name can be read")]
pub struct NoName;

/// This process, as a Lease names it.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Name of the pod, or of the host.
    name: String,
    is_pod: bool,
    process: Process,
}

impl Identity {
    /// The identity of this process, from `POD_NAME` or else from the host's name.
    ///
    /// # Errors
    /// [`NoName`].
    pub fn read() -> Result<Self, NoName> {
        let pod = env::var("POD_NAME").ok().filter(|name| !name.is_empty());
        let is_pod = pod.is_some();
        let name = pod.or_else(|| nix::unistd::gethostname().ok()?.into_string().ok());
        Ok(Self {
            name: name.ok_or(NoName)?,
            is_pod,
            process: Process::this(),
        })
    }

    /// The identity as holder, which no other process has had: the name, `_`, and a token.
    pub(super) fn holder(&self) -> String {
        format!("{}_{}", self.name, self.process.token)
    }

    /// What the holder writes about itself.
    pub(super) fn process(&self) -> String {
        self.process.to_string()
    }

    /// True if the Lease's holder ran in the same pod or on the same host, and has ended.
    pub(super) fn follows(&self, lease: &Lease) -> bool {
        let held = holder(lease).and_then(|holder| holder.rsplit_once('_'));
        let former = leader_process(lease).and_then(Process::parse);
        // The holder may not have written its process yet.
        let former = former.filter(|former| held == Some((&self.name, &former.token)));
        former.is_some_and(|former| self.process.has_seen_the_end_of(&former, self.is_pod))
    }
}

/// A process, distinct from all others on all hosts. A part that cannot be read is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// Its start time, in the kernel's ticks.
    started: String,
    /// The PID namespace of `pid`.
    namespace: String,
    /// The boot ID of the kernel, which no two hosts share.
    boot: String,
    /// A random token.
    token: String,
}

impl Process {
    fn this() -> Self {
        let pid = std::process::id();
        let namespace = std::fs::metadata("/proc/self/ns/pid").ok();
        let boot = procfs::sys::kernel::random::boot_id().unwrap_or_default();
        Self {
            pid,
            started: started(pid).unwrap_or_default(),
            namespace: namespace.map_or_else(String::new, |namespace| {
                std::os::unix::fs::MetadataExt::ino(&namespace).to_string()
            }),
            boot: boot.trim().replace('-', ""),
            token: uuid::Uuid::new_v4().simple().to_string(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let [pid, started, namespace, boot, token] = parts[..] else {
            return None;
        };
        Some(Self {
            pid: pid.parse().ok()?,
            started: started.to_owned(),
            namespace: namespace.to_owned(),
            boot: boot.to_owned(),
            token: token.to_owned(),
        })
    }

    /// True if another process, of the same pod or of a host of the same name, has certainly ended.
    fn has_seen_the_end_of(&self, other: &Self, is_pod: bool) -> bool {
        let is_known = [&other.started, &other.namespace, &other.boot]
            .iter()
            .all(|part| !part.is_empty());
        if !is_known || other.boot != self.boot {
            return false;
        }
        if other.namespace == self.namespace {
            return has_ended(other.pid, &other.started);
        }
        // It ran in the container before this one, and the kubelet has seen that one end.
        is_pod
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            pid,
            started,
            namespace,
            boot,
            token,
        } = self;
        write!(f, "{pid}-{started}-{namespace}-{boot}-{token}")
    }
}

/// The start time of a process (proc(5), field 22 of stat).
fn started(pid: u32) -> Option<String> {
    Some(stat(pid)?.starttime.to_string())
}

/// True if the process with this start time has certainly ended. A zombie has ended. If `/proc`
/// cannot be read, only the process ID counts.
fn has_ended(pid: u32, since: &str) -> bool {
    match stat(pid) {
        Some(stat) => ['Z', 'X', 'x'].contains(&stat.state) || stat.starttime.to_string() != since,
        None => i32::try_from(pid).is_ok_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)),
    }
}

fn stat(pid: u32) -> Option<Stat> {
    procfs::process::Process::new(pid.try_into().ok()?)
        .ok()?
        .stat()
        .ok()
}
