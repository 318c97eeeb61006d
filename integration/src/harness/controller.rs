//! The control plane as a process of this machine outside the cluster, and its use of resources.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::eventually;
use crate::host::free_addresses;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long it may take to become ready or to end.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A controller of JobSets outside the cluster.
pub struct ControlPlane {
    child: Child,
    pid: u32,
    metrics: SocketAddr,
    /// Files that it reads while it runs.
    _files: Option<TempDir>,
}

/// The control plane's webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Webhooks {
    /// They are served, and not called.
    Served,
    /// There are none.
    Disabled,
}

/// Resources that a process uses, according to the kernel.
pub struct Usage {
    /// CPU time so far, in seconds.
    pub cpu: f64,
    /// Memory now, in MiB.
    pub rss: f64,
    /// Peak memory, in MiB.
    pub peak: f64,
}

impl ControlPlane {
    /// Starts the control plane and waits until it is ready. It logs to `log`. `more` are further
    /// arguments. Its hub does not listen, unless they enable it.
    ///
    /// # Errors
    /// If it does not become ready.
    pub async fn start(
        program: &Path,
        kubeconfig: &Path,
        log: &Path,
        webhooks: Webhooks,
        more: &[&str],
    ) -> Result<Self> {
        let [health, metrics, webhook] = free_addresses()?;
        let webhook = match webhooks {
            Webhooks::Served => format!("--webhook-port={}", webhook.port()),
            Webhooks::Disabled => "--disable-webhooks".to_owned(),
        };
        let mut command = Command::new(program);
        command
            .args(["--health-probe-bind-address", &health.to_string()])
            .args(["--metrics-bind-address", &metrics.to_string()])
            // A variable, since an older version that it is compared with may not know the flag.
            .env("LOCKSTEP_STATUS_PAGE_BIND_ADDRESS", "0")
            .args(["--hub-bind-address", "0", &webhook])
            .args(more);
        Self::ready(command, kubeconfig, log, [health, metrics], None).await
    }

    /// Starts the upstream controller with its defaults, except for ports and for the certificates
    /// of its webhooks, which are not called.
    ///
    /// # Errors
    /// If it does not become ready.
    pub async fn start_upstream(program: &Path, kubeconfig: &Path, log: &Path) -> Result<Self> {
        let [health, metrics, webhook] = free_addresses()?;
        let files = tempfile::tempdir()?;
        let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
        fs::write(files.path().join("tls.crt"), pair.cert.pem())?;
        fs::write(files.path().join("tls.key"), pair.signing_key.serialize_pem())?;
        let config = json!({
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": false},
            "internalCertManagement": {"enable": false},
            "webhook": {"port": webhook.port(), "certDir": files.path()},
            "metrics": {"certDir": files.path()},
        });
        let path = files.path().join("config.yaml");
        fs::write(&path, config.to_string())?;
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(path)
            .args(["--health-probe-bind-address", &health.to_string()])
            .args(["--metrics-bind-address", &metrics.to_string()]);
        Self::ready(command, kubeconfig, log, [health, metrics], Some(files)).await
    }

    async fn ready(
        mut command: Command,
        kubeconfig: &Path,
        log: &Path,
        [health, metrics]: [SocketAddr; 2],
        files: Option<TempDir>,
    ) -> Result<Self> {
        let log = File::create(log)?;
        let child = command
            .env("KUBECONFIG", kubeconfig)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {:?}; is it built?", command.as_std().get_program()))?;
        let pid = child.id().context("it has ended")?;
        eventually("the controller is ready", TIMEOUT, async || {
            let answer = get(health, "/readyz").await?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            Ok(())
        })
        .await?;
        Ok(Self {
            child,
            pid,
            metrics,
            _files: files,
        })
    }

    /// The sum of a counter over the labels that contain `label`.
    ///
    /// # Errors
    /// If it does not serve its metrics.
    pub async fn counter(&self, name: &str, label: &str) -> Result<f64> {
        let text = get(self.metrics, "/metrics").await?;
        let values = text
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Ok(values.sum())
    }

    /// The resources that it has used so far.
    ///
    /// # Errors
    /// If it has ended.
    pub fn usage(&self) -> Result<Usage> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        let (_, after_name) = stat.rsplit_once(')').context("stat")?;
        // utime and stime are the 14th and 15th field, and the name is the 2nd.
        let ticks = after_name.split_whitespace().skip(11).take(2);
        let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
        let per_second = sysconf(SysconfVar::CLK_TCK)?.context("CLK_TCK")?;
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let mib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
            kib.map(|kib| kib / 1024.0).context("status")
        };
        Ok(Usage {
            cpu: ticks / per_second as f64,
            rss: mib("VmRSS:")?,
            peak: mib("VmHWM:")?,
        })
    }

    /// Stops it by SIGTERM.
    ///
    /// # Errors
    /// If it does not end, or fails.
    pub async fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.pid)?), Signal::SIGTERM)?;
        let ended = tokio::time::timeout(TIMEOUT, self.child.wait()).await??;
        ensure!(ended.success(), "the control plane ended with {ended}");
        Ok(())
    }
}

/// The answer to a plain HTTP request, headers included.
async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
