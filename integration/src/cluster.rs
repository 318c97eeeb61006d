//! Real Kubernetes clusters on one machine.
//!
//! A [`Cluster`] has etcd, the API server, controllers, scheduler and DNS, and any number of nodes,
//! each with a kubelet, a containerd and a kube-proxy. Several clusters can be up at once: each
//! instance has a name, and shares nothing on the machine with the others. No file pins its
//! namespaces, so they end with its processes.
//!
//! ```text
//!   Cluster::up(spec) ──> owned: removed when dropped (unless LOCKSTEP_KEEP is set)
//!   Cluster::shared(n) ─> the instance that is up, or a new one; stays up
//!   teardown::down(name): removes what is there, also after a crash
//! ```

mod bring_up;
mod cgroup;
mod control_plane;
mod error;
mod faults;
mod machine;
mod neighbour;
pub mod network;
mod node;
mod pki;
mod process;
mod process_id;
mod spec;
mod state;
mod teardown;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::unistd::Pid;

pub use error::ClusterError;
pub use neighbour::Neighbour;
pub use process::Enter;
pub use process_id::ProcessId;
pub use spec::Spec;
pub use state::{Daemon, Mode, instances, root};
pub use teardown::{down, down_unowned};

use crate::command::output;
use crate::image::Image;
use crate::progress::Progress;
use crate::tools::{Tools, catalog};
use network::Network;
use pki::{Pki, User};
use state::{Lock, State};

/// A cluster that is up.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    dir: PathBuf,
    state: State,
    tools: Tools,
    progress: Progress,
    owned: bool,
}

impl Cluster {
    /// Starts a cluster, which is removed when it is dropped. First removes what is left of an
    /// instance of that name, and of instances whose owners have ended.
    pub async fn up(spec: Spec) -> Result<Self, ClusterError> {
        spec.check()?;
        let names: Vec<_> = match spec.mode {
            Mode::Nodes => catalog::of_clusters().collect(),
            Mode::ApiServer { .. } => catalog::API_SERVER_TOOLS.to_vec(),
        };
        let tools = Tools::locate(names, &spec.progress).await?;
        clean_orphans();
        let _lock = lock(&spec.name).await?;
        Self::up_locked(spec, tools).await
    }

    /// The cluster called `name`, if it is up and healthy. It stays up when dropped.
    pub async fn attach(name: &str) -> Result<Self, ClusterError> {
        let dir = instance_dir(name);
        let state = State::load(&dir).filter(State::is_healthy);
        let state = state.ok_or_else(|| ClusterError::NotUp(name.to_owned()))?;
        let tools = Tools::linked_in(&dir.join("bin"));
        Ok(Self {
            name: name.to_owned(),
            dir,
            state,
            tools,
            progress: Progress::quiet(),
            owned: false,
        })
    }

    /// The same cluster, which reports its progress there.
    #[must_use]
    pub fn reporting(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// The cluster that tests share, with at least `nodes` nodes, which is started if it is not up.
    /// Its name is `LOCKSTEP_TESTBED`, by default `dev`. It stays up when dropped.
    pub async fn shared(nodes: u8) -> Result<Self, ClusterError> {
        Self::ensure(Spec::new(default_name()).nodes(nodes).keep()).await
    }

    /// The cluster of that name if it is up, with nodes added if it has too few; else a new one.
    pub async fn ensure(spec: Spec) -> Result<Self, ClusterError> {
        spec.check()?;
        let (nodes, progress) = (spec.nodes, spec.progress.clone());
        let tools = Tools::all(&spec.progress).await?;
        let _lock = lock(&spec.name).await?;
        let mut cluster = match Self::attach(&spec.name).await {
            Ok(cluster) => cluster,
            Err(ClusterError::NotUp(_)) => Self::up_locked(spec, tools).await?,
            Err(error) => return Err(error),
        };
        cluster.progress = progress;
        while cluster.nodes() < nodes {
            cluster.add_node_locked().await?;
        }
        Ok(cluster)
    }

    /// Adds a node and waits until it is Ready. Returns its number.
    pub async fn add_node(&mut self) -> Result<u8, ClusterError> {
        let _lock = lock(&self.name).await?;
        // Another process may have added nodes.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        self.add_node_locked().await
    }

    /// The instance's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parts that it consists of.
    pub fn mode(&self) -> Mode {
        self.state.mode
    }

    /// The number of nodes. They are numbered from 1; the number of a lost node is not used again.
    pub fn nodes(&self) -> u8 {
        u8::try_from(self.state.node_numbers().count()).unwrap_or(u8::MAX)
    }

    /// The state folder of the instance.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The daemons.
    pub fn daemons(&self) -> &[Daemon] {
        &self.state.daemons
    }

    /// The process of a daemon, such as `kubelet-1` or `containerd-2`.
    pub fn daemon(&self, name: &str) -> Option<ProcessId> {
        self.state.daemon(name)
    }

    /// The programs that the cluster runs.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        Pki::of(&self.dir).kubeconfig(&User::Admin)
    }

    /// The addresses of a cluster with nodes.
    pub fn network(&self) -> Result<Network, ClusterError> {
        let slot = self
            .state
            .slot
            .ok_or_else(|| ClusterError::Invalid("a cluster without nodes".to_owned()))?;
        Ok(Network::new(slot))
    }

    /// A new client with the administrator's credentials.
    pub async fn client(&self) -> Result<Client, ClusterError> {
        let config = Kubeconfig::read_from(self.kubeconfig())?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Runs kubectl as the administrator and returns its standard output.
    pub async fn kubectl<S: AsRef<OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Result<String, ClusterError> {
        let mut command = tokio::process::Command::new(self.tools.path("kubectl")?);
        command.args(args).env("KUBECONFIG", self.kubeconfig());
        Ok(output(command).await?)
    }

    /// A command line that runs `program` in the namespaces of node `index`.
    pub fn on_node(&self, index: u8, program: impl AsRef<OsStr>) -> Result<Command, ClusterError> {
        Ok(Enter::Node(self.holder(index)?).command(program))
    }

    /// A path inside node `index`, such as `/run/containerd/containerd.sock`, as seen from the
    /// machine.
    pub fn node_path(&self, index: u8, path: &str) -> Result<PathBuf, ClusterError> {
        Ok(node::seen_from_host(self.holder(index)?, path))
    }

    /// Loads an image onto every node that does not have it.
    pub async fn load_image(&self, image: &Image) -> Result<(), ClusterError> {
        let archive = self.dir.join("images").join(image.archive_name());
        let digest = image.write(&archive)?;
        for index in self.state.node_numbers().chain(self.state.machine_numbers()) {
            self.import(index, &archive, &digest).await?;
        }
        Ok(())
    }

    async fn load_on(&self, index: u8, image: &Image) -> Result<(), ClusterError> {
        let archive = self.dir.join("images").join(image.archive_name());
        let digest = image.write(&archive)?;
        self.import(index, &archive, &digest).await
    }

    async fn import(&self, index: u8, archive: &Path, digest: &str) -> Result<(), ClusterError> {
        let mut record = archive.as_os_str().to_owned();
        record.push(format!(".{}", node_name(index)));
        let record = PathBuf::from(record);
        if fs::read_to_string(&record).is_ok_and(|loaded| loaded == digest) {
            return Ok(());
        }
        if self.state.machine_numbers().any(|machine| machine == index) {
            self.import_on_machine(index, archive).await?;
        } else {
            let mut command = self.on_node(index, self.tools.path("ctr")?)?;
            command.args(["-n", "k8s.io", "images", "import"]).arg(archive);
            output(command.into()).await?;
        }
        fs::write(&record, digest).map_err(ClusterError::io(&record))
    }

    fn control_plane(&self) -> Result<Pid, ClusterError> {
        let holder = self
            .state
            .daemon("control-plane")
            .ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        Ok(holder.pid())
    }

    /// The process that holds the namespaces of node `index`.
    fn holder(&self, index: u8) -> Result<Pid, ClusterError> {
        let holder = self
            .state
            .daemon(&state::holder_name(index))
            .ok_or(ClusterError::NoNode(index))?;
        Ok(holder.pid())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = down(&self.name)
        {
            eprintln!("cannot remove the cluster {}: {error}", self.name);
        }
    }
}

/// The default name of a cluster: `LOCKSTEP_TESTBED`, else `dev`.
pub fn default_name() -> String {
    std::env::var("LOCKSTEP_TESTBED")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "dev".to_owned())
}

/// The name of node `index`, counted from 1.
pub fn node_name(index: u8) -> String {
    format!("node-{index}")
}

/// The state folder of the instance called `name`.
fn instance_dir(name: &str) -> PathBuf {
    root().join(name)
}

/// Removes instances whose owners have ended.
fn clean_orphans() {
    for name in instances() {
        let state = State::load(&instance_dir(&name));
        if state
            .and_then(|state| state.owner)
            .is_some_and(|owner| !owner.is_alive())
            && let Err(error) = down(&name)
        {
            eprintln!("cannot remove the orphaned cluster {name}: {error}");
        }
    }
}

async fn lock(name: &str) -> Result<Lock, ClusterError> {
    let name = name.to_owned();
    let waiting = tokio::task::spawn_blocking(move || Lock::wait(&name));
    waiting
        .await
        .map_err(|error| ClusterError::io(&root())(error.into()))?
}
