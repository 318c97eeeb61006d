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
  0   done; for `check`: everything is well
  1   failed or refused; for `check`: something is broken
  2   `check` only: nothing is broken, but there are warnings
  3   `restart --wait` and `demo`: not all workers run (again) within --timeout
  64  invalid arguments
  130 `demo` only: interrupted, after it has removed what it created";

/// Why, when and how fast a JobSet restarted, and whether the installation is healthy.
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
    /// Kubeconfig file [default: KUBECONFIG, or ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// User to impersonate, such as system:serviceaccount:team:bot; turns the platform API off
    #[arg(long = "as", global = true, value_name = "USER", conflicts_with_all = ["server", "token"])]
    pub(crate) as_user: Option<String>,

    /// Group to impersonate; may be given several times
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub(crate) as_group: Vec<String>,

    /// Namespace of the JobSets [default: that of the context]
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

    /// Token for the platform API [default: LOCKSTEP_TOKEN, unless --as or --service-account is
    /// given; else that of the kubeconfig]
    #[arg(long, global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,

    /// ServiceAccount for which to request a token for the platform API: NAME or NAMESPACE/NAME
    #[arg(long, global = true, value_name = "ACCOUNT", conflicts_with = "token")]
    pub(crate) service_account: Option<String>,

    /// Address of the platform API [default: the leader's pod, through the API server]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) server: Option<String>,

    /// Ask only the API server, not the platform API
    #[arg(long, global = true, conflicts_with = "server")]
    pub(crate) no_platform: bool,
}

impl Cluster {
    /// Takes the token from the environment, unless the command line names a caller.
    pub(crate) fn or_token(mut self, environment: Option<String>) -> Self {
        let names_caller = self.as_user.is_some() || self.service_account.is_some();
        let environment = environment.filter(|token| !token.is_empty() && !names_caller);
        self.token = self.token.or(environment);
        self
    }
}

/// A command of the plugin.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Show JobSets, their last restart, their Jobs and their workers
    Status(Status),
    /// Restart the workers of a JobSet in place, all or some; does not count towards maxRestarts
    Restart(Restart),
    /// Suspend a JobSet: its pods are deleted until it is resumed
    Suspend(Suspend),
    /// Resume a suspended JobSet
    Resume(Suspend),
    /// Show the restarts of a JobSet: when, why, how and how fast
    History(History),
    /// Show one restart of a JobSet phase by phase
    Timeline(Timeline),
    /// Show the node daemons
    Nodes(Nodes),
    /// Find what is wrong with the installation, and say what to do
    Check(Check),
    /// Create a JobSet, kill one of its workers, show the restart, and remove everything again
    Demo(Demo),
    /// Print a completion script for a shell
    Completion(Completion),
}

/// Arguments of `status`.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Status {
    /// The JobSet [default: all of the namespace]
    pub(crate) jobset: Option<String>,

    /// Show the JobSets of all namespaces
    #[arg(long, short = 'A', conflicts_with_all = ["jobset", "namespace"])]
    pub(crate) all_namespaces: bool,

    /// Show the state again whenever it changes
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
    pub(crate) target: WorkerTarget,

    /// Wait until all of them run again
    #[arg(long)]
    pub(crate) wait: bool,

    /// Show which workers would be stopped, and why others would not; restart nothing
    #[arg(long, conflicts_with = "wait")]
    pub(crate) dry_run: bool,

    /// Longest time to wait, such as 90s or 5m
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "DURATION", allow_hyphen_values = true)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) output: Output,
}

/// The workers to restart, if not all. Their restart scope must be `worker`.
#[derive(Clone, Debug, Default, ClapArgs)]
#[group(multiple = false)]
pub(crate) struct WorkerTarget {
    /// Restart only the workers of this replicatedJob (needs lockstep.dev/restart-scope: worker)
    #[arg(long, value_name = "NAME")]
    replicated_job: Option<String>,

    /// Restart only the workers of this child Job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    /// Restart only the worker of a Job with this completion index
    #[arg(long, value_name = "JOB/INDEX[/CONTAINER]", value_parser = worker)]
    worker: Option<Target>,
}

impl WorkerTarget {
    /// The workers that are named; `None` means all.
    pub(crate) fn get(&self) -> Option<Target> {
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

    /// The restart that led to this generation [default: the last completed one]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) generation: Option<u64>,

    /// Write it as a self-contained HTML page with a picture; `-` is standard output
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

    /// Number of workers
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), allow_negative_numbers = true)]
    pub(crate) workers: u32,

    /// Keep what was created, to inspect it with `kubectl lockstep history`, `status -w` and so on
    #[arg(long)]
    pub(crate) keep: bool,

    /// Time limit for the whole demo, such as 90s or 5m
    #[arg(long, value_parser = duration, default_value = "2m", value_name = "DURATION", allow_hyphen_values = true)]
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

/// How the answer is printed.
#[derive(Clone, Debug, Default, ClapArgs)]
pub(crate) struct Output {
    /// Form of the answer [default: text]
    #[arg(long = "output", short = 'o', value_enum, value_name = "FORM")]
    pub(crate) form: Option<Form>,

    /// When to use colours; `auto`: on a terminal, unless NO_COLOR is set
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

/// A shell that has a completion script.
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
