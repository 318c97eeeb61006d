//! The commands. Each one fetches objects, turns them into a view, and prints it.

mod demo;
mod dry_run;
mod history;
mod installation;
mod poll;
mod progress_line;
mod restart;
mod restart_workers;
mod status;
mod suspend;

use anyhow::Result;
use clap::CommandFactory as _;

use crate::args::{Args, Command};
use crate::fetch::{Cluster, Platform};
use crate::print;
use suspend::Wish;

/// The command is done, or everything is well.
const DONE: u8 = 0;
/// The command failed, or something is broken.
pub(crate) const FAILED: u8 = 1;
/// Nothing is broken, but there are warnings.
const WARNED: u8 = 2;
/// Not all workers ran again in time.
const TIMED_OUT: u8 = 3;
/// The command was interrupted (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// Runs a command and returns its exit code.
pub(crate) async fn run(args: Args) -> Result<u8> {
    if let Command::Completion(completion) = &args.command {
        let mut script = Vec::new();
        let shell = clap_complete::Shell::from(completion.shell);
        clap_complete::generate(shell, &mut Args::command(), "kubectl-lockstep", &mut script);
        print::out(&String::from_utf8_lossy(&script))?;
        return Ok(DONE);
    }
    let namespace_given = args.cluster.namespace.is_some();
    let cluster = Cluster::open(args.cluster).await?;
    match args.command {
        Command::Status(status) => Box::pin(status::run(&cluster, &status)).await,
        Command::Restart(restart) => Box::pin(restart::run(&cluster, &restart)).await,
        Command::Suspend(suspend) => Box::pin(suspend::run(&cluster, &suspend, Wish::Suspend)).await,
        Command::Resume(suspend) => Box::pin(suspend::run(&cluster, &suspend, Wish::Resume)).await,
        Command::History(history) => Box::pin(history::run(&cluster, &history)).await,
        Command::Timeline(timeline) => Box::pin(history::run_timeline(&cluster, &timeline)).await,
        Command::Nodes(nodes) => Box::pin(installation::nodes(&cluster, &nodes)).await,
        Command::Check(check) => Box::pin(installation::check(&cluster, &check)).await,
        Command::Demo(demo) => Box::pin(demo::run(cluster, namespace_given, &demo)).await,
        Command::Completion(_) => Ok(DONE),
    }
}

/// The platform API, if it may be used and can be reached. If it cannot be reached, a note says why
/// after `consequence`, which is what that means for the answer.
async fn platform(cluster: &Cluster, consequence: &str) -> Option<Platform> {
    if !cluster.may_ask_platform() {
        return None;
    }
    match cluster.platform().await {
        Ok(platform) => Some(platform),
        Err(error) => {
            print::note(&format!(
                "{consequence}, since the platform API was not reached: {error:#}"
            ));
            None
        }
    }
}

/// The warning that restarts come from events, which others than the control plane can write.
fn event_warning(cluster: &Cluster) -> String {
    let namespace = &cluster.namespace;
    format!("from events, which anyone who may create events in namespace {namespace} can write")
}
