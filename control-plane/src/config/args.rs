//! Command line of the control plane. Every flag is an environment variable too: `--hub-tls-dir` is
//! `LOCKSTEP_HUB_TLS_DIR`.
//!
//! The flags of the upstream controller are taken as Go programs take them: with one dash or two,
//! and the last one wins. What a flag does not say may be said by the file of `--config`;
//! [`crate::config::settings`] puts both together.

mod go;
mod zap;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use lockstep_api::duration::parse_duration;
use lockstep_process::logging::LogFormat;

pub use go::{FeatureGate, FeatureGates};
pub use zap::{StacktraceLevel, TimeEncoding, Zap, ZapEncoder, ZapLevel};

#[cfg(test)]
mod tests;

/// Where a pod finds the namespace that it runs in.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Namespace of the product where nothing says otherwise.
const DEFAULT_NAMESPACE: &str = "lockstep-system";

/// Reconciles JobSets and restarts their workers in place.
///
/// The API server is found through --kubeconfig or KUBECONFIG, or in a cluster through the pod's
/// ServiceAccount.
#[derive(Clone, Debug, Parser)]
#[command(name = "lockstep-control-plane", version, args_override_self = true)]
pub struct Args {
    /// File with a Configuration (config.jobset.x-k8s.io/v1alpha1). Flags win over it.
    #[arg(long, env = "LOCKSTEP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// File that says how to reach the API server.
    #[arg(long, env = "LOCKSTEP_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Address of the metrics endpoint, `0` to have none [default: :8443]
    ///
    /// It speaks TLS to those who may get the URL /metrics, and plain HTTP to the loopback
    /// interface.
    #[arg(long, env = "LOCKSTEP_METRICS_BIND_ADDRESS", value_name = "ADDRESS")]
    pub metrics_bind_address: Option<BindAddress>,

    /// Address of the health endpoints /healthz and /readyz, `0` to have none [default: :8081]
    #[arg(long, env = "LOCKSTEP_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<BindAddress>,

    /// Whether replicas elect one among them that acts [default: true]
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,

    /// How long the others wait for a leader that is silent [default: 15s]
    ///
    /// A new one decides within this time and a second or two after the old one was killed. One
    /// that ends in good order gives way at once.
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT_LEASE_DURATION", value_parser = parse_duration, value_name = "DURATION")]
    pub leader_elect_lease_duration: Option<Duration>,

    /// How long a leader tries to stay one before it gives up; less than the lease lasts [default:
    /// 10s]
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT_RENEW_DEADLINE", value_parser = parse_duration, value_name = "DURATION")]
    pub leader_elect_renew_deadline: Option<Duration>,

    /// Time between attempts to renew; less than the renew deadline [default: 2s]
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT_RETRY_PERIOD", value_parser = parse_duration, value_name = "DURATION")]
    pub leader_elect_retry_period: Option<Duration>,

    /// Requests to the API server in a second, for each kind of resource [default: no limit; 500
    /// where --kube-api-burst is given]
    ///
    /// Restarts wait too where it is reached. Leases, TokenReviews and SubjectAccessReviews are not
    /// counted. What is not above 0 is no limit. Without a limit requests are limited by how many
    /// are under way.
    #[arg(
        long,
        env = "LOCKSTEP_KUBE_API_QPS",
        value_name = "NUMBER",
        allow_negative_numbers = true
    )]
    pub kube_api_qps: Option<f32>,

    /// Requests to the API server at once, for each kind of resource [default: no limit; 500 where
    /// --kube-api-qps is given]
    ///
    /// Less than 1 is 1.
    #[arg(
        long,
        env = "LOCKSTEP_KUBE_API_BURST",
        value_name = "NUMBER",
        allow_negative_numbers = true
    )]
    pub kube_api_burst: Option<i32>,

    /// Features to turn on or off: InPlaceRestart, RestartJob, ElasticJobSet, or AllAlpha for those
    /// of them that are not named.
    #[arg(long, env = "LOCKSTEP_FEATURE_GATES", value_name = "NAME=BOOL,...")]
    pub feature_gates: Vec<FeatureGates>,

    /// Whether to look after RayClusters, RayJobs and RayCronJobs (ray.io/v1).
    #[arg(long, env = "LOCKSTEP_RAY", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub ray: bool,

    /// Host and port of an HTTP proxy by which the dashboards of RayJobs' clusters are reached,
    /// where their pods are not: outside of the cluster.
    #[arg(long, env = "LOCKSTEP_RAY_DASHBOARD_PROXY", value_name = "ADDRESS")]
    pub ray_dashboard_proxy: Option<String>,

    /// Port of the admission webhooks [default: 9443]
    #[arg(long, env = "LOCKSTEP_WEBHOOK_PORT", value_name = "PORT")]
    pub webhook_port: Option<u16>,

    /// Directory with tls.crt and tls.key for the webhooks. By default the control plane makes
    /// certificates and keeps them new.
    #[arg(long, env = "LOCKSTEP_WEBHOOK_CERT_DIR", value_name = "DIR")]
    pub webhook_cert_dir: Option<PathBuf>,

    /// Serve no webhooks; defaults are applied and mistakes found by the controller alone.
    #[arg(long, env = "LOCKSTEP_DISABLE_WEBHOOKS", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub disable_webhooks: bool,

    /// Whether to install the CustomResourceDefinition of JobSets, or bring it up to date, at the
    /// start.
    #[arg(long, env = "LOCKSTEP_MANAGE_CRDS", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    pub manage_crds: bool,

    /// Address that node daemons connect to.
    #[arg(
        long,
        env = "LOCKSTEP_HUB_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = ":9444"
    )]
    pub hub_bind_address: BindAddress,

    /// IP address at which node daemons reach this replica, which they are told where it leads;
    /// that of the pod. The port is that of --hub-bind-address.
    #[arg(long, env = "LOCKSTEP_HUB_ADVERTISE_ADDRESS", value_name = "IP")]
    pub hub_advertise_address: Option<IpAddr>,

    /// Audience that the tokens of node daemons must be for.
    #[arg(
        long,
        env = "LOCKSTEP_HUB_AUDIENCE",
        value_name = "AUDIENCE",
        default_value = "lockstep-hub"
    )]
    pub hub_audience: String,

    /// ServiceAccount of node daemons, in the product's namespace.
    #[arg(
        long,
        env = "LOCKSTEP_NODE_DAEMON_SERVICE_ACCOUNT",
        value_name = "NAME",
        default_value = "lockstep-node-daemon"
    )]
    pub node_daemon_service_account: String,

    /// Image with the pod agent (that of the node daemon). Pod templates bring the agent along from
    /// it, where the nodes' container runtimes have no NRI. Its containers must state their
    /// command, and their namespaces allow hostPath volumes.
    #[arg(long, env = "LOCKSTEP_INJECT_AGENT_IMAGE", value_name = "IMAGE")]
    pub inject_agent_image: Option<String>,

    /// Directory of the hub's CA (ca.crt, ca.key), made there if missing. By default they live in a
    /// Secret in the cluster.
    #[arg(long, env = "LOCKSTEP_HUB_TLS_DIR", value_name = "DIR")]
    pub hub_tls_dir: Option<PathBuf>,

    /// Connections from one address on which no node daemon has made itself known yet, at the same
    /// time; more of that address wait. Those on which one has are not counted.
    #[arg(
        long,
        env = "LOCKSTEP_HUB_UNKNOWN_CONNECTIONS",
        value_name = "NUMBER",
        default_value = "256",
        value_parser = clap::value_parser!(u16).range(1..=8192)
    )]
    pub hub_unknown_connections: u16,

    /// Whether to replace lost pods of groups that restart in place at once, and not leave that to
    /// the Job controller's back-off.
    #[arg(long, env = "LOCKSTEP_REPLACE_LOST_PODS", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    pub replace_lost_pods: bool,

    /// Address of the platform API (lockstep.platform.v1), `0` to have none. Its certificate is the
    /// hub's.
    #[arg(
        long,
        env = "LOCKSTEP_PLATFORM_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0"
    )]
    pub platform_bind_address: BindAddress,

    /// Address of the status page, empty or `0` to have none. It is for the loopback interface:
    /// nobody is asked who they are.
    #[arg(
        long,
        env = "LOCKSTEP_STATUS_PAGE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8082"
    )]
    pub status_page_bind_address: BindAddress,

    /// Collector that gets one trace per restart, as OTLP over gRPC, such as http://collector:4317.
    /// By default OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, or else there
    /// are no traces.
    #[arg(long, env = "LOCKSTEP_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Namespace of the product. By default that of the pod, or lockstep-system.
    #[arg(long, env = "LOCKSTEP_NAMESPACE", default_value_t = default_namespace(Path::new(POD_NAMESPACE)))]
    pub namespace: String,

    /// Form of the log on standard error [default: text]
    #[arg(long, env = "LOCKSTEP_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,

    /// The log, as upstream's flags say it.
    #[command(flatten)]
    pub zap: Zap,
}

impl Args {
    /// Reads a command line as Go programs take it, the program's name first.
    ///
    /// # Errors
    /// What is wrong with it, or the help or version that it asks for.
    pub fn from_command_line(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(go::two_dashes(args))
    }
}

fn default_namespace(file: &Path) -> String {
    let of_pod = std::fs::read_to_string(file).unwrap_or_default();
    match of_pod.trim() {
        "" => DEFAULT_NAMESPACE.to_owned(),
        namespace => namespace.to_owned(),
    }
}

/// An address to listen on, as Go programs take it: `host:port`, `:port` for all interfaces, `0`
/// for nowhere.
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
