//! `restart --replicated-job`, `--job` and `--worker`: some workers, each alone.

use std::ops::ControlFlow::{Break, Continue};
use std::time::Duration;

use anyhow::{Result, bail};
use lockstep_api::{JobSet, Target, WorkerRestartRequest};
use serde::Serialize;
use tokio::time::Instant;

use super::dry_run::{self, worker_restart_error};
use super::poll::Poller;
use super::progress_line::ProgressLine;
use super::restart::show;
use super::{DONE, FAILED, TIMED_OUT};
use crate::args::Restart;
use crate::fetch::{Changes, Cluster};
use crate::print::{self, Printer};
use crate::view::restart::{Request, worker_restart_progress};

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    namespace: String,
    name: String,
    /// Who was named, as the annotation has it.
    only: String,
    /// Names the request: `status.inPlaceRestart.handledWorkerRestart` ends with it, once it has been acted upon.
    request: String,
    /// Waited for: milliseconds from this command's request until it has seen that they run.
    waited_ms: Option<u64>,
}

/// The platform API alone knows whether they can be restarted alone, so it has to be reached.
pub(super) async fn run(
    cluster: &Cluster,
    jobset: &JobSet,
    target: Target,
    token: String,
    args: &Restart,
) -> Result<u8> {
    if !cluster.may_ask_platform() {
        bail!(
            "--replicated-job, --job and --worker need the platform API, which is not asked with --no-platform, nor with --as"
        );
    }
    let platform = cluster.platform().await?;
    let request = WorkerRestartRequest { target, token };
    if args.dry_run {
        return dry_run::run_workers(&platform, jobset, &request, &args.output).await;
    }
    let since = Instant::now();
    if let Err(status) = platform
        .restart_workers(jobset.ns(), jobset.name(), &request)
        .await
    {
        bail!(
            "restart {} of JobSet {}/{}: {}",
            request.target,
            jobset.ns(),
            jobset.name(),
            worker_restart_error(&status)
        );
    }
    let mut answer = Answer {
        namespace: jobset.ns().to_owned(),
        name: jobset.name().to_owned(),
        only: request.target.to_string(),
        request: request.token.clone(),
        waited_ms: None,
    };
    let printer = Printer::new(&args.output);
    let mut code = DONE;
    if args.wait {
        let mut line = ProgressLine::new(printer.is_for_programs());
        let mut asked = Request::of_workers(jobset, &request);
        let waited = wait(
            cluster,
            &request.target,
            (&mut asked, &mut answer),
            (since, args.timeout),
            &mut line,
        )
        .await;
        line.clear();
        code = waited?;
    }
    print::out(&printer.render(&answer, |_| words(&answer, args.wait))?)?;
    if code == TIMED_OUT {
        print::error(&format!(
            "not all of {} run again within {:?}: `kubectl lockstep status {} -n {}` shows which",
            answer.only, args.timeout, answer.name, answer.namespace
        ));
    }
    Ok(code)
}

async fn wait(
    cluster: &Cluster,
    target: &Target,
    (request, answer): (&mut Request, &mut Answer),
    (since, timeout): (Instant, Duration),
    line: &mut ProgressLine,
) -> Result<u8> {
    let name = answer.name.clone();
    let changes = Changes::of_one(cluster, &name, None).await;
    let mut poller = Poller::new(cluster, &name, changes, (since, timeout));
    loop {
        if let Some(jobset) = poller.poll(line).await? {
            match show(worker_restart_progress(&jobset, target, request), since, line) {
                Break(Some(_)) => {
                    answer.waited_ms = u64::try_from(since.elapsed().as_millis()).ok();
                    return Ok(DONE);
                }
                Break(None) => return Ok(FAILED),
                Continue(()) => {}
            }
        }
        if !poller.wait(line).await {
            return Ok(TIMED_OUT);
        }
    }
}

fn words(answer: &Answer, waited: bool) -> String {
    let Answer {
        namespace,
        name,
        only,
        ..
    } = answer;
    match (answer.waited_ms, waited) {
        (Some(waited), _) => {
            format!("{namespace}/{name}: {only} runs again within {waited} ms, as seen from here\n")
        }
        (None, true) => format!("{namespace}/{name}: restart of {only} asked for by the platform API\n"),
        (None, false) => format!(
            "{namespace}/{name}: restart of {only} asked for by the platform API (--wait waits until it runs)\n"
        ),
    }
}
