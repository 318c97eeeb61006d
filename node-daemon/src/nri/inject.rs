//! Which containers get the agent, and how. Pure.

use std::path::PathBuf;

use lockstep_protocol::pods::{AGENT, BIN_DIR, HEARTBEAT_DIR, RUN_DIR, SOCKET, meets_agent};

use crate::worker::types::{ContainerId, Pod, Standby};

/// Directory of the hook that starts interpreters ahead, in a worker container with standbys of
/// Python.
pub const STANDBY_DIR: &str = "/.lockstep/standby";
/// The worker's heartbeat file.
const HEARTBEAT: &str = "/.lockstep/heartbeat/beat";

/// A container as NRI shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: ContainerId,
    /// Its name.
    pub name: String,
    /// Its final args.
    pub args: Vec<String>,
    /// Its mount points.
    pub mounts: Vec<String>,
    /// Its pid namespace.
    pub pid_namespace: PidNamespace,
    /// Seconds that Kubernetes gives it to end, if the kubelet says so.
    pub termination_grace: Option<u32>,
}

impl Container {
    /// True if the agent is in front of it.
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        self.args.first().is_some_and(|first| first == AGENT)
    }

    /// True if the agent and the socket are mounted at their places, by this daemon or the pod's
    /// template.
    fn has_agent(&self) -> bool {
        let mounted = |path: &str| self.mounts.iter().any(|mount| mount == path);
        mounted(BIN_DIR) && mounted(RUN_DIR)
    }
}

/// The pid namespace of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidNamespace {
    /// Its own: its first process is number 1.
    Own,
    /// The host's, the pod's or another container's.
    Shared,
}

/// Directories on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// Holds the agent binary of this daemon.
    pub bin: PathBuf,
    /// Holds the pod's socket.
    pub run: PathBuf,
}

/// What to do with a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The agent is put in front.
    Inject,
    /// The agent is in front already: another connection of this plugin was here before.
    Already,
    /// It would be a worker, but cannot have the agent.
    Refuse(&'static str),
    /// It is no worker.
    NotOurs,
}

/// Decides about a container of `pod` that is being created.
#[must_use]
pub fn decide(pod: &Pod, container: &Container) -> Decision {
    if !pod.supervised.contains(&container.name) {
        return Decision::NotOurs;
    }
    if container.is_supervised() {
        return if container.has_agent() {
            Decision::Already
        } else {
            Decision::Refuse("its command is the agent's path, but the agent is not mounted there")
        };
    }
    if container.mounts.iter().any(|mount| meets_agent(mount)) {
        // A file that is mounted over the agent would be started in its place, with its socket.
        return Decision::Refuse("it mounts something of its own over, or below, /.lockstep");
    }
    if container.args.is_empty() {
        return Decision::Refuse("it has no args");
    }
    match container.pid_namespace {
        PidNamespace::Own => Decision::Inject,
        // Signals to "all processes" would reach other containers, or the host.
        PidNamespace::Shared => {
            Decision::Refuse("it shares a pid namespace (hostPID or shareProcessNamespace)")
        }
    }
}

/// True for a worker that shares its pid namespace: neither it nor another worker of its pod can
/// have an agent.
#[must_use]
pub fn makes_plain(pod: &Pod, container: &Container) -> bool {
    pod.supervised.contains(&container.name) && container.pid_namespace == PidNamespace::Shared
}

/// True if an existing container was created without the agent that it could have. False if NRI
/// shows it without args: too little is known of it. Another plugin may have put something in front
/// of the agent, so any of the args may name it.
#[must_use]
pub fn misses_agent(pod: &Pod, container: &Container) -> bool {
    let has_it = container.args.iter().any(|arg| arg.contains(AGENT));
    !has_it && decide(pod, container) == Decision::Inject
}

/// What NRI is asked to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adjustment {
    /// All args.
    pub args: Vec<String>,
    /// Read-only bind mounts: source on the host, destination.
    pub mounts: Vec<(PathBuf, &'static str)>,
    /// Small file systems of the container's own.
    pub scratch: Vec<Scratch>,
}

/// A small file system of a container's own, writable for any uid even if the image's root is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scratch {
    /// Where it is mounted.
    pub place: &'static str,
    /// Its size, in KiB.
    pub kib: u32,
    /// How many files and directories it has room for, with its root.
    pub inodes: u32,
    /// True if only the user that made a file may remove or replace it.
    pub is_sticky: bool,
}

/// Not sticky: the kernel might keep one uid from opening another's files there
/// (`fs.protected_regular`).
const HEARTBEATS: Scratch = Scratch {
    place: HEARTBEAT_DIR,
    kib: 64,
    inodes: 16,
    is_sticky: false,
};

/// Sticky: another user of the container must not replace what the agent starts from there.
const STANDBYS: Scratch = Scratch {
    place: STANDBY_DIR,
    kib: 2 << 10,
    inodes: 64,
    is_sticky: true,
};

/// Puts the agent in front of a container of `pod`.
#[must_use]
pub fn adjustment(pod: &Pod, container: &Container, paths: Paths) -> Adjustment {
    let mut args: Vec<String> = [
        AGENT,
        "--socket",
        SOCKET,
        "--container",
        &container.name,
        "--container-id",
        container.id.as_str(),
        "--heartbeat",
        HEARTBEAT,
    ]
    .map(str::to_owned)
    .into();
    if let Some(seconds) = container.termination_grace {
        let millis = seconds.saturating_mul(1000).to_string();
        args.extend(["--termination-grace-ms".to_owned(), millis]);
    }
    let mut scratch = vec![HEARTBEATS];
    match pod.standby {
        Standby::Nothing => {}
        Standby::Python => {
            args.extend(["--standby", STANDBY_DIR].map(str::to_owned));
            scratch.push(STANDBYS);
        }
        // It waits in the program's own call, which needs no files.
        Standby::Program => args.push("--standby-program".to_owned()),
    }
    args.push("--".to_owned());
    args.extend(container.args.iter().cloned());
    Adjustment {
        args,
        mounts: vec![(paths.bin, BIN_DIR), (paths.run, RUN_DIR)],
        scratch,
    }
}

#[cfg(test)]
mod tests;
