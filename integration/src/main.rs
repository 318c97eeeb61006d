//! `lockstep-testbed`: starts and removes clusters from the shell.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};
use lockstep_integration::cluster::{self, Cluster, Neighbour, Spec, default_name};
use lockstep_integration::host::target_dir;
use lockstep_integration::image::{self, Programs};
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::{Tools, packages};

/// A real Kubernetes cluster on this machine.
#[derive(Debug, Parser)]
#[command(name = "lockstep-testbed", version)]
struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a cluster and leave it running; uses the one that is up, if it is healthy
    Up {
        /// Number of nodes
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        #[command(flatten)]
        instance: Instance,
    },
    /// Remove a cluster completely
    Down {
        #[command(flatten)]
        instance: Instance,
        /// All clusters on this machine, except those that a running process owns
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// Run a controller of another project beside the cluster, which must have Lockstep installed
    Add {
        /// The controller, built if it is missing
        #[arg(value_enum)]
        neighbour: Neighbour,
        #[command(flatten)]
        instance: Instance,
    },
    /// Build the images of Lockstep and of the examples, and load them onto every node
    LoadImages {
        /// The images [default: all but those of Ray, PyTorch and JAX]
        #[arg(value_enum)]
        images: Vec<Named>,
        #[command(flatten)]
        instance: Instance,
    },
    /// Write the images of Lockstep and their SBOMs (CycloneDX) into a folder, as OCI archives to
    /// push to a registry
    SaveImages {
        /// The folder, created if it does not exist
        dir: PathBuf,
    },
    /// List the clusters
    Status,
    /// Find or build the programs that clusters run
    #[command(subcommand)]
    Tools(ToolsAction),
    /// Run a command in a node's namespaces
    ExecNode {
        /// The node, counted from 1
        node: u8,
        #[command(flatten)]
        instance: Instance,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// List what is missing on this machine
    Doctor,
}

#[derive(Debug, Subcommand)]
enum ToolsAction {
    /// Build what is missing
    Build,
    /// Build what is missing, and print the path of each program
    List,
    /// Print the path of one program, built if it is missing
    Path {
        /// The program
        name: String,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Named {
    ControlPlane,
    NodeDaemon,
    Python,
    Ray,
    Torch,
    Torch2,
    Jax,
}

impl Named {
    /// The images of Lockstep and of the examples.
    const USUAL: [Self; 3] = [Self::ControlPlane, Self::NodeDaemon, Self::Python];
}

#[derive(Debug, clap::Args)]
struct Instance {
    /// The cluster's name
    #[arg(long, default_value_t = default_name())]
    name: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match act(Args::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn act(action: Action) -> anyhow::Result<()> {
    match action {
        Action::Up { nodes, instance } => up(instance.name, nodes).await,
        Action::Down { instance, all } => down(instance.name, all),
        Action::Add { neighbour, instance } => add(&instance.name, neighbour).await,
        Action::LoadImages { images, instance } => load_images(&instance.name, &images).await,
        Action::SaveImages { dir } => save_images(&dir),
        Action::Status => status().await,
        Action::Tools(action) => tools(action).await,
        Action::ExecNode {
            node,
            instance,
            command,
        } => exec_node(&instance.name, node, &command).await,
        Action::Doctor => doctor(),
    }
}

async fn up(name: String, nodes: u8) -> anyhow::Result<()> {
    let cluster = Cluster::ensure(Spec::new(name).nodes(nodes).keep()).await?;
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    Ok(())
}

fn down(name: String, all: bool) -> anyhow::Result<()> {
    let progress = Progress::new();
    let names = if all {
        cluster::down_unowned().context("cannot remove all clusters")?
    } else {
        cluster::down(&name).with_context(|| format!("cannot remove {name}"))?;
        vec![name]
    };
    for name in names {
        progress.say(format_args!("{name} is down"));
    }
    Ok(())
}

async fn load_images(name: &str, wanted: &[Named]) -> anyhow::Result<()> {
    let progress = Progress::new();
    let cluster = Cluster::attach(name).await?;
    let wanted = if wanted.is_empty() { &Named::USUAL } else { wanted };
    for named in wanted {
        let image = match named {
            Named::ControlPlane => image::control_plane(&Programs::chosen()?)?,
            Named::NodeDaemon => image::node_daemon(&Programs::chosen()?)?,
            Named::Python => image::python().await?,
            Named::Ray => image::ray().await?,
            Named::Torch => image::torch().await?,
            Named::Torch2 => image::torch2().await?,
            Named::Jax => image::jax().await?,
        };
        cluster.load_image(&image).await?;
        progress.say(format_args!("{} is on every node", image.name));
    }
    Ok(())
}

async fn add(name: &str, neighbour: Neighbour) -> anyhow::Result<()> {
    let mut cluster = Cluster::attach(name).await?.reporting(Progress::new());
    Ok(cluster.add_neighbour(neighbour).await?)
}

fn save_images(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let programs = Programs::release(&target_dir());
    for image in [image::control_plane(&programs)?, image::node_daemon(&programs)?] {
        let archive = dir.join(image.archive_name());
        image.write(&archive)?;
        println!("{}", archive.display());
    }
    for (name, sbom) in image::sboms()? {
        let path = dir.join(name);
        let text = serde_json::to_string_pretty(&sbom)?;
        fs::write(&path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

async fn status() -> anyhow::Result<()> {
    for name in cluster::instances() {
        match Cluster::attach(&name).await {
            Ok(cluster) => {
                println!(
                    "{name}: up, {} node(s), KUBECONFIG={}",
                    cluster.nodes(),
                    cluster.kubeconfig().display()
                );
            }
            Err(error) => println!("{name}: {error}"),
        }
    }
    Ok(())
}

async fn tools(action: ToolsAction) -> anyhow::Result<()> {
    let progress = Progress::new();
    match action {
        ToolsAction::Build => {
            Tools::all(&progress).await?;
            progress.say("all programs are available");
        }
        ToolsAction::List => {
            for (name, path) in Tools::all(&progress).await?.iter() {
                println!("{name} {}", path.display());
            }
        }
        ToolsAction::Path { name } => {
            let known = lockstep_integration::tools::catalog::names().find(|known| *known == name);
            let Some(known) = known else {
                bail!("{name} is not a program of the testbed")
            };
            println!(
                "{}",
                Tools::locate([known], &progress).await?.path(known)?.display()
            );
        }
    }
    Ok(())
}

async fn exec_node(name: &str, node: u8, command: &[String]) -> anyhow::Result<()> {
    let cluster = Cluster::attach(name).await?;
    let (program, args) = command.split_first().context("no command")?;
    // PATH includes the cluster's own programs, such as ctr.
    let mut search = cluster.dir().join("bin").into_os_string();
    if let Some(path) = std::env::var_os("PATH") {
        search.push(":");
        search.push(path);
    }
    let mut command = cluster.on_node(node, program)?;
    Err(command.args(args).env("PATH", search).exec().into())
}

fn doctor() -> anyhow::Result<()> {
    packages::check(packages::Purpose::Build)?;
    packages::check(packages::Purpose::Run)?;
    println!("nothing is missing");
    Ok(())
}
