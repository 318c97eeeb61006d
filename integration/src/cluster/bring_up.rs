//! Starts an instance step by step. Each daemon is recorded as soon as it has been started.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use kube::Client;
use nix::unistd::Pid;

use super::control_plane::{self, ControlPlane, Ports};
use super::network::{MAX_NODES, Network};
use super::node::{self, NodeSetup};
use super::pki::Pki;
use super::process::Launcher;
use super::state::{Daemon, State};
use super::{Cluster, ClusterError, Mode, ProcessId, Spec, instance_dir, node_name, spec, teardown};
use crate::image;
use crate::tools::Tools;
use crate::wait::until;

impl Cluster {
    /// Removes what is left of an instance, and starts it. The caller holds its lock.
    pub(super) async fn up_locked(spec: Spec, tools: Tools) -> Result<Self, ClusterError> {
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
            // Its `Drop` would wait for the lock.
            owned: false,
        };
        cluster.state.soon_lost = spec.soon_lost;
        cluster.state.job_groups = spec.job_groups;
        cluster.state.save(&cluster.dir)?;
        cluster.link_tools()?;
        let brought_up = match spec.mode {
            Mode::Nodes => cluster.bring_up(spec.nodes).await,
            Mode::ApiServer { .. } => cluster.bring_up_api_server().await,
        };
        if let Err(error) = brought_up {
            if !spec::keep_all() {
                teardown::down_locked(&cluster.dir)?;
            }
            return Err(error);
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
            soon_lost: self.state.soon_lost,
            job_groups: self.state.job_groups,
            address,
            ports,
            namespace,
        })
    }

    /// The number of the next node.
    pub(super) fn next_node(&self) -> Result<u8, ClusterError> {
        let index = self.state.last_node + 1;
        if index > MAX_NODES {
            return Err(ClusterError::Invalid(format!(
                "a cluster has at most {MAX_NODES} nodes"
            )));
        }
        Ok(index)
    }

    /// [`Cluster::add_node`] for a caller that holds the lock.
    pub(super) async fn add_node_locked(&mut self) -> Result<u8, ClusterError> {
        let index = self.next_node()?;
        self.prepare_node(index).await?;
        self.start_kubelet(index)?;
        node::wait_until_ready(&self.client().await?, index).await?;
        self.progress.say(format_args!("{} is Ready", node_name(index)));
        Ok(index)
    }

    /// Sets up the namespaces and links of a node, and its containerd with the images that every
    /// cluster has. It needs no API server.
    async fn prepare_node(&mut self, index: u8) -> Result<(), ClusterError> {
        let network = self.network()?;
        let control_plane = self.control_plane()?;
        let others: Vec<_> = self.state.node_numbers().collect();
        let holder = self.node_setup(index, network, |setup| setup.start_holder())?;
        let pid = holder.process.pid();
        self.state.last_node = index;
        self.record([holder.clone()])?;
        node::wait_for_holder(&self.dir, &self.launcher(), &holder, index).await?;
        network.add_node(control_plane, pid, index).await?;
        for other in others {
            network.route_pods(Some(self.holder(other)?), index).await?;
            network.route_pods(Some(pid), other).await?;
        }
        network.route_pods(Some(control_plane), index).await?;
        network.route_pods(None, index).await?;

        let containerd = self.node_setup(index, network, |setup| setup.start_containerd(pid))?;
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

    pub(super) fn node_setup<T>(
        &self,
        index: u8,
        network: Network,
        act: impl FnOnce(&NodeSetup<'_>) -> T,
    ) -> T {
        let launcher = self.launcher();
        act(&NodeSetup {
            state_dir: &self.dir,
            tools: &self.tools,
            launcher: &launcher,
            network,
            index,
            soon_lost: self.state.soon_lost,
            containerd: &self.state.containerd,
        })
    }

    pub(super) fn launcher(&self) -> Launcher {
        Launcher::new(&self.dir)
    }

    pub(super) fn record(&mut self, daemons: impl IntoIterator<Item = Daemon>) -> Result<(), ClusterError> {
        self.state.daemons.extend(daemons);
        self.state.save(&self.dir)
    }

    /// Links the programs into one folder, which is first on the PATH of daemons.
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

/// Waits until a process has entered a network namespace of its own.
async fn wait_for_own_network(process: ProcessId) -> Result<(), ClusterError> {
    let ours =
        fs::read_link("/proc/self/ns/net").map_err(ClusterError::io(Path::new("/proc/self/ns/net")))?;
    let path = format!("/proc/{}/ns/net", process.pid);
    until(
        "the network namespace exists",
        Duration::from_secs(10),
        async || {
            fs::read_link(&path)
                .is_ok_and(|theirs| theirs != ours)
                .then_some(())
        },
    )
    .await?;
    Ok(())
}
