//! Controllers of other projects beside the API server: Kueue and Kubeflow Trainer.
//!
//! Each is built from its Go module at the pinned version. Its definitions, rights and webhooks are
//! those of the same module. It runs as a process with the
//! rights of its own ServiceAccount, and the API server calls its webhooks at its address. It ends
//! with the cluster.

mod config;
mod manifests;

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::process::Enter;
use super::state::{Daemon, State};
use super::{Cluster, ClusterError, Mode, ProcessId, lock};
use crate::host::free_port;
use crate::tools::{self, Tools};
use crate::wait::until;

/// How long one may take until the API server calls its webhooks.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How long the token of its ServiceAccount is valid.
const TOKEN: &str = "48h";

/// A controller of another project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Neighbour {
    /// Kueue, which admits JobSets, RayJobs and RayClusters by quota.
    Kueue,
    /// Kubeflow Trainer, which creates JobSets from TrainJobs.
    Trainer,
}

impl Neighbour {
    /// The program, and the name of its process.
    fn program(self) -> &'static str {
        match self {
            Self::Kueue => "kueue",
            Self::Trainer => "trainer-controller-manager",
        }
    }

    /// The Go module that has its manifests.
    fn go_module(self) -> &'static str {
        match self {
            Self::Kueue => "sigs.k8s.io/kueue",
            Self::Trainer => "github.com/kubeflow/trainer/v2",
        }
    }

    /// Its namespace.
    fn namespace(self) -> &'static str {
        match self {
            Self::Kueue => "kueue-system",
            Self::Trainer => "kubeflow-system",
        }
    }

    /// Its ServiceAccount.
    fn account(self) -> &'static str {
        match self {
            Self::Kueue => "kueue-controller-manager",
            Self::Trainer => "kubeflow-trainer-controller-manager",
        }
    }

    /// An object, and what a server-side dry run of its creation prints once the webhooks are
    /// called.
    fn probe(self) -> (Value, &'static str) {
        match self {
            Self::Kueue => (
                json!({
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "ResourceFlavor",
                    "metadata": {"name": "probe"},
                }),
                "kueue.x-k8s.io/resource-in-use",
            ),
            Self::Trainer => (
                json!({
                    "apiVersion": "trainer.kubeflow.org/v1alpha1",
                    "kind": "TrainJob",
                    "metadata": {"name": "probe", "namespace": "default"},
                    "spec": {"runtimeRef": {"name": "there-is-none"}},
                }),
                "denied the request",
            ),
        }
    }
}

impl Cluster {
    /// Starts a neighbour, unless it runs already, and waits until the API server calls its
    /// webhooks. It needs the definition of JobSets, and root.
    pub async fn add_neighbour(&mut self, neighbour: Neighbour) -> Result<(), ClusterError> {
        let _lock = lock(&self.name).await?;
        // Another process may have added it.
        self.state = State::load(&self.dir).ok_or_else(|| ClusterError::NotUp(self.name.clone()))?;
        let name = neighbour.program();
        let dir = self.dir.join(name);
        if self.state.daemon(name).is_some() {
            return self.until_called(neighbour, &dir).await;
        }
        if !nix::unistd::geteuid().is_root() {
            return Err(ClusterError::Invalid(format!("{name} needs root")));
        }
        let program = Tools::locate([name], &self.progress).await?;
        let source = tools::go_module_dir(name, neighbour.go_module()).await?;
        let (address, enter) = match self.state.mode {
            Mode::Nodes => (
                self.network()?.control_plane(),
                Enter::Network(self.control_plane()?),
            ),
            Mode::ApiServer { .. } => (Ipv4Addr::LOCALHOST, Enter::Nothing),
        };
        let port = free_port().map_err(ClusterError::io(Path::new("127.0.0.1")))?;
        let ca = config::write(neighbour, &dir, address, port)?;

        let kustomization = manifests::kustomization(neighbour, &source, &dir)?;
        let rendered = self
            .kubectl([OsString::from("kustomize"), kustomization.into()])
            .await?;
        let found = manifests::parse(&rendered, &format!("https://{address}:{port}"), &ca)?;
        let (webhooks, others) = found.into_iter().partition(manifests::is_webhook);
        self.apply(&dir.join("manifests.json"), others).await?;
        // Trainer ends if they are not served yet.
        let established = [
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=60s",
        ];
        self.kubectl(established).await?;
        self.write_kubeconfig(neighbour, &dir).await?;

        let mut command = enter.command("unshare");
        command.args(config::command_line(neighbour, &dir, program.path(name)?));
        let process = self.launcher().start(name, &command)?;
        self.record([Daemon {
            name: name.to_owned(),
            process,
        }])?;
        // Before it serves, the API server would refuse each object that its webhooks look at.
        let served = self.until_served(name, SocketAddr::from((address, port))).await;
        let added = match served {
            Ok(()) => self.apply(&dir.join("webhooks.json"), webhooks).await,
            refused => refused,
        };
        if let Err(error) = added {
            process.signal(Signal::SIGKILL);
            self.state.daemons.retain(|daemon| daemon.name != name);
            self.state.save(&self.dir)?;
            return Err(error);
        }
        self.until_called(neighbour, &dir).await?;
        self.progress.say(format_args!("{name} is ready"));
        Ok(())
    }

    /// Applies `objects`, which the file at `path` then has.
    async fn apply(&self, path: &Path, objects: Vec<Value>) -> Result<(), ClusterError> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        fs::write(path, list.to_string()).map_err(ClusterError::io(path))?;
        let args = ["apply", "--server-side", "--force-conflicts", "--filename"];
        let args = args.map(OsString::from).into_iter().chain([path.into()]);
        self.kubectl(args).await.map(drop)
    }

    /// Writes the kubeconfig with a token of the neighbour's ServiceAccount.
    async fn write_kubeconfig(&self, neighbour: Neighbour, dir: &Path) -> Result<(), ClusterError> {
        let account = ["create", "token", neighbour.account(), "--duration", TOKEN];
        let account = account.into_iter().chain(["--namespace", neighbour.namespace()]);
        let token = self.kubectl(account).await?;
        let admin = self.kubeconfig();
        let text = fs::read_to_string(&admin).map_err(ClusterError::io(&admin))?;
        let mut config = manifests::yaml(&text, &admin)?;
        config["users"][0]["user"]["token"] = token.trim().into();
        let path = dir.join("kubeconfig");
        fs::write(&path, config.to_string()).map_err(ClusterError::io(&path))
    }

    /// Waits until the neighbour listens for calls of its webhooks.
    async fn until_served(&self, name: &str, address: SocketAddr) -> Result<(), ClusterError> {
        let what = format!("{name} serves its webhooks");
        let probe = async || TcpStream::connect(address).await.is_ok();
        self.until_alive(name, what, probe).await
    }

    /// Waits until the API server calls the webhooks.
    async fn until_called(&self, neighbour: Neighbour, dir: &Path) -> Result<(), ClusterError> {
        let name = neighbour.program();
        let (object, answer) = neighbour.probe();
        let path = dir.join("probe.json");
        fs::write(&path, object.to_string()).map_err(ClusterError::io(&path))?;
        let args = ["create", "--dry-run=server", "--output=json", "--filename"];
        let args: Vec<OsString> = args
            .map(OsString::from)
            .into_iter()
            .chain([path.into()])
            .collect();
        let probe = async || match self.kubectl(&args).await {
            Ok(said) => said.contains(answer),
            Err(error) => error.to_string().contains(answer),
        };
        let what = format!("the webhooks of {name} are called");
        self.until_alive(name, what, probe).await
    }

    /// Waits until `probe` is true, or the neighbour has died.
    async fn until_alive(
        &self,
        name: &str,
        what: String,
        probe: impl AsyncFn() -> bool,
    ) -> Result<(), ClusterError> {
        let is_dead = || !self.state.daemon(name).is_some_and(ProcessId::is_alive);
        until(what, TIMEOUT, async || (is_dead() || probe().await).then_some(())).await?;
        if is_dead() {
            return Err(self.launcher().died(name));
        }
        Ok(())
    }
}

/// A path inside the folder of a neighbour.
fn inside(dir: &Path, parts: &[&str]) -> PathBuf {
    parts.iter().fold(dir.to_owned(), |path, part| path.join(part))
}
