//! A neighbour's configuration, certificates and command line.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::super::ClusterError;
use super::{Neighbour, inside};

/// How long Kueue lets an admitted Workload be without ready pods. Then it evicts the Workload.
const PODS_READY_SECONDS: u32 = 75;

/// Where programs of controller-runtime look for the certificate of their webhooks, below the
/// folder for temporary files.
const SERVING: [&str; 3] = ["tmp", "k8s-webhook-server", "serving-certs"];
/// Where Kueue looks for the certificate of its metrics, even if it serves none.
const METRICS: [&str; 4] = ["etc", "kueue", "metrics", "certs"];

/// Writes all files that the neighbour reads, except its kubeconfig. Returns the authority that its
/// webhooks are called with, as PEM.
pub(super) fn write(
    neighbour: Neighbour,
    dir: &Path,
    address: Ipv4Addr,
    port: u16,
) -> Result<String, ClusterError> {
    let pair = rcgen::generate_simple_self_signed([address.to_string()])?;
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    for folder in [inside(dir, &SERVING), inside(dir, &METRICS)] {
        fs::create_dir_all(&folder).map_err(ClusterError::io(&folder))?;
        for (file, text) in [("tls.crt", &certificate), ("tls.key", &key)] {
            let path = folder.join(file);
            fs::write(&path, text).map_err(ClusterError::io(&path))?;
        }
    }
    let path = path(dir);
    let config = match neighbour {
        Neighbour::Kueue => kueue(dir, address, port),
        Neighbour::Trainer => trainer(address, port),
    };
    fs::write(&path, config.to_string()).map_err(ClusterError::io(&path))?;
    Ok(certificate)
}

/// The file with the configuration.
fn path(dir: &Path) -> PathBuf {
    dir.join("config.json")
}

/// Settings that both share.
fn common(address: Ipv4Addr, port: u16) -> Value {
    json!({
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": address, "port": port},
        "leaderElection": {"leaderElect": false},
        "clientConnection": {"qps": 300, "burst": 500},
    })
}

fn kueue(dir: &Path, address: Ipv4Addr, port: u16) -> Value {
    let mut config = common(address, port);
    config["apiVersion"] = json!("config.kueue.x-k8s.io/v1beta2");
    config["namespace"] = json!(Neighbour::Kueue.namespace());
    config["webhook"]["certDir"] = json!(inside(dir, &SERVING));
    config["internalCertManagement"] = json!({"enable": false});
    config["waitForPodsReady"] = json!({
        "timeout": format!("{PODS_READY_SECONDS}s"),
        "requeuingStrategy": {"timestamp": "Eviction", "backoffBaseSeconds": 600},
    });
    let frameworks = [
        "batch/job",
        "jobset.x-k8s.io/jobset",
        "ray.io/raycluster",
        "ray.io/rayjob",
        "trainer.kubeflow.org/trainjob",
    ];
    config["integrations"] = json!({"frameworks": frameworks});
    config
}

fn trainer(address: Ipv4Addr, port: u16) -> Value {
    let mut config = common(address, port);
    config["apiVersion"] = json!("config.trainer.kubeflow.org/v1alpha1");
    config["certManagement"] = json!({"enable": false});
    config
}

/// The arguments for `unshare`, which ends as the neighbour itself. It sees a `/etc` of its own,
/// since Kueue reads a certificate there, and nothing else.
pub(super) fn command_line(neighbour: Neighbour, dir: &Path, program: &Path) -> Vec<OsString> {
    let script = "mount --bind \"$0/etc\" /etc && \
                  KUBECONFIG=\"$0/kubeconfig\" TMPDIR=\"$0/tmp\" exec \"$@\"";
    let mut line: Vec<OsString> = ["--mount", "--", "sh", "-c", script].map(OsString::from).into();
    line.extend([dir.into(), program.into(), "--config".into(), path(dir).into()]);
    if neighbour == Neighbour::Kueue {
        // Its aggregated API would need a Service.
        line.push("--feature-gates=VisibilityOnDemand=false".into());
    }
    line
}
