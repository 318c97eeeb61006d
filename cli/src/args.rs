//! Command line of the plugin.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use lockstep_api::duration::parse_duration;
use lockstep_api::{NoTarget, Target};

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;

/// Exit codes, for scripts.
const EXIT_CODES: &str = "\
Exit codes:
  0   done; of `check`: everything is well
  1   it failed, or was refused; of `check`: something is broken
  2   `check` alone: nothing is broken, but something should be looked at
  3   `restart --wait` and `demo`: not all workers run (again) within --timeout
  64  the arguments make no sense
  130 `demo` alone: it was interrupted, and has removed what it made";

/// Why, when and how fast a JobSet restarted, and whether the installation is well.
#[derive(Clone, Debug, Parser)]
#[command(name = "kubectl-lockstep", bin_name = "kubectl lockstep", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// How to reach the cluster.
    #[command(flatten)]
    pub(crate) cluster: Cluster,

    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How to reach the API server and the platform API.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Cluster {
    /// Kubeconfig file; by default that of KUBECONFIG, or ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// User to act as (impersonation), such as system:serviceaccount:team:bot; only the API server is asked then
    #[arg(long = "as", global = true, value_name = "USER", conflicts_with_all = ["server", "token"])]
    pub(crate) as_user: Option<String>,

    /// Group to act as; may be given several times
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub(crate) as_group: Vec<String>,

    /// Namespace of the JobSets; by default that of the context
    #[arg(long, short, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Namespace in which Lockstep is installed
    #[arg(
        long,
        global = true,
        env = "LOCKSTEP_NAMESPACE",
        value_name = "NAME",
        default_value = "lockstep-system"
    )]
    pub(crate) system_namespace: String,

    /// Token for the platform API, where the kubeconfig has none; else that of LOCKSTEP_TOKEN, where nobody is named by --as or --service-account
    #[arg(long, global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// ServiceAccount that a token for the platform API is made for: NAME, or NAMESPACE/NAME
    #[arg(long, global = true, value_name = "ACCOUNT", conflicts_with = "token")]
    pub(crate) service_account: Option<String>,

    /// Address of the platform API; by default the leader's pod is reached through the API server
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,

    /// Ask the API server alone, not the platform API
    #[arg(long, global = true, conflicts_with = "server")]
    pub(crate) no_platform: bool,
}

impl Cluster {
    /// With the token of the environment, which gives way to whatever the command line says of who asks.
    pub(crate) fn or_token(mut self, environment: Option<String>) -> Self {
        let somebody_is_named = self.as_user.is_some() || self.service_account.is_some();
        let environment = environment.filter(|token| !token.is_empty() && !somebody_is_named);
        self.token = self.token.or(environment);
        self
    }
}

/// A command of the plugin.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Show JobSets, their last restart, their Jobs and their workers
    Status(Status),
    /// Restart the workers of a JobSet in place, all or some; it counts for nothing
    Restart(Restart),
    /// Suspend a JobSet: its pods go, and come back when it is resumed
    Suspend(Suspend),
    /// Resume a JobSet that is suspended
    Resume(Suspend),
    /// Show the restarts of a JobSet: when, why, how and how fast
    History(History),
    /// Show one restart of a JobSet phase by phase
    Timeline(Timeline),
    /// Show the node daemons
    Nodes(Nodes),
    /// Look for what is wrong with the installation, and say what to do
    Check(Check),
    /// Kill a worker of a JobSet made for it, show the restart, and remove everything again
    Demo(Demo),
    /// Print a completion script for a shell
    Completion(Completion),
}

/// Arguments of `status`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Status {
    /// The JobSet; by default all of the namespace
    pub(crate) jobset: Option<String>,

    /// JobSets of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["jobset", "namespace"])]
    pub(crate) all_namespaces: bool,

    /// Show it again whenever it changes
    #[arg(long, short)]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `restart`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Restart {
    /// The JobSet
    pub(crate) jobset: String,

    #[command(flatten)]
    pub(crate) only: WorkerTarget,

    /// Wait until they all run again
    #[arg(long)]
    pub(crate) wait: bool,

    /// Say which workers would be stopped, and which left alone and why; do nothing
    #[arg(long, conflicts_with = "wait")]
    pub(crate) dry_run: bool,

    /// How long to wait at most, such as 90s or 5m
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "DURATION")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// Which workers, where not all are meant. They must be such as are restarted alone when they fail.
#[derive(Clone, Debug, Default, ClapArgs)]
#[group(multiple = false)]
pub(crate) struct WorkerTarget {
    /// Restart the workers of this replicatedJob alone (lockstep.dev/restart-scope: worker)
    #[arg(long, value_name = "NAME")]
    replicated_job: Option<String>,

    /// The same of one child Job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    /// The same of the worker of a Job with this completion index
    #[arg(long, value_name = "JOB/INDEX[/CONTAINER]", value_parser = worker)]
    worker: Option<Target>,
}

impl WorkerTarget {
    /// Who is meant; `None`: all.
    pub(crate) fn target(&self) -> Option<Target> {
        let replicated_job = self.replicated_job.clone().map(Target::ReplicatedJob);
        let job = self.job.clone().map(Target::Job);
        replicated_job.or(job).or_else(|| self.worker.clone())
    }
}

fn worker(text: &str) -> Result<Target, String> {
    format!("worker/{text}")
        .parse()
        .map_err(|_: NoTarget| "must be JOB/INDEX or JOB/INDEX/CONTAINER".to_owned())
}

/// Arguments of `suspend` and `resume`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Suspend {
    /// The JobSet
    pub(crate) jobset: String,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `history`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct History {
    /// The JobSet
    pub(crate) jobset: String,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `timeline`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Timeline {
    /// The JobSet
    pub(crate) jobset: String,

    /// The restart that led to this generation; by default the last one that is completed
    #[arg(long, value_name = "NUMBER")]
    pub(crate) generation: Option<u64>,

    /// Write it as a page with a picture, which needs nothing else; `-`: to standard output
    #[arg(long, value_name = "FILE", conflicts_with = "form")]
    pub(crate) html: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `nodes`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Nodes {
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `check`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `demo`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Demo {
    /// Image of the workers: any with /bin/sh, sleep, cat and kill
    #[arg(long, value_name = "IMAGE", default_value = "busybox:1.37")]
    pub(crate) image: String,

    /// How many workers
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) workers: u32,

    /// Leave what was made, to look at it: `kubectl lockstep history`, `status -w` and so on
    #[arg(long)]
    pub(crate) keep: bool,

    /// How long all of it may take, such as 90s or 5m
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "DURATION")]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `completion`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Completion {
    /// The shell
    pub(crate) shell: Shell,
}

/// In which form the answer is printed.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Output {
    /// Form of the answer; by default text for people
    #[arg(long = "output", short = 'o', value_enum, value_name = "FORM")]
    pub(crate) form: Option<Form>,

    /// When to use colours; `auto`: on a terminal, and not with NO_COLOR
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: Color,
}

/// A form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
    /// Text, with more columns
    Wide,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// A shell that completion scripts are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
    /// PowerShell
    Powershell,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> Self {
        match shell {
            Shell::Bash => Self::Bash,
            Shell::Zsh => Self::Zsh,
            Shell::Fish => Self::Fish,
            Shell::Powershell => Self::PowerShell,
        }
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}
