//! The commands: each fetches, has a view made of it, and prints.

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

/// Done, or all is well.
const DONE: u8 = 0;
/// It failed, or something is broken.
pub(crate) const FAILED: u8 = 1;
/// Nothing is broken, but something should be looked at.
const WARNED: u8 = 2;
/// Not all workers run again in time.
const TIMED_OUT: u8 = 3;
/// It was interrupted (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// Runs a command; returns the exit code.
pub(crate) async fn run(args: Args) -> Result<u8> {
    if let Command::Completion(completion) = &args.command {
        let mut script = Vec::new();
        let shell = clap_complete::Shell::from(completion.shell);
        clap_complete::generate(shell, &mut Args::command(), "kubectl-lockstep", &mut script);
        print::out(&String::from_utf8_lossy(&script))?;
        return Ok(DONE);
    }
    let given = args.cluster.namespace.is_some();
    let cluster = Cluster::open(args.cluster).await?;
    match args.command {
        Command::Status(status) => Box::pin(status::run(&cluster, &status)).await,
        Command::Restart(restart) => Box::pin(restart::run(&cluster, &restart)).await,
        Command::Suspend(suspend) => Box::pin(suspend::run(&cluster, &suspend, true)).await,
        Command::Resume(suspend) => Box::pin(suspend::run(&cluster, &suspend, false)).await,
        Command::History(history) => Box::pin(history::run(&cluster, &history)).await,
        Command::Timeline(timeline) => Box::pin(history::run_timeline(&cluster, &timeline)).await,
        Command::Nodes(nodes) => Box::pin(installation::nodes(&cluster, &nodes)).await,
        Command::Check(check) => Box::pin(installation::check(&cluster, &check)).await,
        Command::Demo(demo) => Box::pin(demo::run(cluster, given, &demo)).await,
        Command::Completion(_) => Ok(DONE),
    }
}

/// The platform API, where it may be asked and is reached. Else people are told what they do not see, and why.
async fn platform(cluster: &Cluster, without: &str) -> Option<Platform> {
    if !cluster.may_ask_platform() {
        return None;
    }
    match cluster.platform().await {
        Ok(platform) => Some(platform),
        Err(error) => {
            print::note(&format!(
                "{without}, since the platform API was not reached: {error:#}"
            ));
            None
        }
    }
}

/// What is to be thought of restarts that events tell of.
fn by_events(cluster: &Cluster) -> String {
    let namespace = &cluster.namespace;
    format!("told by events, which whoever may create events in namespace {namespace} can write")
}
