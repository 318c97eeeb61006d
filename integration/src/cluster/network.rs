//! The address plan and the links of instances.
//!
//! Every instance has a slot, a number that separates its addresses from those of other instances
//! on the machine. Addresses are from 198.18.0.0/15, which RFC 2544 reserves for test networks.
//! Services have addresses from 10.96.0.0/16, which is routed only inside nodes.
//!
//! ```text
//!   host            198.18.<slot>.254  lockstep<slot> ──veth──┐
//!   control plane   198.18.<slot>.1    cp0 (bridge) ──────────┤  (the cluster's network namespace)
//!   node-1          198.18.<slot>.11   eth0 ────────veth──────┤  (one namespace per node)
//!   node-2          198.18.<slot>.12   eth0 ────────veth──────┘
//!   pods of node-N  198.19.<slot * 16 + N - 1>.0/24
//! ```
//! Host, control plane and nodes have a route to each node's pods. There is no route out of the
//! machine.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use super::ClusterError;
use crate::command::{run, run_blocking};

/// The most instances on one machine.
pub const SLOTS: u8 = 16;
/// The most nodes of one instance.
pub const MAX_NODES: u8 = 16;
/// The addresses of Services.
pub const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The address of the API server's Service.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The address of the DNS Service.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

/// The name of the bridge in the cluster's network namespace.
const BRIDGE: &str = "cp0";

/// The addresses of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    slot: u8,
}

impl Network {
    /// The network of a slot, which is below [`SLOTS`].
    pub fn new(slot: u8) -> Self {
        Self { slot: slot % SLOTS }
    }

    /// The slot.
    pub fn slot(self) -> u8 {
        self.slot
    }

    /// The address of the control plane.
    pub fn control_plane(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.slot, 1)
    }

    /// The machine itself, as nodes and pods see it.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.slot, 254)
    }

    /// The address of node `index`, counted from 1.
    pub fn node(self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.slot, 10 + index)
    }

    /// The pods of node `index`, counted from 1.
    pub fn pods(self, index: u8) -> String {
        format!("198.19.{}.0/24", self.slot * MAX_NODES + (index - 1))
    }

    /// The pods of all nodes.
    pub fn all_pods(self) -> String {
        format!("198.19.{}.0/20", self.slot * MAX_NODES)
    }

    /// The name of the host's link to this instance.
    pub fn host_link(self) -> String {
        format!("lockstep{}", self.slot)
    }

    /// Takes a free slot by creating the host's link, whose name is unique. The other end is in the
    /// network namespace of `control_plane`. The link's alias names the instance.
    pub(super) async fn claim(control_plane: Pid, state_dir: &Path) -> Result<Self, ClusterError> {
        for network in (0..SLOTS).map(Self::new) {
            let link = network.host_link();
            if link_exists(&link) {
                continue;
            }
            let peer = format!("name host0 netns {control_plane}");
            let made = ip(&format!("link add {link} type veth peer {peer}")).await;
            match made {
                Ok(()) => {}
                Err(_) if link_exists(&link) => continue,
                Err(error) => return Err(error),
            }
            let alias = state_dir.to_string_lossy().into_owned();
            run("ip", ["link", "set", &link, "alias", &alias]).await?;
            return Ok(network);
        }
        Err(ClusterError::NoSlot(SLOTS))
    }

    /// Connects host and control plane by the bridge.
    pub(super) async fn set_up_control_plane(self, control_plane: Pid) -> Result<(), ClusterError> {
        let link = self.host_link();
        ip(&format!("addr add {}/24 dev {link}", self.host())).await?;
        ip(&format!("link set {link} up")).await?;
        ip_in(
            control_plane,
            &[
                "link set lo up".to_owned(),
                format!("link add {BRIDGE} type bridge forward_delay 0 stp_state 0"),
                format!("addr add {}/24 dev {BRIDGE}", self.control_plane()),
                format!("link set {BRIDGE} up"),
                format!("link set host0 master {BRIDGE} up"),
            ],
        )
        .await
    }

    /// Connects node `index`, whose network namespace is that of `node`, to the bridge.
    pub(super) async fn add_node(self, control_plane: Pid, node: Pid, index: u8) -> Result<(), ClusterError> {
        let link = format!("node{index}");
        let add = format!("link add {link} type veth peer name eth0 netns {node}");
        self.on_bridge(control_plane, &add, &link).await?;
        ip_in(
            node,
            &[
                "link set lo up".to_owned(),
                format!("addr add {}/24 dev eth0", self.node(index)),
                "link set eth0 up".to_owned(),
                format!("route add default via {}", self.control_plane()),
            ],
        )
        .await?;
        let forward = "echo 1 > /proc/sys/net/ipv4/ip_forward";
        run("nsenter", ["-t", &node.to_string(), "-n", "sh", "-c", forward]).await?;
        Ok(())
    }

    /// Adds a link to the bridge by the `ip` command `add`.
    pub(super) async fn on_bridge(
        self,
        control_plane: Pid,
        add: &str,
        link: &str,
    ) -> Result<(), ClusterError> {
        let join = format!("link set {link} master {BRIDGE} up");
        ip_in(control_plane, &[add.to_owned(), join]).await
    }

    /// Makes the pods of node `to` reachable from the namespace of `from`, or from the host.
    pub(super) async fn route_pods(self, from: Option<Pid>, to: u8) -> Result<(), ClusterError> {
        let route = format!("route replace {} via {}", self.pods(to), self.node(to));
        match from {
            Some(pid) => ip_in(pid, &[route]).await,
            None => ip(&route).await,
        }
    }

    /// Deletes the host's link, and with it its routes.
    pub(super) fn release(self) -> Result<(), ClusterError> {
        let link = self.host_link();
        if link_exists(&link) {
            let deleted = run_blocking("ip", ["link", "del", &link]);
            if link_exists(&link) {
                deleted?;
            }
        }
        Ok(())
    }

    /// The network whose link belongs to the instance in `state_dir`.
    pub(super) fn of(state_dir: &Path) -> Option<Self> {
        let owner = state_dir.to_string_lossy();
        (0..SLOTS).map(Self::new).find(|network| {
            fs::read_to_string(sys_path(&network.host_link()).join("ifalias"))
                .is_ok_and(|alias| alias.trim_end() == owner)
        })
    }
}

fn sys_path(link: &str) -> PathBuf {
    Path::new("/sys/class/net").join(link)
}

fn link_exists(link: &str) -> bool {
    sys_path(link).exists()
}

async fn ip(command: &str) -> Result<(), ClusterError> {
    run("ip", command.split_whitespace()).await?;
    Ok(())
}

/// Runs `ip` commands together in the network namespace of `pid`. It does not use `ip netns exec`,
/// which would remount /sys.
async fn ip_in(pid: Pid, commands: &[String]) -> Result<(), ClusterError> {
    let script = commands
        .iter()
        .map(|command| format!("ip {command}"))
        .collect::<Vec<_>>()
        .join(" && ");
    run("nsenter", ["-t", &pid.to_string(), "-n", "sh", "-c", &script]).await?;
    Ok(())
}
