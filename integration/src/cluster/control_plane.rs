//! etcd, the API server, the controllers and DNS.
//!
//! They run in the cluster's network namespace, or in the caller's if there are no nodes. etcd does
//! not call fsync: figures that are measured on a testbed must say so.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use nix::unistd::Pid;
use serde_json::json;

use super::network::{DNS_SERVICE, SERVICE_RANGE};
use super::pki::{Pki, User};
use super::process::{Enter, Launcher, flag};
use super::state::Daemon;
use super::{ClusterError, Mode, ProcessId};
use crate::host::free_addresses;
use crate::tools::{Tools, catalog};
use crate::wait::until;

/// How gang scheduling by kube-scheduler is turned on (Kubernetes KEP-4671).
struct Gangs {
    /// Feature gates of the API server and the scheduler.
    gates: &'static str,
    /// The API that is served only if it is asked for.
    api: &'static str,
}

impl Gangs {
    /// In this minor version of Kubernetes. `None` if it has no PodGroups.
    fn of(version: &str) -> Option<Self> {
        match version {
            "1.34" | "1.35" => None,
            "1.36" => Some(Self {
                gates: "GenericWorkload=true,GangScheduling=true",
                api: "scheduling.k8s.io/v1alpha2=true",
            }),
            _ => Some(Self {
                gates: GROUP_GATE,
                api: "scheduling.k8s.io/v1beta1=true",
            }),
        }
    }
}

/// Feature gate for the controller that releases deleted groups.
const GROUP_GATE: &str = "GenericWorkload=true";
/// Feature gate for groups of the Job controller (see [`super::Spec::job_groups`]). In the API
/// server it adds the rights for them.
const JOB_GATE: &str = "WorkloadWithJob=true";

/// The ports of the control plane's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    api: u16,
    etcd: u16,
    etcd_peer: u16,
}

impl Ports {
    /// The usual ports, for a separate network namespace.
    pub(super) const STANDARD: Self = Self {
        api: 6443,
        etcd: 2379,
        etcd_peer: 2380,
    };

    /// Free ports of the loopback address.
    pub(super) fn free() -> Result<Self, ClusterError> {
        let addresses = free_addresses().map_err(ClusterError::io(Path::new("127.0.0.1")))?;
        let [api, etcd, etcd_peer] = addresses.map(|address| address.port());
        Ok(Self { api, etcd, etcd_peer })
    }

    /// The port of the API server.
    pub(super) fn api(self) -> u16 {
        self.api
    }
}

/// The settings for starting a part.
pub(super) struct ControlPlane<'a> {
    pub(super) state_dir: &'a Path,
    pub(super) tools: &'a Tools,
    pub(super) launcher: &'a Launcher,
    pub(super) mode: Mode,
    /// See [`super::Spec::soon_lost`].
    pub(super) soon_lost: bool,
    /// See [`super::Spec::job_groups`].
    pub(super) job_groups: bool,
    pub(super) address: Ipv4Addr,
    pub(super) ports: Ports,
    /// The process whose network namespace the parts run in.
    pub(super) namespace: Option<Pid>,
}

impl ControlPlane<'_> {
    /// Starts etcd and the API server.
    pub(super) fn start_api_server(&self) -> Result<Vec<Daemon>, ClusterError> {
        let pki = Pki::of(self.state_dir);
        let client = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let data = self.state_dir.join("etcd");
        let etcd = self.start(
            "etcd",
            [
                flag("--data-dir", &data),
                flag("--listen-client-urls", &client),
                flag("--advertise-client-urls", &client),
                flag("--listen-peer-urls", &peer),
                flag("--initial-advertise-peer-urls", &peer),
                flag("--initial-cluster", format!("default={peer}")),
                flag("--unsafe-no-fsync", "true"),
                flag("--log-level", "warn"),
            ],
        )?;
        let mut flags = vec![
            flag("--etcd-servers", &client),
            flag("--secure-port", self.ports.api.to_string()),
            flag("--bind-address", self.address.to_string()),
            flag("--advertise-address", self.address.to_string()),
            flag("--tls-cert-file", pki.path("apiserver.crt")),
            flag("--tls-private-key-file", pki.path("apiserver.key")),
            flag("--client-ca-file", pki.path("ca.crt")),
            flag("--token-auth-file", pki.path("tokens.csv")),
            flag(
                "--service-account-issuer",
                "https://kubernetes.default.svc.cluster.local",
            ),
            flag("--service-account-key-file", pki.path("sa.pub")),
            flag("--service-account-signing-key-file", pki.path("sa.key")),
            flag("--service-cluster-ip-range", SERVICE_RANGE),
            flag("--authorization-mode", "Node,RBAC"),
            flag("--allow-privileged", "true"),
        ];
        match self.mode {
            Mode::Nodes => flags.extend([
                flag("--enable-admission-plugins", "NodeRestriction"),
                flag("--kubelet-preferred-address-types", "InternalIP"),
                flag("--kubelet-client-certificate", pki.path("kubelet-client.crt")),
                flag("--kubelet-client-key", pki.path("kubelet-client.key")),
                // The control plane is on no node and cannot use Services, so it calls webhooks at
                // their pods.
                flag("--enable-aggregator-routing", "true"),
            ]),
            Mode::ApiServer { .. } => flags.extend([
                // A loopback address cannot be an endpoint of a Service.
                flag("--endpoint-reconciler-type", "none"),
                // Pods do not run, and there may be no controller to create their ServiceAccount.
                // Tests create nodes.
                flag(
                    "--disable-admission-plugins",
                    "ServiceAccount,TaintNodesByCondition",
                ),
            ]),
        }
        if let Some(gangs) = self.gangs() {
            flags.extend([self.gates(gangs.gates), flag("--runtime-config", gangs.api)]);
        }
        Ok(vec![etcd, self.start("kube-apiserver", flags)?])
    }

    /// Starts the controllers and the scheduler, and with nodes DNS.
    pub(super) fn start_controllers(&self) -> Result<Vec<Daemon>, ClusterError> {
        let mut started = Vec::new();
        let pki = Pki::of(self.state_dir);
        if self.has_controllers() {
            let mut flags = vec![
                flag("--kubeconfig", pki.kubeconfig(&User::ControllerManager)),
                flag("--service-account-private-key-file", pki.path("sa.key")),
                flag("--root-ca-file", pki.path("ca.crt")),
                flag("--leader-elect", "false"),
            ];
            if self.gangs().is_some() {
                flags.push(self.gates(GROUP_GATE));
            }
            if self.mode != Mode::Nodes {
                // No kubelet reports that a node is healthy.
                flags.push(flag("--controllers", "*,-node-lifecycle-controller"));
            }
            if self.soon_lost {
                flags.extend([
                    flag("--node-monitor-period", "1s"),
                    flag("--node-monitor-grace-period", "12s"),
                ]);
            }
            flags.extend(self.without_nodes());
            started.push(self.start("kube-controller-manager", flags)?);
        }
        if self.has_scheduler() {
            let mut flags = vec![
                flag("--kubeconfig", pki.kubeconfig(&User::Scheduler)),
                flag("--leader-elect", "false"),
            ];
            if let Some(gangs) = self.gangs() {
                flags.push(flag("--feature-gates", gangs.gates));
            }
            flags.extend(self.without_nodes());
            started.push(self.start("kube-scheduler", flags)?);
        }
        if self.mode == Mode::Nodes {
            started.push(self.start_dns()?);
        }
        Ok(started)
    }

    /// Flags of parts that run beside the caller.
    fn without_nodes(&self) -> Vec<OsString> {
        if self.mode == Mode::Nodes {
            return Vec::new();
        }
        let mut flags = vec![flag("--bind-address", "127.0.0.1"), flag("--secure-port", "0")];
        if self.is_brisk() {
            // By default they create 20 and bind 50 pods a second, which would dominate a test.
            flags.extend([flag("--kube-api-qps", "1000"), flag("--kube-api-burst", "2000")]);
        }
        flags
    }

    /// These feature gates, and that of the Job controller's groups if it is enabled.
    fn gates(&self, gates: &str) -> OsString {
        if self.job_groups {
            flag("--feature-gates", format!("{gates},{JOB_GATE}"))
        } else {
            flag("--feature-gates", gates)
        }
    }

    fn has_controllers(&self) -> bool {
        match self.mode {
            Mode::Nodes => true,
            Mode::ApiServer { controllers, .. } => controllers,
        }
    }

    fn has_scheduler(&self) -> bool {
        match self.mode {
            Mode::Nodes => true,
            Mode::ApiServer { scheduler, .. } => scheduler,
        }
    }

    /// Gang scheduling, if there is a scheduler that can do it.
    fn gangs(&self) -> Option<Gangs> {
        let gangs = Gangs::of(&catalog::KUBERNETES.version());
        gangs.filter(|_| self.has_scheduler())
    }

    fn is_brisk(&self) -> bool {
        match self.mode {
            Mode::Nodes => false,
            Mode::ApiServer { brisk, .. } => brisk,
        }
    }

    /// Starts CoreDNS as a process beside the API server: it needs no image, and is up before the
    /// first pod. It reads the API server as the administrator.
    fn start_dns(&self) -> Result<Daemon, ClusterError> {
        let path = self.state_dir.join("Corefile");
        let kubeconfig = Pki::of(self.state_dir).kubeconfig(&User::Admin);
        let text = format!(
            ".:53 {{\n    bind {}\n    errors\n    kubernetes cluster.local in-addr.arpa {{\n        \
             kubeconfig {}\n        pods insecure\n        ttl 1\n    }}\n}}\n",
            self.address,
            kubeconfig.display(),
        );
        fs::write(&path, text).map_err(ClusterError::io(&path))?;
        self.start("coredns", [OsString::from("-conf"), path.into()])
    }

    fn start(&self, name: &str, args: impl IntoIterator<Item = OsString>) -> Result<Daemon, ClusterError> {
        let enter = self.namespace.map_or(Enter::Nothing, Enter::Network);
        let mut command = enter.command(self.tools.path(name)?);
        command.args(args);
        let process = self.launcher.start(name, &command)?;
        Ok(Daemon {
            name: name.to_owned(),
            process,
        })
    }
}

/// Waits until the API server reports that it is ready.
pub(super) async fn wait_until_ready(
    client: &Client,
    launcher: &Launcher,
    daemons: &[Daemon],
) -> Result<(), ClusterError> {
    let dead = || daemons.iter().find(|daemon| !ProcessId::is_alive(daemon.process));
    let ready = until("the API server is ready", Duration::from_secs(90), async || {
        let request = http_get("/readyz")?;
        Some(dead().is_some() || client.request_text(request).await.is_ok()).filter(|done| *done)
    })
    .await;
    if let Some(daemon) = dead() {
        return Err(launcher.died(&daemon.name));
    }
    Ok(ready.map(drop)?)
}

fn http_get(path: &str) -> Option<http::Request<Vec<u8>>> {
    http::Request::get(path).body(Vec::new()).ok()
}

/// Creates the DNS Service, whose only endpoint is CoreDNS.
pub(super) async fn create_dns_service(client: &Client, address: Ipv4Addr) -> Result<(), ClusterError> {
    let ports = ["UDP", "TCP"].map(|protocol| {
        json!({"name": format!("dns-{}", protocol.to_lowercase()), "port": 53, "protocol": protocol})
    });
    let service: Service = from_json(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "labels": {"k8s-app": "kube-dns"}},
        "spec": {"clusterIP": DNS_SERVICE, "ports": ports},
    }))?;
    let slice: EndpointSlice = from_json(json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns-testbed", "labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": ports,
    }))?;
    let params = PostParams::default();
    Api::namespaced(client.clone(), "kube-system")
        .create(&params, &service)
        .await?;
    Api::namespaced(client.clone(), "kube-system")
        .create(&params, &slice)
        .await?;
    Ok(())
}

/// Waits until pods can be created in the namespace `default`.
pub(super) async fn wait_for_service_account(client: &Client) -> Result<(), ClusterError> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    until(
        "the default ServiceAccount exists",
        Duration::from_secs(60),
        async || accounts.get("default").await.ok(),
    )
    .await?;
    Ok(())
}

fn from_json<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T, ClusterError> {
    serde_json::from_value(value).map_err(|error| ClusterError::io(Path::new("manifest"))(error.into()))
}
