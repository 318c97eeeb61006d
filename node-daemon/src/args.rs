//! The command line. Every flag is also an environment variable.

use std::path::PathBuf;

use clap::Parser;
use lockstep_process::logging::LogFormat;

/// Lockstep's node daemon: puts the pod agent in front of workers and links them to the control
/// plane.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Args {
    /// Address of the control plane's node hub, https://host:port.
    #[arg(long, env = "LOCKSTEP_HUB")]
    pub hub: String,
    /// CA of the hub's certificate (PEM). The file may appear later.
    #[arg(long, env = "LOCKSTEP_HUB_CA")]
    pub hub_ca: PathBuf,
    /// Name in the hub's certificate.
    #[arg(
        long,
        env = "LOCKSTEP_HUB_SERVER_NAME",
        default_value = "lockstep-control-plane"
    )]
    pub hub_server_name: String,
    /// ServiceAccount token of this daemon, for the hub's audience. The file may appear later, and
    /// may be renewed.
    #[arg(long, env = "LOCKSTEP_TOKEN_FILE")]
    pub token_file: PathBuf,
    /// Name of this node, for the log. The hub reads it from the token.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// containerd's socket.
    #[arg(
        long,
        env = "LOCKSTEP_CONTAINERD_SOCKET",
        default_value = "/run/containerd/containerd.sock"
    )]
    pub containerd_socket: PathBuf,
    /// NRI's socket.
    #[arg(long, env = "LOCKSTEP_NRI_SOCKET", default_value = "/var/run/nri/nri.sock")]
    pub nri_socket: PathBuf,
    /// Directory for the agent binary and the pods' sockets; the same path as on the host.
    #[arg(long, env = "LOCKSTEP_STATE_DIR", default_value = "/run/lockstep")]
    pub state_dir: PathBuf,
    /// The pod agent's binary.
    #[arg(long, env = "LOCKSTEP_AGENT_BINARY")]
    pub agent_binary: PathBuf,
    /// Format of the log.
    #[arg(long, env = "LOCKSTEP_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
}
