//! Real Kubernetes clusters on one machine.
//!
//! A [`Cluster`] is etcd, the API server, controllers, scheduler and DNS, and any number of nodes, each
//! with a kubelet, a containerd and a kube-proxy. Several clusters can be up at once: each instance has
//! a name, and everything that it has on the machine is apart from the others'. Its pieces live in
//! namespaces that no file pins, so they cannot outlive its processes.
//!
//! ```text
//!   Cluster::up(spec) ──> owned: torn down when dropped (unless LOCKSTEP_KEEP is set)
//!   Cluster::shared(n) ─> the instance that is up, or a new one; stays up
//!   teardown::down(name): takes down what is there, also after a crash
//! ```

mod cgroup;
mod control_plane;
pub mod network;
mod node;
mod pki;
mod process;
mod state;
mod teardown;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use futures::future::{try_join, try_join_all};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::unistd::Pid;

pub use process::{Enter, ProcessId};
pub use state::{Daemon, Mode, instances, root};
pub use teardown::{down, down_unowned};

use crate::command::{CommandError, output};
use crate::image::{self, Image, ImageError};
use crate::progress::Progress;
use crate::tools::{ToolError, Tools, catalog, packages};
use crate::wait::TimedOut;
use control_plane::{ControlPlane, Ports};
use network::{MAX_NODES, Network};
use node::NodeSetup;
use pki::{Pki, User};
use process::Launcher;
use state::{Lock, State};

/// A cluster could not be brought up, used or taken down.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A program was not found and not built.
    #[error(transparent)]
    Tools(#[from] ToolError),
    /// Something that Debian packages is not there.
    #[error(transparent)]
    Packages(#[from] packages::MissingPackages),
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// An image could not be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A certificate could not be made.
    #[error("cannot make certificates: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The API server refused something.
    #[error(transparent)]
    Kube(#[from] Box<kube::Error>),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] Box<kube::config::KubeconfigError>),
    /// Something did not come to be in time.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// A daemon has ended by itself.
    #[error("{name} has ended; the end of its log:\n{log}")]
    Died {
        /// The daemon.
        name: String,
        /// The last lines that it wrote.
        log: String,
    },
    /// Processes that do not go, not even when killed.
    #[error("processes that cannot be killed: {0:?}")]
    Unkillable(Vec<ProcessId>),
    /// Too many instances on this machine.
    #[error("all {} slots for clusters are taken on this machine", network::SLOTS)]
    NoSlot,
    /// A name or a number that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// There is no such instance.
    #[error("no cluster called {0} is up")]
    NotUp(String),
    /// No such node.
    #[error("there is no node {0}")]
    NoNode(u8),
}

impl ClusterError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

impl From<kube::Error> for ClusterError {
    fn from(error: kube::Error) -> Self {
        Self::Kube(Box::new(error))
    }
}

impl From<kube::config::KubeconfigError> for ClusterError {
    fn from(error: kube::config::KubeconfigError) -> Self {
        Self::Kubeconfig(Box::new(error))
    }
}

/// Which cluster to bring up.
#[derive(Debug, Clone)]
pub struct Spec {
    name: String,
    mode: Mode,
    nodes: u8,
    keep: bool,
    progress: Progress,
}

impl Spec {
    /// A cluster of one node. The name is made of lower-case letters, digits and `-`.
    pub fn new(name: impl Into<String>) -> Self {
        let keep = std::env::var_os("LOCKSTEP_KEEP").is_some_and(|value| value == "1");
        Self {
            name: name.into(),
            mode: Mode::Nodes,
            nodes: 1,
            keep,
            progress: Progress::new(),
        }
    }

    /// An API server and nothing else, under a name that nobody else has. Needs no root.
    pub fn api_server() -> Self {
        let name = format!("api-{:08x}", rand::random::<u32>());
        let mode = Mode::ApiServer { controllers: false };
        Self {
            mode,
            nodes: 0,
            progress: Progress::quiet(),
            ..Self::new(name)
        }
    }

    /// With an API server: also runs kube-controller-manager.
    #[must_use]
    pub fn with_controllers(mut self) -> Self {
        if self.mode != Mode::Nodes {
            self.mode = Mode::ApiServer { controllers: true };
        }
        self
    }

    /// With so many nodes, at most [`MAX_NODES`].
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// The cluster stays up when it is dropped.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Where progress goes.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    fn check(&self) -> Result<(), ClusterError> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 40 || !self.name.chars().all(fits) {
            let text = "a cluster's name is made of up to 40 lower-case letters, digits and `-`";
            return Err(ClusterError::Invalid(text.to_owned()));
        }
        if self.nodes > MAX_NODES {
            return Err(ClusterError::Invalid(format!(
                "a cluster has at most {MAX_NODES} nodes"
            )));
        }
        if self.mode == Mode::Nodes {
            if !nix::unistd::geteuid().is_root() {
                return Err(ClusterError::Invalid("nodes need root".to_owned()));
            }
            packages::check(packages::Purpose::Run)?;
        }
        Ok(())
    }
}

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
    /// Brings a cluster up. What is left of an instance of that name is taken down first, and so are
    /// instances whose owners have ended without doing it. Torn down when dropped.
    pub async fn up(spec: Spec) -> Result<Self, ClusterError> {
        spec.check()?;
        let names: Vec<_> = match spec.mode {
            Mode::Nodes => catalog::names().collect(),
            Mode::ApiServer { .. } => catalog::API_SERVER_TOOLS.to_vec(),
        };
        let tools = Tools::locate(names, &spec.progress).await?;
        clean_orphans();
        let _lock = lock(&spec.name).await?;
        Self::up_locked(spec, tools).await
    }

    /// The cluster called `name`, if it is up and well. Left alone when dropped.
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

    /// The cluster that tests share, with at least `nodes` nodes: the one called `LOCKSTEP_TESTBED`
    /// (`dev` when unset) if it is up, else it is brought up. Stays up.
    pub async fn shared(nodes: u8) -> Result<Self, ClusterError> {
        Self::ensure(Spec::new(default_name()).nodes(nodes).keep()).await
    }

    /// The cluster of that name if it is up, with nodes added where it has too few; else a new one.
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
        while cluster.state.nodes < nodes {
            cluster.add_node_locked().await?;
        }
        Ok(cluster)
    }

    async fn up_locked(spec: Spec, tools: Tools) -> Result<Self, ClusterError> {
        let dir = instance_dir(&spec.name);
        teardown::down_locked(&dir)?;
        for part in ["logs", "nodes", "images", "bin"] {
            fs::create_dir_all(dir.join(part)).map_err(ClusterError::io(&dir))?;
        }
        let mut cluster = Self {
            state: State::new(spec.mode, ProcessId::own()),
            name: spec.name,
            dir,
            tools,
            progress: spec.progress,
            // Until it is up, so that a failure leaves nothing behind.
            owned: true,
        };
        cluster.state.save(&cluster.dir)?;
        cluster.link_tools()?;
        match spec.mode {
            Mode::Nodes => cluster.bring_up(spec.nodes).await?,
            Mode::ApiServer { .. } => cluster.bring_up_api_server().await?,
        }
        cluster.state.ready = true;
        if spec.keep {
            cluster.state.owner = None;
        }
        cluster.state.save(&cluster.dir)?;
        cluster.owned = !spec.keep;
        Ok(cluster)
    }

    async fn bring_up_api_server(&mut self) -> Result<(), ClusterError> {
        let (ports, address) = (Ports::free()?, Ipv4Addr::LOCALHOST);
        Pki::of(&self.dir).create(address, ports.api())?;
        let started = self.control_plane_setup(address, ports, None, |setup| setup.start_api_server())?;
        self.record(started)?;
        self.wait_for_api_server().await?;
        let controllers =
            self.control_plane_setup(address, ports, None, |setup| setup.start_controllers())?;
        self.record(controllers)
    }

    async fn bring_up(&mut self, nodes: u8) -> Result<(), ClusterError> {
        let holder = self.launcher().start(
            "control-plane",
            Command::new("unshare").args(["--net", "sleep", "infinity"]),
        )?;
        self.record([Daemon {
            name: "control-plane".to_owned(),
            process: holder,
        }])?;
        wait_for_own_network(holder).await?;
        let network = Network::claim(holder.pid(), &self.dir).await?;
        self.state.slot = Some(network.slot());
        self.state.save(&self.dir)?;
        network.set_up_control_plane(holder.pid()).await?;
        self.progress.say(format_args!(
            "starting control plane {} in slot {}",
            self.name,
            network.slot()
        ));
        let (ports, address) = (Ports::STANDARD, network.control_plane());
        Pki::of(&self.dir).create(address, ports.api())?;

        let namespace = Some(holder.pid());
        let started =
            self.control_plane_setup(address, ports, namespace, |setup| setup.start_api_server())?;
        self.record(started)?;
        for index in 1..=nodes {
            self.prepare_node(index).await?;
        }
        let client = self.wait_for_api_server().await?;
        let controllers =
            self.control_plane_setup(address, ports, namespace, |setup| setup.start_controllers())?;
        self.record(controllers)?;
        self.progress.say("API server is ready");
        for index in 1..=nodes {
            self.start_kubelet(index)?;
        }
        try_join(
            control_plane::create_dns_service(&client, address),
            control_plane::wait_for_service_account(&client),
        )
        .await?;
        try_join_all((1..=nodes).map(|index| node::wait_until_ready(&client, index))).await?;
        self.progress.say(format_args!("{nodes} node(s) Ready"));
        Ok(())
    }

    async fn wait_for_api_server(&self) -> Result<Client, ClusterError> {
        let client = self.client().await?;
        control_plane::wait_until_ready(&client, &self.launcher(), &self.state.daemons).await?;
        Ok(client)
    }

    fn control_plane_setup<T>(
        &self,
        address: Ipv4Addr,
        ports: Ports,
        namespace: Option<Pid>,
        act: impl FnOnce(&ControlPlane<'_>) -> T,
    ) -> T {
        let launcher = self.launcher();
        act(&ControlPlane {
            state_dir: &self.dir,
            tools: &self.tools,
            launcher: &launcher,
            mode: self.state.mode,
            address,
            ports,
            namespace,
        })
    }

    /// Adds a node and waits until it is Ready. Gives its number.
    pub async fn add_node(&mut self) -> Result<u8, ClusterError> {
        let _lock = lock(&self.name).await?;
        // Another process may have added some.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        self.add_node_locked().await
    }

    async fn add_node_locked(&mut self) -> Result<u8, ClusterError> {
        let index = self.state.nodes + 1;
        if index > MAX_NODES {
            return Err(ClusterError::Invalid(format!(
                "a cluster has at most {MAX_NODES} nodes"
            )));
        }
        self.prepare_node(index).await?;
        self.start_kubelet(index)?;
        node::wait_until_ready(&self.client().await?, index).await?;
        self.progress.say(format_args!("{} is Ready", node_name(index)));
        Ok(index)
    }

    /// Sets up the namespaces and links of a node, and its containerd with the images that every
    /// cluster has. Needs no API server.
    async fn prepare_node(&mut self, index: u8) -> Result<(), ClusterError> {
        let network = self.network()?;
        let control_plane = self.control_plane()?;
        let holder = self.node_setup(index, network, |setup| setup.start_holder())?;
        let pid = holder.process.pid();
        self.record([holder.clone()])?;
        node::wait_for_holder(&self.dir, &self.launcher(), &holder, index).await?;
        network.add_node(control_plane, pid, index).await?;
        for other in 1..=self.state.nodes {
            network.route_pods(Some(self.holder(other)?), index).await?;
            network.route_pods(Some(pid), other).await?;
        }
        network.route_pods(Some(control_plane), index).await?;
        network.route_pods(None, index).await?;

        let containerd = self.node_setup(index, network, |setup| setup.start_containerd(pid))?;
        self.state.nodes = index;
        self.record([containerd.clone()])?;
        node::wait_for_containerd(&self.launcher(), pid, &containerd).await?;
        let pause = image::pause().await?;
        try_join(
            self.load_on(index, &pause),
            self.load_on(index, &image::busybox()?),
        )
        .await?;
        Ok(())
    }

    fn start_kubelet(&mut self, index: u8) -> Result<(), ClusterError> {
        let holder = self.holder(index)?;
        let started = self.node_setup(index, self.network()?, |setup| setup.start_kubelet(holder))?;
        self.record(started)
    }

    fn node_setup<T>(&self, index: u8, network: Network, act: impl FnOnce(&NodeSetup<'_>) -> T) -> T {
        let launcher = self.launcher();
        act(&NodeSetup {
            state_dir: &self.dir,
            tools: &self.tools,
            launcher: &launcher,
            network,
            index,
        })
    }

    /// The instance's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it consists of.
    pub fn mode(&self) -> Mode {
        self.state.mode
    }

    /// How many nodes there are. They are counted from 1.
    pub fn nodes(&self) -> u8 {
        self.state.nodes
    }

    /// The folder with everything that belongs to the instance.
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

    /// A new client of the administrator's.
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

    /// A path inside node `index`, such as `/run/containerd/containerd.sock`, as seen from the machine.
    pub fn node_path(&self, index: u8, path: &str) -> Result<PathBuf, ClusterError> {
        Ok(node::seen_from_host(self.holder(index)?, path))
    }

    /// Puts an image on every node that does not have it.
    pub async fn load_image(&self, image: &Image) -> Result<(), ClusterError> {
        let archive = self.dir.join("images").join(image.archive_name());
        let digest = image.write(&archive)?;
        for index in 1..=self.state.nodes {
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
        let mut command = self.on_node(index, self.tools.path("ctr")?)?;
        command.args(["-n", "k8s.io", "images", "import"]).arg(archive);
        output(command.into()).await?;
        fs::write(&record, digest).map_err(ClusterError::io(&record))
    }

    /// Leaves the cluster up when this is dropped.
    pub fn leave_up(mut self) -> Result<(), ClusterError> {
        self.owned = false;
        self.state.owner = None;
        self.state.save(&self.dir)
    }

    fn launcher(&self) -> Launcher {
        Launcher::new(&self.dir)
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
            .daemon(&node::holder_name(index))
            .ok_or(ClusterError::NoNode(index))?;
        Ok(holder.pid())
    }

    fn record(&mut self, daemons: impl IntoIterator<Item = Daemon>) -> Result<(), ClusterError> {
        self.state.daemons.extend(daemons);
        self.state.save(&self.dir)
    }

    /// Gathers the programs in one folder, which daemons search first.
    fn link_tools(&self) -> Result<(), ClusterError> {
        let hidden = |path: &Path| ["/run", "/var"].iter().any(|hidden| path.starts_with(hidden));
        for (name, path) in self.tools.iter() {
            if self.state.mode == Mode::Nodes && (hidden(path) || hidden(&self.dir)) {
                return Err(ClusterError::Invalid(format!(
                    "{} cannot be seen inside nodes, which have a /run and /var of their own: set \
                     LOCKSTEP_CACHE and LOCKSTEP_STATE to other places",
                    path.display(),
                )));
            }
            let link = self.dir.join("bin").join(name);
            symlink(path, &link).map_err(ClusterError::io(&link))?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = down(&self.name)
        {
            eprintln!("cannot take the cluster {} down: {error}", self.name);
        }
    }
}

/// The name of the cluster that is meant when none is given: `LOCKSTEP_TESTBED`, else `dev`.
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

/// Takes down instances whose owners have ended.
fn clean_orphans() {
    for name in instances() {
        let state = State::load(&instance_dir(&name));
        if state
            .and_then(|state| state.owner)
            .is_some_and(|owner| !owner.is_alive())
            && let Err(error) = down(&name)
        {
            eprintln!("cannot take the orphaned cluster {name} down: {error}");
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

/// Waits until a process that was told to has left our network namespace.
async fn wait_for_own_network(process: ProcessId) -> Result<(), ClusterError> {
    let ours =
        fs::read_link("/proc/self/ns/net").map_err(ClusterError::io(Path::new("/proc/self/ns/net")))?;
    let path = format!("/proc/{}/ns/net", process.pid);
    crate::wait::until(
        "the network namespace is made",
        std::time::Duration::from_secs(10),
        async || {
            fs::read_link(&path)
                .is_ok_and(|theirs| theirs != ours)
                .then_some(())
        },
    )
    .await?;
    Ok(())
}
