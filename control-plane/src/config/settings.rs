//! The settings of the control plane: the command line and the file of `--config`, combined and
//! checked.
//!
//! Promises: a flag (or its environment variable) overrides the file, and the file overrides the
//! defaults, which are upstream's. Every error names its field.

mod election;
mod otlp;
mod tls;
mod webhooks;

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use lockstep_core::common::features::{FeatureError, Features};
use lockstep_core::jobset::in_place::Agents;
use thiserror::Error;

use crate::config::args::{Args, BindAddress, FeatureGates};
use crate::config::file::{self, ConfigError, Configuration};

pub use election::LeaderElection;
pub use otlp::OtlpEndpoint;
pub use tls::TlsOptions;
pub use webhooks::{WebhookCertificates, Webhooks};

#[cfg(test)]
mod tests;

/// Upstream's request rate and burst, if only the other one is given.
const QPS: f32 = 500.0;
const BURST: u32 = 500;
const METRICS_PORT: u16 = 8443;
const HEALTH_PORT: u16 = 8081;
/// The directory of externally managed certificates, as in upstream.
const METRICS_CERT_DIR: &str = "/tmp/k8s-metrics-server/serving-certs";

/// Why the settings are invalid.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// The file of `--config` is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A feature does not exist, or cannot be set to this value.
    #[error("{source_of}: {error}")]
    Feature {
        /// The flag, or the field of the file.
        source_of: &'static str,
        /// The feature and the reason.
        error: FeatureError,
    },
    /// A value is invalid.
    #[error("{field}: {message}")]
    Invalid {
        /// The field of the file.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

impl SettingsError {
    fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid {
            field,
            message: message.into(),
        }
    }
}

/// The settings of the control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kubeconfig file; if `None`, the environment determines the API server.
    pub kubeconfig: Option<PathBuf>,
    /// The rate of requests to the API server; `None` for no limit.
    pub requests: Option<RequestRate>,
    /// Namespace of the product.
    pub namespace: String,
    /// Which features are on.
    pub features: Features,
    /// True if the CustomResourceDefinition is installed and upgraded.
    pub manage_crds: bool,
    /// Settings for Ray's resources; `None` if they are not reconciled.
    pub ray: Option<Ray>,
    /// True if lost pods of in-place groups are replaced at once.
    pub replace_lost_pods: bool,
    /// The election of the leader.
    pub leader_election: LeaderElection,
    /// The health endpoints.
    pub health: Health,
    /// The metrics endpoint.
    pub metrics: Metrics,
    /// The admission webhooks; `None` to serve none.
    pub webhooks: Option<Webhooks>,
    /// TLS of the metrics endpoint and the webhooks.
    pub tls: TlsOptions,
    /// The server for node daemons.
    pub hub: Hub,
    /// Address of the platform API; `None` to serve none.
    pub platform: Option<SocketAddr>,
    /// Address of the status page; `None` to serve none.
    pub status_page: Option<SocketAddr>,
    /// The destination of traces; `None` for no traces.
    pub traces: Option<OtlpEndpoint>,
    /// How agents get into containers.
    pub agents: Agents,
}

/// Settings for Ray's resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ray {
    /// Host and port of an HTTP proxy that reaches the heads' pods; `None` to reach them directly.
    pub dashboard_proxy: Option<String>,
}

/// The health endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Address to listen on.
    pub address: Option<SocketAddr>,
    /// Path of the readiness endpoint.
    pub readiness: String,
    /// Path of the liveness endpoint.
    pub liveness: String,
}

/// The metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Address to listen on.
    pub address: Option<SocketAddr>,
    /// Directory of tls.crt and tls.key. Without the files a self-signed certificate is used.
    pub cert_dir: Option<PathBuf>,
}

/// The server for node daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hub {
    /// Address to listen on.
    pub address: Option<SocketAddr>,
    /// Address at which daemons reach this replica, if known.
    pub advertised: Option<SocketAddr>,
    /// Required audience of their tokens.
    pub audience: String,
    /// The daemons' ServiceAccount, in the product's namespace.
    pub service_account: String,
    /// Directory of the hub's CA; `None` to use a Secret.
    pub tls_dir: Option<PathBuf>,
    /// Concurrent connections of one address without an authenticated daemon.
    pub unknown_connections: usize,
}

impl Settings {
    /// Reads the file of `--config`, if there is one, and combines it with the flags.
    ///
    /// # Errors
    /// [`SettingsError`] for the first mistake.
    pub fn new(args: Args) -> Result<Self, SettingsError> {
        let file = match &args.config {
            Some(file) => Configuration::read(file)?,
            None => Configuration::default(),
        };
        let certificates = file.internal_cert_management.unwrap_or_default();
        let managed = certificates.enable.unwrap_or(true);
        let election = file.leader_election.unwrap_or_default();
        let connection = file.client_connection.unwrap_or_default();
        Ok(Self {
            features: features(file.feature_gates.unwrap_or_default(), args.feature_gates)?,
            manage_crds: args.manage_crds,
            ray: args.ray.then_some(Ray {
                dashboard_proxy: args.ray_dashboard_proxy,
            }),
            replace_lost_pods: args.replace_lost_pods,
            leader_election: election::checked(
                file::LeaderElection {
                    leader_elect: args.leader_elect.or(election.leader_elect),
                    lease_duration: args.leader_elect_lease_duration.or(election.lease_duration),
                    renew_deadline: args.leader_elect_renew_deadline.or(election.renew_deadline),
                    retry_period: args.leader_elect_retry_period.or(election.retry_period),
                    ..election
                },
                &args.namespace,
            )?,
            health: health(file.health.unwrap_or_default(), args.health_probe_bind_address)?,
            metrics: metrics(
                file.metrics.unwrap_or_default(),
                args.metrics_bind_address,
                managed,
            ),
            webhooks: if args.disable_webhooks {
                None
            } else {
                Some(webhooks::checked(
                    file.webhook.unwrap_or_default(),
                    certificates,
                    args.webhook_port,
                    args.webhook_cert_dir,
                )?)
            },
            tls: TlsOptions::new(&file.tls.unwrap_or_default())?,
            hub: Hub {
                address: args.hub_bind_address.0,
                advertised: args
                    .hub_advertise_address
                    .zip(args.hub_bind_address.0)
                    .map(|(host, address)| SocketAddr::new(host, address.port())),
                audience: args.hub_audience,
                service_account: args.node_daemon_service_account,
                tls_dir: args.hub_tls_dir,
                unknown_connections: usize::from(args.hub_unknown_connections),
            },
            platform: args.platform_bind_address.0,
            status_page: args.status_page_bind_address.0,
            traces: otlp::endpoint(args.otlp_endpoint, |name| std::env::var(name).ok())?,
            agents: match args.inject_agent_image {
                Some(image) if !image.is_empty() => Agents::ByTemplate(image),
                _ => Agents::ByNode,
            },
            kubeconfig: args.kubeconfig,
            requests: request_rate(
                args.kube_api_qps.or(connection.qps),
                args.kube_api_burst.or(connection.burst),
            ),
            namespace: args.namespace,
        })
    }
}

fn features(
    file: std::collections::BTreeMap<String, bool>,
    flags: Vec<FeatureGates>,
) -> Result<Features, SettingsError> {
    let of_file = file.into_iter().map(|gate| ("featureGates", gate));
    let of_flags = flags
        .into_iter()
        .flat_map(|gates| gates.0)
        .map(|gate| ("--feature-gates", (gate.name, gate.enabled)));
    let mut gates: Vec<_> = of_file.chain(of_flags).collect();
    gates.sort_by_key(|(_, (name, _))| !Features::is_group(name));
    let mut features = Features::default();
    for (source_of, (name, enabled)) in gates {
        match features.set(&name, enabled) {
            Ok(()) => {}
            // A later version of upstream may have it, and its manifests are taken as they are.
            Err(error @ FeatureError::Unknown(_)) => {
                tracing::warn!(%error, "{source_of} has a feature gate that has no effect");
            }
            Err(error) => return Err(SettingsError::Feature { source_of, error }),
        }
    }
    Ok(features)
}

fn health(file: file::Health, flag: Option<BindAddress>) -> Result<Health, SettingsError> {
    let path = |name: Option<String>, default: &str| {
        let name = non_empty(name);
        format!("/{}", name.as_deref().unwrap_or(default).trim_start_matches('/'))
    };
    let health = Health {
        address: address(flag.or(file.health_probe_bind_address), HEALTH_PORT),
        readiness: path(file.readiness_endpoint_name, "readyz"),
        liveness: path(file.liveness_endpoint_name, "healthz"),
    };
    if health.readiness == health.liveness {
        let message = format!("{} is the liveness endpoint already", health.readiness);
        return Err(SettingsError::invalid("health.readinessEndpointName", message));
    }
    Ok(health)
}

fn metrics(file: file::Metrics, flag: Option<BindAddress>, managed: bool) -> Metrics {
    let default = || (!managed).then(|| METRICS_CERT_DIR.to_owned());
    Metrics {
        address: address(flag.or(file.bind_address), METRICS_PORT),
        cert_dir: non_empty(file.cert_dir).or_else(default).map(PathBuf::from),
    }
}

fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// The given address, or this port on all interfaces.
fn address(given: Option<BindAddress>, port: u16) -> Option<SocketAddr> {
    match given {
        Some(BindAddress(address)) => address,
        None => Some(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))),
    }
}

/// The rate of requests to the API server for each kind of resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestRate {
    /// Requests per second in the long run; above 0.
    pub per_second: f32,
    /// The burst; at least 1.
    pub burst: u32,
}

/// If only one of the two is given, the other has upstream's default. Unlike upstream, nothing is
/// limited by default.
fn request_rate(qps: Option<f32>, burst: Option<i32>) -> Option<RequestRate> {
    if qps.is_none() && burst.is_none() {
        return None;
    }
    let per_second = qps.unwrap_or(QPS);
    let burst = burst.map_or(BURST, |burst| u32::try_from(burst).unwrap_or(0).max(1));
    // In client-go, too, a negative rate means no limit. There 0 means 5 per second, which is not
    // what a user who writes 0 expects; NaN is not a rate.
    (per_second > 0.0).then_some(RequestRate { per_second, burst })
}
