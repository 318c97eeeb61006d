//! Command line of the control plane. Every flag is an environment variable too: `--hub-tls-dir` is `LOCKSTEP_HUB_TLS_DIR`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

#[cfg(test)]
mod tests;

/// Where a pod finds the namespace that it runs in.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Namespace of the product where nothing says otherwise.
const DEFAULT_NAMESPACE: &str = "lockstep-system";

/// Reconciles JobSets and restarts their workers in place.
///
/// The API server is found through KUBECONFIG, or in a cluster through the pod's ServiceAccount.
#[derive(Clone, Debug, Parser)]
#[command(name = "lockstep-control-plane", version)]
pub struct Args {
    /// Address of the metrics endpoint (plain HTTP), `0` to have none.
    #[arg(long, env = "LOCKSTEP_METRICS_BIND_ADDRESS", default_value = ":8080")]
    pub metrics_bind_address: BindAddress,

    /// Address of the health endpoints /healthz and /readyz, `0` to have none.
    #[arg(long, env = "LOCKSTEP_HEALTH_PROBE_BIND_ADDRESS", default_value = ":8081")]
    pub health_probe_bind_address: BindAddress,

    /// Accepted for compatibility; requests are limited by how many are under way, not by rate.
    #[arg(long, env = "LOCKSTEP_KUBE_API_QPS", default_value_t = 500.0)]
    pub kube_api_qps: f32,

    /// Accepted for compatibility, like --kube-api-qps.
    #[arg(long, env = "LOCKSTEP_KUBE_API_BURST", default_value_t = 500)]
    pub kube_api_burst: u32,

    /// Address that node daemons connect to.
    #[arg(long, env = "LOCKSTEP_HUB_BIND_ADDRESS", default_value = "0.0.0.0:9444")]
    pub hub_bind_address: BindAddress,

    /// File with the token that node daemons must present.
    #[arg(long, env = "LOCKSTEP_HUB_TOKEN_FILE")]
    pub hub_token_file: Option<PathBuf>,

    /// Directory of the hub's CA (ca.crt, ca.key), made there if missing. By default they live in a Secret in
    /// the cluster.
    #[arg(long, env = "LOCKSTEP_HUB_TLS_DIR")]
    pub hub_tls_dir: Option<PathBuf>,

    /// Namespace of the product. By default that of the pod, or lockstep-system.
    #[arg(long, env = "LOCKSTEP_NAMESPACE", default_value_t = default_namespace(Path::new(POD_NAMESPACE)))]
    pub namespace: String,

    /// Form of the log on standard error.
    #[arg(long, env = "LOCKSTEP_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// An address to listen on, as Go programs take it: `host:port`, `:port` for all interfaces, `0` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindAddress(pub Option<SocketAddr>);

impl std::str::FromStr for BindAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text == "0" {
            return Ok(Self(None));
        }
        let address = match text.strip_prefix(':') {
            Some(port) => port
                .parse()
                .ok()
                .map(|port| SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)),
            None => text.replace("localhost:", "127.0.0.1:").parse().ok(),
        };
        address
            .map(|address| Self(Some(address)))
            .ok_or_else(|| format!("{text:?} is not host:port, :port or 0"))
    }
}

fn default_namespace(file: &Path) -> String {
    let of_pod = std::fs::read_to_string(file).unwrap_or_default();
    match of_pod.trim() {
        "" => DEFAULT_NAMESPACE.to_owned(),
        namespace => namespace.to_owned(),
    }
}
