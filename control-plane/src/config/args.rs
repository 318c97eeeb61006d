//! The command line of the control plane. Every flag is also an environment variable:
//! `--hub-tls-dir` is `LOCKSTEP_HUB_TLS_DIR`.
//!
//! The flags of the upstream controller follow the rules of Go programs: one dash or two, and the
//! last one wins. The file of `--config` sets what flags do not; [`crate::config::settings`]
//! combines both.

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

/// The file with the pod's own namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// The default namespace of the product.
const DEFAULT_NAMESPACE: &str = "lockstep-system";

/// Reconciles JobSets and restarts their workers in place.
///
/// The API server is found through --kubeconfig or KUBECONFIG, or through the pod's ServiceAccount
/// in a cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "lockstep-control-plane", version, args_override_self = true)]
pub struct Args {
    /// File with a Configuration (config.jobset.x-k8s.io/v1alpha1). Flags override it.
    #[arg(long, env = "LOCKSTEP_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Kubeconfig file for the API server.
    #[arg(long, env = "LOCKSTEP_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Address of the metrics endpoint, `0` to disable it [default: :8443]
    ///
    /// It serves TLS to clients that may get the URL /metrics, and plain HTTP on the loopback
    /// interface.
    #[arg(long, env = "LOCKSTEP_METRICS_BIND_ADDRESS", value_name = "ADDRESS")]
    pub metrics_bind_address: Option<BindAddress>,

    /// Address of the health endpoints /healthz and /readyz, `0` to disable them [default: :8081]
    #[arg(long, env = "LOCKSTEP_HEALTH_PROBE_BIND_ADDRESS", value_name = "ADDRESS")]
    pub health_probe_bind_address: Option<BindAddress>,

    /// Elect a leader among the replicas [default: true]
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub leader_elect: Option<bool>,

    /// How long other replicas wait for a silent leader [default: 15s]
    ///
    /// After a leader is killed, a new one takes over within this time and a second or two. A
    /// leader that shuts down cleanly gives way at once.
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT_LEASE_DURATION", value_parser = parse_duration, value_name = "DURATION")]
    pub leader_elect_lease_duration: Option<Duration>,

    /// How long a leader tries to renew before it gives up; less than the lease duration [default:
    /// 10s]
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT_RENEW_DEADLINE", value_parser = parse_duration, value_name = "DURATION")]
    pub leader_elect_renew_deadline: Option<Duration>,

    /// Time between attempts to renew; less than the renew deadline [default: 2s]
    #[arg(long, env = "LOCKSTEP_LEADER_ELECT_RETRY_PERIOD", value_parser = parse_duration, value_name = "DURATION")]
    pub leader_elect_retry_period: Option<Duration>,

    /// Requests per second to the API server, for each kind of resource [default: no limit; 500 if
    /// --kube-api-burst is given]
    ///
    /// At the limit restarts wait too. Leases, TokenReviews and SubjectAccessReviews do not count.
    /// 0 or less means no limit. Without this limit only the number of concurrent requests is
    /// limited.
    #[arg(
        long,
        env = "LOCKSTEP_KUBE_API_QPS",
        value_name = "NUMBER",
        allow_negative_numbers = true
    )]
    pub kube_api_qps: Option<f32>,

    /// Burst of requests to the API server, for each kind of resource [default: no limit; 500 if
    /// --kube-api-qps is given]
    ///
    /// Values below 1 mean 1.
    #[arg(
        long,
        env = "LOCKSTEP_KUBE_API_BURST",
        value_name = "NUMBER",
        allow_negative_numbers = true
    )]
    pub kube_api_burst: Option<i32>,

    /// Features to enable or disable: InPlaceRestart, RestartJob, ElasticJobSet,
    /// ExecutionAttemptsTracking, JobSetActiveDeadlineSeconds,
    /// MutablePodResourcesForSuspendedJobSets, or AllAlpha for those that are not named.
    #[arg(long, env = "LOCKSTEP_FEATURE_GATES", value_name = "NAME=BOOL,...")]
    pub feature_gates: Vec<FeatureGates>,

    /// Reconcile RayClusters, RayJobs and RayCronJobs (ray.io/v1).
    #[arg(long, env = "LOCKSTEP_RAY", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub ray: bool,

    /// Host and port of an HTTP proxy for the dashboards of RayJobs' clusters, if their pods cannot
    /// be reached directly: outside of the cluster.
    #[arg(long, env = "LOCKSTEP_RAY_DASHBOARD_PROXY", value_name = "ADDRESS")]
    pub ray_dashboard_proxy: Option<String>,

    /// Port of the admission webhooks [default: 9443]
    #[arg(long, env = "LOCKSTEP_WEBHOOK_PORT", value_name = "PORT")]
    pub webhook_port: Option<u16>,

    /// Directory with tls.crt and tls.key for the webhooks. By default the control plane creates
    /// and renews the certificates.
    #[arg(long, env = "LOCKSTEP_WEBHOOK_CERT_DIR", value_name = "DIR")]
    pub webhook_cert_dir: Option<PathBuf>,

    /// Do not serve webhooks; only the controller applies defaults and reports mistakes.
    #[arg(long, env = "LOCKSTEP_DISABLE_WEBHOOKS", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false")]
    pub disable_webhooks: bool,

    /// Install or upgrade the CustomResourceDefinition of JobSets at startup.
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

    /// IP address at which node daemons reach this replica, usually the pod's. It is published
    /// while the replica leads. The port is that of --hub-bind-address.
    #[arg(long, env = "LOCKSTEP_HUB_ADVERTISE_ADDRESS", value_name = "IP")]
    pub hub_advertise_address: Option<IpAddr>,

    /// Required audience of node daemons' tokens.
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

    /// Image with the pod agent (that of the node daemon). Pod templates then copy the agent from
    /// it, for nodes whose container runtimes have no NRI. Containers must state their command, and
    /// their namespaces must allow hostPath volumes.
    #[arg(long, env = "LOCKSTEP_INJECT_AGENT_IMAGE", value_name = "IMAGE")]
    pub inject_agent_image: Option<String>,

    /// Directory of the hub's CA (ca.crt, ca.key), which is created if missing. By default the CA
    /// is stored in a Secret in the cluster.
    #[arg(long, env = "LOCKSTEP_HUB_TLS_DIR", value_name = "DIR")]
    pub hub_tls_dir: Option<PathBuf>,

    /// Concurrent connections from one address without an authenticated node daemon; further ones
    /// wait. Authenticated ones do not count.
    #[arg(
        long,
        env = "LOCKSTEP_HUB_UNKNOWN_CONNECTIONS",
        value_name = "NUMBER",
        default_value = "256",
        value_parser = clap::value_parser!(u16).range(1..=8192)
    )]
    pub hub_unknown_connections: u16,

    /// Replace lost pods of groups that restart in place at once, instead of after the Job
    /// controller's backoff.
    #[arg(long, env = "LOCKSTEP_REPLACE_LOST_PODS", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    pub replace_lost_pods: bool,

    /// Address of the platform API (lockstep.platform.v1), `0` to disable it. It uses the hub's
    /// certificate.
    #[arg(
        long,
        env = "LOCKSTEP_PLATFORM_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "0"
    )]
    pub platform_bind_address: BindAddress,

    /// Address of the status page, empty or `0` to disable it. Keep it on the loopback interface:
    /// clients are not authenticated.
    #[arg(
        long,
        env = "LOCKSTEP_STATUS_PAGE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:8082"
    )]
    pub status_page_bind_address: BindAddress,

    /// Collector for one trace per restart, as OTLP over gRPC, such as http://collector:4317. By
    /// default OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT; without any there
    /// are no traces.
    #[arg(long, env = "LOCKSTEP_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Namespace of the product. By default the pod's, or lockstep-system.
    #[arg(long, env = "LOCKSTEP_NAMESPACE", default_value_t = default_namespace(Path::new(POD_NAMESPACE)))]
    pub namespace: String,

    /// Format of the log on standard error [default: text]
    #[arg(long, env = "LOCKSTEP_LOG_FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,

    /// The log flags of upstream.
    #[command(flatten)]
    pub zap: Zap,
}

impl Args {
    /// Parses a command line by the rules of Go programs; the first argument is the program's name.
    ///
    /// # Errors
    /// The command line is invalid, or asks for help or the version.
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

/// An address to listen on, as in Go programs: `host:port`, `:port` for all interfaces, `0` for
/// none.
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
