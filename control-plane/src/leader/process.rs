//! Which process leads, and whether it still can.
//!
//! Promises: no two processes have one identity, whatever their pods and hosts are called, so that a Lease has one holder. A process that was killed
//! is followed at once by the next one of its pod or host; nobody takes a Lease from a process that may live.

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
    /// That of the pod, or of the host.
    name: String,
    is_pod: bool,
    process: Process,
}

impl Identity {
    /// That of this process, in the pod that `POD_NAME` names, else on this host.
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

    /// The holder's identity: no other process has had it. The name stands first, and ends with `_`.
    pub(super) fn holder(&self) -> String {
        format!("{}_{}", self.name, self.process.token)
    }

    /// What the holder writes down about itself.
    pub(super) fn process(&self) -> String {
        self.process.to_string()
    }

    /// Whether a Lease is held by a process that ran where this one does, and has ended.
    pub(super) fn follows(&self, lease: &Lease) -> bool {
        let held = holder(lease).and_then(|holder| holder.rsplit_once('_'));
        let former = leader_process(lease).and_then(Process::parse);
        // Another one may hold it that has not written down which process it is.
        let former = former.filter(|former| held == Some((&self.name, &former.token)));
        former.is_some_and(|former| self.process.has_seen_the_end_of(&former, self.is_pod))
    }
}

/// A process among all that have run anywhere. What cannot be read is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    /// When it was started, in the kernel's ticks.
    started: String,
    /// The PID namespace that `pid` is of.
    namespace: String,
    /// The run of the kernel, which no two hosts share.
    boot: String,
    /// Chosen by it at random.
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

    /// Whether another one, of the same pod or of a host of the same name, has ended for certain.
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
        // The container before this one: kubelet starts the next when that has ended.
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

/// When a process was started (proc(5), field 22 of stat).
fn started(pid: u32) -> Option<String> {
    Some(stat(pid)?.starttime.to_string())
}

/// Whether the process that was started then has ended for certain. One that was not waited for has; of one that may not be looked at nothing is
/// known but whether there is one of this id.
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
