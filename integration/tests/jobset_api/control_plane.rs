//! The control plane as a process that tests can kill.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_integration::image::checked_program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// How long the process may take to lead or to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// A control plane outside the cluster. Clones refer to the same process.
#[derive(Clone)]
pub(crate) struct ControlPlane {
    shared: Arc<Shared>,
}

struct Shared {
    program: PathBuf,
    kubeconfig: std::sync::Mutex<PathBuf>,
    dir: PathBuf,
    log: PathBuf,
    health: SocketAddr,
    metrics: SocketAddr,
    webhooks: SocketAddr,
    /// Its own arguments.
    more: Vec<String>,
    /// Its identity, if there are several replicas.
    identity: Option<String>,
    child: Mutex<Option<Child>>,
}

impl ControlPlane {
    /// A control plane with these additional arguments, not started yet. Its log goes to a file in
    /// `dir`.
    pub(crate) async fn new(kubeconfig: PathBuf, dir: &Path, more: &[&str]) -> Result<Self> {
        let [health, metrics, webhooks] = free_addresses()?;
        let log = dir.join("control-plane.log");
        let program = build("lockstep-control-plane", "lockstep-control-plane").await?;
        Ok(Self {
            shared: Arc::new(Shared {
                program,
                kubeconfig: std::sync::Mutex::new(kubeconfig),
                dir: dir.to_owned(),
                log,
                health,
                metrics,
                webhooks,
                more: more.iter().map(ToString::to_string).collect(),
                identity: None,
                child: Mutex::default(),
            }),
        })
    }

    /// Another replica with these additional arguments, not started yet.
    pub(crate) fn replica(&self, identity: &str, more: &[&str]) -> Result<Self> {
        self.beside(identity, Some(identity), more)
    }

    /// Another replica that has the name of this host as its identity, as this one does.
    pub(crate) fn twin(&self, more: &[&str]) -> Result<Self> {
        self.beside("twin", None, more)
    }

    fn beside(&self, name: &str, identity: Option<&str>, more: &[&str]) -> Result<Self> {
        let [health, metrics, webhooks] = free_addresses()?;
        let shared = &*self.shared;
        Ok(Self {
            shared: Arc::new(Shared {
                program: shared.program.clone(),
                kubeconfig: std::sync::Mutex::new(self.kubeconfig()),
                dir: shared.dir.clone(),
                log: shared.dir.join(format!("control-plane-{name}.log")),
                health,
                metrics,
                webhooks,
                more: more.iter().map(ToString::to_string).collect(),
                identity: identity.map(str::to_owned),
                child: Mutex::default(),
            }),
        })
    }

    /// The port on which it serves webhooks.
    pub(crate) fn webhook_port(&self) -> u16 {
        self.shared.webhooks.port()
    }

    /// Starts the process.
    pub(crate) async fn start(&self) -> Result<()> {
        self.start_with(&[]).await
    }

    /// Stops the process, starts it with more flags, and waits until it is ready.
    pub(crate) async fn restart_with(&self, flags: &[&str]) -> Result<()> {
        self.stop().await?;
        self.start_with(flags).await?;
        self.until_ready().await
    }

    /// Starts the process with more flags.
    pub(crate) async fn start_with(&self, flags: &[&str]) -> Result<()> {
        let shared = &*self.shared;
        let (health, metrics) = (shared.health.to_string(), shared.metrics.to_string());
        let webhooks = shared.webhooks.port().to_string();
        let mut all = vec![
            "--health-probe-bind-address",
            &health,
            "--metrics-bind-address",
            &metrics,
            "--webhook-port",
            &webhooks,
            "--feature-gates",
            "RestartJob=true,ElasticJobSet=true",
        ];
        all.extend(shared.more.iter().map(String::as_str));
        all.extend(flags);
        self.start_by_file(&all).await
    }

    /// Starts the process with only these flags, and none that its `--config` file could replace.
    pub(crate) async fn start_by_file(&self, flags: &[&str]) -> Result<()> {
        let shared = &*self.shared;
        let log = File::options().create(true).append(true).open(&shared.log)?;
        let child = Command::new(&shared.program)
            .args(["--status-page-bind-address", "0"])
            .args(["--hub-bind-address", "0", "--namespace", "lockstep-system"])
            .args(flags)
            .envs(shared.identity.iter().map(|identity| ("POD_NAME", identity)))
            .env("KUBECONFIG", self.kubeconfig())
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", shared.program.display()))?;
        let before = shared.child.lock().await.replace(child);
        ensure!(before.is_none(), "it runs already");
        Ok(())
    }

    fn kubeconfig(&self) -> PathBuf {
        let kubeconfig = &self.shared.kubeconfig;
        kubeconfig.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the kubeconfig for the next start; returns the previous one.
    pub(crate) fn go_through(&self, kubeconfig: PathBuf) -> PathBuf {
        let before = &self.shared.kubeconfig;
        std::mem::replace(
            &mut before.lock().unwrap_or_else(PoisonError::into_inner),
            kubeconfig,
        )
    }

    /// Makes sure that it runs with this kubeconfig, and is ready.
    pub(crate) async fn restore(&self, kubeconfig: PathBuf) -> Result<()> {
        let before = self.go_through(kubeconfig.clone());
        let runs = {
            let mut child = self.shared.child.lock().await;
            let runs = child
                .as_mut()
                .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
            if !runs {
                *child = None;
            }
            runs
        };
        if runs && before != kubeconfig {
            self.kill().await?;
        }
        if !runs || before != kubeconfig {
            self.start().await?;
        }
        self.until_ready().await
    }

    /// The folder of its files.
    pub(crate) fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// Kills it with SIGKILL.
    pub(crate) async fn kill(&self) -> Result<()> {
        self.end(Signal::SIGKILL).await.map(drop)
    }

    /// Asks it to end.
    pub(crate) async fn stop(&self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM).await
    }

    /// Waits until the process ends by itself.
    pub(crate) async fn ends(&self) -> Result<ExitStatus> {
        let mut child = self.shared.child.lock().await.take().context("it does not run")?;
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        Ok(ended.context("it does not end")??)
    }

    async fn end(&self, signal: Signal) -> Result<ExitStatus> {
        let mut child = self.shared.child.lock().await.take().context("it does not run")?;
        let pid = child.id().context("it has ended by itself")?;
        kill(Pid::from_raw(i32::try_from(pid)?), signal)?;
        Ok(tokio::time::timeout(PATIENCE, child.wait())
            .await
            .with_context(|| format!("{signal} does not end it"))??)
    }

    /// Waits until it is ready. Until then it must report that it is not.
    pub(crate) async fn until_ready(&self) -> Result<()> {
        eventually("the control plane is ready", PATIENCE, async || {
            let answer = get(self.shared.health, "/readyz").await?;
            ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            Ok(())
        })
        .await
    }

    /// The address of its health probes.
    pub(crate) fn health_address(&self) -> SocketAddr {
        self.shared.health
    }

    /// The address of its metrics.
    pub(crate) fn metrics_address(&self) -> SocketAddr {
        self.shared.metrics
    }

    pub(crate) async fn metrics(&self) -> Result<String> {
        get(self.shared.metrics, "/metrics").await
    }

    /// How often it has logged this since its first start.
    pub(crate) fn logged(&self, text: &str) -> usize {
        self.whole_log().matches(text).count()
    }

    /// How many lines of that log contain all of these texts.
    pub(crate) fn logged_with(&self, texts: &[&str]) -> usize {
        let log = self.whole_log();
        let is_meant = |line: &&str| texts.iter().all(|text| line.contains(text));
        log.lines().filter(is_meant).count()
    }

    fn whole_log(&self) -> String {
        std::fs::read_to_string(&self.shared.log).unwrap_or_default()
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        let log = self.whole_log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(200)..].join("\n")
    }
}

/// Variables of cargo that come from the caller of the tests. With another CARGO_INCREMENTAL cargo
/// would rebuild everything.
const KEPT: [&str; 4] = [
    "CARGO_HOME",
    "CARGO_TARGET_DIR",
    "CARGO_INCREMENTAL",
    "CARGO_BUILD_JOBS",
];

/// Builds a program of a package with the settings of this test, and returns its path. If the
/// programs of all tests are built already, it returns one of these.
pub(crate) async fn build(package: &str, program: &str) -> Result<PathBuf> {
    if let Some(built) = checked_program(program) {
        return Ok(built);
    }
    let test = std::env::current_exe()?;
    let dir = test
        .parent()
        .and_then(Path::parent)
        .context("the test is not in a target directory")?;
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    // Build scripts depend on some variables that cargo sets for this test, and would run again
    // each time.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_")) {
        if !KEPT.contains(&name.as_str()) {
            cargo.env_remove(name);
        }
    }
    if dir.file_name().is_some_and(|profile| profile == "release") {
        cargo.arg("--release");
    }
    ensure!(cargo.status().await?.success(), "cargo build failed");
    Ok(dir.join(program))
}

/// The answer to a plain HTTP request, headers included.
pub(crate) async fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
