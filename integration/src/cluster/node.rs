//! One node: containerd, kubelet and kube-proxy in namespaces of their own.
//!
//! A holder process keeps the node's mount, network and UTS namespaces, which
//! `testbed/node-init.sh` sets up. All other processes enter them. Paths inside are the standard
//! ones, so one DaemonSet fits every node. The process id namespace is the machine's: tests see and
//! signal every process.

use std::ffi::OsString;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::{Api, Client};
use nix::unistd::Pid;
use serde_json::json;

use super::network::{DNS_SERVICE, Network};
use super::pki::{Pki, User};
use super::process::{Enter, Launcher, flag};
use super::state::{Daemon, holder_name};
use super::{ClusterError, cgroup, node_name};
use crate::image::PAUSE;
use crate::tools::Tools;
use crate::wait::until;

/// The socket of containerd inside a node.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// The settings for starting a node.
pub(super) struct NodeSetup<'a> {
    pub(super) state_dir: &'a Path,
    pub(super) tools: &'a Tools,
    pub(super) launcher: &'a Launcher,
    pub(super) network: Network,
    /// Counted from 1.
    pub(super) index: u8,
    /// See [`super::Spec::soon_lost`].
    pub(super) soon_lost: bool,
    /// The minor version of containerd.
    pub(super) containerd: &'a str,
}

/// The control group of node `index`, below the root of each hierarchy.
pub(super) fn cgroup_path(network: Network, index: u8) -> String {
    format!("{}/{}", network.host_link(), node_name(index))
}

/// A path inside the node that `holder` holds, as seen from the machine.
pub(super) fn seen_from_host(holder: Pid, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{holder}/root{path}"))
}

impl NodeSetup<'_> {
    /// Starts the process that creates the node's namespaces.
    pub(super) fn start_holder(&self) -> Result<Daemon, ClusterError> {
        let dir = node_dir(self.state_dir, self.index);
        fs::create_dir_all(&dir).map_err(ClusterError::io(&dir))?;
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--net",
                "--uts",
                "--propagation",
                "private",
                "--",
                "/bin/sh",
            ])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/node-init.sh"))
            .arg(node_name(self.index))
            .arg(&dir);
        let name = holder_name(self.index);
        let process = self.launcher.start(&name, &command)?;
        Ok(Daemon { name, process })
    }

    /// Starts containerd.
    pub(super) fn start_containerd(&self, holder: Pid) -> Result<Daemon, ClusterError> {
        let config = self.configure_containerd()?;
        self.start("containerd", holder, ["-c".into(), config.into()])
    }

    /// Writes the configuration of containerd, and returns its path.
    pub(super) fn configure_containerd(&self) -> Result<PathBuf, ClusterError> {
        let dir = node_dir(self.state_dir, self.index);
        let config = dir.join("containerd.toml");
        let bin = self.state_dir.join("bin");
        let cni = dir.join("cni");
        write(&config, &containerd_config(self.containerd, &bin, &cni))?;
        fs::create_dir_all(&cni).map_err(ClusterError::io(&cni))?;
        let network = json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            // Every pod has its own routed link, so that traffic between two pods of a node passes
            // kube-proxy's rules too.
            "plugins": [{
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": self.network.pods(self.index)}]],
                    "dataDir": "/run/cni",
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }],
        });
        write(&cni.join("10-pods.conflist"), &network.to_string())?;
        Ok(config)
    }

    /// Starts kubelet and kube-proxy.
    pub(super) fn start_kubelet(&self, holder: Pid) -> Result<Vec<Daemon>, ClusterError> {
        let cgroup = cgroup_path(self.network, self.index);
        cgroup::create(&cgroup)?;
        let config = self.configure_kubelet(json!({
            "cgroupRoot": format!("/{cgroup}"),
            "failCgroupV1": false,
        }))?;
        let kubelet = self.start("kubelet", holder, self.kubelet_args(&config))?;
        let proxy = self.start("kube-proxy", holder, self.proxy_args("nftables"))?;
        Ok(vec![kubelet, proxy])
    }

    /// Writes the configuration of the kubelet with these settings, and returns its path.
    pub(super) fn configure_kubelet(&self, own: serde_json::Value) -> Result<PathBuf, ClusterError> {
        let config = node_dir(self.state_dir, self.index).join("kubelet.json");
        let mut settings = kubelet_config(&Pki::of(self.state_dir));
        if self.soon_lost {
            // The kubelet renews it after a quarter of this time.
            settings["nodeLeaseDurationSeconds"] = json!(8);
        }
        if let (Some(settings), serde_json::Value::Object(own)) = (settings.as_object_mut(), own) {
            settings.extend(own);
        }
        write(&config, &settings.to_string())?;
        Ok(config)
    }

    /// The arguments of the kubelet.
    pub(super) fn kubelet_args(&self, config: &Path) -> Vec<OsString> {
        let pki = Pki::of(self.state_dir);
        vec![
            flag("--config", config),
            flag("--kubeconfig", pki.kubeconfig(&User::Kubelet(self.index))),
            flag("--hostname-override", node_name(self.index)),
            flag("--node-ip", self.network.node(self.index).to_string()),
        ]
    }

    /// The arguments of kube-proxy.
    pub(super) fn proxy_args(&self, mode: &str) -> Vec<OsString> {
        vec![
            flag("--kubeconfig", Pki::of(self.state_dir).kubeconfig(&User::Proxy)),
            flag("--hostname-override", node_name(self.index)),
            flag("--proxy-mode", mode),
            flag("--cluster-cidr", self.network.all_pods()),
            // Without the permission to set them, these must not be set.
            flag("--conntrack-max-per-core", "0"),
            flag("--conntrack-tcp-timeout-established", "0"),
            flag("--conntrack-tcp-timeout-close-wait", "0"),
        ]
    }

    fn start(
        &self,
        tool: &str,
        holder: Pid,
        args: impl IntoIterator<Item = OsString>,
    ) -> Result<Daemon, ClusterError> {
        let mut command = Enter::Node(holder).command(self.tools.path(tool)?);
        command.args(args);
        let name = format!("{tool}-{}", self.index);
        let process = self.launcher.start(&name, &command)?;
        Ok(Daemon { name, process })
    }
}

/// The state folder of a node.
pub(super) fn node_dir(state_dir: &Path, index: u8) -> PathBuf {
    state_dir.join("nodes").join(node_name(index))
}

/// Waits until the node's namespaces are set up.
pub(super) async fn wait_for_holder(
    state_dir: &Path,
    launcher: &Launcher,
    holder: &Daemon,
    index: u8,
) -> Result<(), ClusterError> {
    let ready = node_dir(state_dir, index).join("ready");
    wait_for(launcher, holder, "the node's namespaces are set up", || {
        ready.exists()
    })
    .await
}

/// Waits until containerd serves.
pub(super) async fn wait_for_containerd(
    launcher: &Launcher,
    holder: Pid,
    daemon: &Daemon,
) -> Result<(), ClusterError> {
    let socket = seen_from_host(holder, CONTAINERD);
    wait_for(launcher, daemon, "containerd listens", || {
        UnixStream::connect(&socket).is_ok()
    })
    .await
}

/// Waits for an effect of a daemon, and fails if the daemon ends first.
async fn wait_for(
    launcher: &Launcher,
    daemon: &Daemon,
    what: &str,
    done: impl Fn() -> bool,
) -> Result<(), ClusterError> {
    let waited = until(what, Duration::from_secs(30), async || {
        (done() || !daemon.process.is_alive()).then_some(())
    })
    .await;
    if !daemon.process.is_alive() {
        return Err(launcher.died(&daemon.name));
    }
    Ok(waited?)
}

fn containerd_config(version: &str, bin: &Path, cni: &Path) -> String {
    let plugins = if version == "2.0" {
        format!("bin_dir = \"{}\"", bin.display())
    } else {
        format!("bin_dirs = [\"{}\"]", bin.display())
    };
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{CONTAINERD}"
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd/opt"
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE no score may be lowered, and every sandbox would fail.
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    {plugins}
    conf_dir = "{cni}"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{bin}/runc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE}"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "/var/run/nri/nri.sock"
"#,
        bin = bin.display(),
        cni = cni.display(),
    )
}

fn kubelet_config(pki: &Pki) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.path("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD}"),
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 100,
        "maxPods": 200,
        "resolvConf": "",
        "serializeImagePulls": false,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
    })
}

/// Waits until a node accepts pods: it is Ready and no longer has the not-ready taint.
pub(super) async fn wait_until_ready(client: &Client, index: u8) -> Result<(), ClusterError> {
    let nodes: Api<ApiNode> = Api::all(client.clone());
    let name = node_name(index);
    until(format!("{name} is Ready"), Duration::from_secs(90), async || {
        let node = nodes.get(&name).await.ok()?;
        let ready = node
            .status?
            .conditions?
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let tainted = node.spec?.taints.is_some_and(|taints| !taints.is_empty());
        (ready && !tainted).then_some(())
    })
    .await?;
    Ok(())
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), ClusterError> {
    fs::write(path, text).map_err(ClusterError::io(path))
}
