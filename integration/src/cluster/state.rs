//! The record of an instance, which is kept between commands in `<root>/<name>/state.json`.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ClusterError, ProcessId};
use crate::tools::catalog;

/// The parts that an instance consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Control plane and nodes.
    Nodes,
    /// etcd and the API server, on loopback addresses.
    ApiServer {
        /// True if kube-controller-manager runs too (Jobs create pods, garbage is collected).
        controllers: bool,
        /// True if kube-scheduler runs too (pods are bound to nodes that a test creates).
        #[serde(default)]
        scheduler: bool,
        /// True if they have no rate limit.
        #[serde(default)]
        brisk: bool,
    },
}

/// The record of an instance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct State {
    /// The parts that it consists of.
    pub(super) mode: Mode,
    /// Its slot; none without nodes.
    pub(super) slot: Option<u8>,
    /// True once it has started completely.
    pub(super) ready: bool,
    /// The process that is starting it, or that removes it at its end. `None` if it outlives them.
    pub(super) owner: Option<ProcessId>,
    /// The daemons, in the order in which they were started.
    pub(super) daemons: Vec<Daemon>,
    /// The number of the last node that was added.
    pub(super) last_node: u8,
    /// True if nodes that do not report count as lost sooner than by default.
    pub(super) soon_lost: bool,
    /// True if the Job controller creates its own PodGroups.
    #[serde(default)]
    pub(super) job_groups: bool,
    /// The minor version of containerd, such as `2.4`.
    #[serde(default)]
    pub(super) containerd: String,
}

/// A daemon of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemon {
    /// Its name, such as `etcd` or `kubelet-1`.
    pub name: String,
    /// The process.
    pub process: ProcessId,
}

impl State {
    pub(super) fn new(mode: Mode, owner: Option<ProcessId>) -> Self {
        Self {
            mode,
            slot: None,
            ready: false,
            owner,
            daemons: Vec::new(),
            last_node: 0,
            soon_lost: false,
            job_groups: false,
            containerd: catalog::CONTAINERD.version(),
        }
    }

    /// The process of a daemon.
    pub(super) fn daemon(&self, name: &str) -> Option<ProcessId> {
        self.daemons
            .iter()
            .find(|daemon| daemon.name == name)
            .map(|daemon| daemon.process)
    }

    /// The numbers of the nodes.
    pub(super) fn node_numbers(&self) -> impl Iterator<Item = u8> {
        self.daemons.iter().filter_map(|daemon| node_number(&daemon.name))
    }

    /// The numbers of the nodes that are machines.
    pub(super) fn machine_numbers(&self) -> impl Iterator<Item = u8> {
        let of_machines = |daemon: &Daemon| daemon.name.strip_prefix("machine-")?.parse().ok();
        self.daemons.iter().filter_map(of_machines)
    }

    /// Removes a node and its daemons from the record.
    pub(super) fn remove_node(&mut self, index: u8) {
        let suffix = format!("-{index}");
        self.daemons.retain(|daemon| !daemon.name.ends_with(&suffix));
    }

    /// True if the instance has started completely and every daemon still runs.
    pub(super) fn is_healthy(&self) -> bool {
        self.ready && self.daemons.iter().all(|daemon| daemon.process.is_alive())
    }

    /// Reads the record in `dir`. `None` if there is none or it cannot be parsed.
    pub(super) fn load(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.join("state.json")).ok()?).ok()
    }

    /// Writes the record to `dir` atomically.
    pub(super) fn save(&self, dir: &Path) -> Result<(), ClusterError> {
        let path = dir.join("state.json");
        let scratch = dir.join(".state.json");
        let text = serde_json::to_vec_pretty(self).map_err(|error| ClusterError::io(&path)(error.into()))?;
        fs::write(&scratch, text).map_err(ClusterError::io(&scratch))?;
        fs::rename(&scratch, &path).map_err(ClusterError::io(&path))
    }
}

/// The name under which the holder of node `index` is recorded.
pub(super) fn holder_name(index: u8) -> String {
    format!("node-{index}")
}

/// The number of the node whose holder is recorded under `name`.
fn node_number(name: &str) -> Option<u8> {
    name.strip_prefix("node-")?.parse().ok()
}

/// The folder with all instances: `LOCKSTEP_STATE`, else `/tmp/lockstep-testbed`.
pub fn root() -> PathBuf {
    std::env::var_os("LOCKSTEP_STATE")
        .filter(|value| !value.is_empty())
        .map_or_else(|| PathBuf::from("/tmp/lockstep-testbed"), PathBuf::from)
}

/// The names of all instances that have a folder under [`root`].
pub fn instances() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(root())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// Held while an instance is started or removed. A drop or a crash releases it.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    file: File,
}

impl Lock {
    /// Waits for the lock of the instance called `name`. Blocks.
    pub(super) fn wait(name: &str) -> Result<Self, ClusterError> {
        let root = root();
        fs::create_dir_all(&root).map_err(ClusterError::io(&root))?;
        let path = root.join(format!("{name}.lock"));
        loop {
            let file = File::create(&path).map_err(ClusterError::io(&path))?;
            file.lock().map_err(ClusterError::io(&path))?;
            let lock = Self {
                path: path.clone(),
                file,
            };
            if lock.is_current() {
                return Ok(lock);
            }
        }
    }

    /// True if the file is still the one at its path: the previous holder may have removed it.
    fn is_current(&self) -> bool {
        let number = |metadata: std::io::Result<fs::Metadata>| metadata.ok().map(|found| found.ino());
        let ours = number(self.file.metadata());
        ours.is_some() && ours == number(fs::metadata(&self.path))
    }

    /// Releases the lock and removes its file.
    pub(super) fn remove(self) -> Result<(), ClusterError> {
        fs::remove_file(&self.path).map_err(ClusterError::io(&self.path))
    }
}
