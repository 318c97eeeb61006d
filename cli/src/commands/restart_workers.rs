//! `restart --replicated-job`, `--job` and `--worker`: restarts some workers and no others.

use anyhow::{Result, bail};
use lockstep_api::{JobSet, WorkerRestartRequest};
use serde::Serialize;
use tokio::time::Instant;

use super::dry_run::{self, worker_restart_error};
use super::poll::{Poller, Waited};
use super::progress_line::ProgressLine;
use super::{DONE, FAILED, TIMED_OUT};
use crate::args::Restart;
use crate::fetch::{Changes, Cluster};
use crate::print::{self, Printer};
use crate::view::restart::{Request, worker_restart_progress};

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    namespace: String,
    name: String,
    /// The named workers, in the form of the annotation.
    only: String,
    /// Name of the request. `status.inPlaceRestart.handledWorkerRestart` ends with it once it is
    /// handled.
    request: String,
    /// With `--wait`: ms from this command's request until it has seen them run.
    waited_ms: Option<u64>,
}

/// Restarts the workers that the request names. Only the platform API knows if they may restart
/// without their peers, so this needs the platform API.
pub(super) async fn run(
    cluster: &Cluster,
    jobset: &JobSet,
    request: &WorkerRestartRequest,
    args: &Restart,
) -> Result<u8> {
    if !cluster.may_ask_platform() {
        bail!(
            "--replicated-job, --job and --worker need the platform API, and --no-platform and --as turn it off"
        );
    }
    let platform = cluster.platform().await?;
    if args.dry_run {
        return dry_run::run_workers(&platform, jobset, request, &args.output).await;
    }
    let since = Instant::now();
    if let Err(status) = platform
        .restart_workers(jobset.ns(), jobset.name(), request)
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
        let name = jobset.name();
        let mut line = ProgressLine::new(printer);
        let mut pending = Request::of_workers(jobset, request);
        let changes = Changes::of_one(cluster, name, None).await;
        let waited = Poller::new(cluster, name, changes, since, args.timeout)
            .wait_for(&mut line, async |jobset| {
                worker_restart_progress(jobset, &request.target, &mut pending)
            })
            .await;
        line.clear();
        code = match waited? {
            Waited::Done { .. } => {
                answer.waited_ms = u64::try_from(since.elapsed().as_millis()).ok();
                DONE
            }
            Waited::Ended => FAILED,
            Waited::TimedOut => TIMED_OUT,
        };
    }
    print::out(&printer.render(&answer, |_| words(&answer, args.wait))?)?;
    if code == TIMED_OUT {
        print::error(&format!(
            "not all of {} ran again within {:?}: `kubectl lockstep status {} -n {}` shows which",
            answer.only, args.timeout, answer.name, answer.namespace
        ));
    }
    Ok(code)
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
        (None, true) => format!("{namespace}/{name}: restart of {only} requested by the platform API\n"),
        (None, false) => format!(
            "{namespace}/{name}: restart of {only} requested by the platform API (--wait waits until it runs)\n"
        ),
    }
}
