//! `restart` of all workers.

use std::time::Duration;

use anyhow::{Result, bail};
use lockstep_api::{JobSet, WorkerRestartRequest};
use serde::Serialize;
use tokio::time::Instant;
use tonic::Code;

use super::poll::{Poller, Waited};
use super::progress_line::ProgressLine;
use super::{DONE, FAILED, TIMED_OUT};
use crate::args::Restart;
use crate::fetch::{Changes, Cluster, Platform};
use crate::print::{self, Printer};
use crate::view::api_error;
use crate::view::history::history;
use crate::view::restart::{Request, progress, refusal};
use crate::view::time;

/// How often events are listed while waiting for the event of a restart.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long to wait for the event of a restart, which is written after its end.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3);

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    namespace: String,
    name: String,
    /// Name of the request. `status.inPlaceRestart.handledManualRequest` has it once it is handled.
    request: String,
    /// `platform` or `annotation`.
    by: &'static str,
    /// With `--wait`: the restart attempt that all workers run, and the time in ms that the restart
    /// took, as measured by the control plane.
    generation: Option<i64>,
    took_ms: Option<f64>,
    /// With `--wait`: ms from this command's request until it has seen that all workers run.
    waited_ms: Option<u64>,
}

pub(super) async fn run(cluster: &Cluster, args: &Restart) -> Result<u8> {
    let jobset = cluster.jobset(&args.jobset).await?;
    if let Some(why) = refusal(&jobset) {
        bail!("{why}");
    }
    if let Some(target) = args.target.get() {
        let request = WorkerRestartRequest {
            target,
            token: request(),
        };
        return Box::pin(super::restart_workers::run(cluster, &jobset, &request, args)).await;
    }
    if args.dry_run {
        return super::dry_run::run(cluster, &jobset, &request(), &args.output).await;
    }
    let platform = super::platform(cluster, "the restart is requested by an annotation").await;
    let request = request();
    let since = Instant::now();
    let by = request_restart(cluster, platform.as_ref(), &jobset, &request).await?;
    let mut answer = Answer {
        namespace: jobset.ns().to_owned(),
        name: jobset.name().to_owned(),
        request,
        by,
        generation: None,
        took_ms: None,
        waited_ms: None,
    };
    let printer = Printer::new(&args.output);
    let mut code = DONE;
    if args.wait {
        let waited = wait(
            cluster,
            platform.as_ref(),
            &jobset,
            &answer.request,
            (since, args),
        )
        .await?;
        code = match waited {
            Waited::Done { jobset, generation } => {
                answer.waited_ms = u64::try_from(since.elapsed().as_millis()).ok();
                answer.generation = Some(generation);
                answer.took_ms = took(cluster, &jobset, generation).await;
                DONE
            }
            Waited::Ended => FAILED,
            Waited::TimedOut => TIMED_OUT,
        };
    }
    print::out(&printer.render(&answer, |_| words(&answer, args.wait))?)?;
    if code == TIMED_OUT {
        print::error(&format!(
            "not all workers of {}/{} ran again within {:?}: `kubectl lockstep status {} -n {}` shows which",
            answer.namespace, answer.name, args.timeout, answer.name, answer.namespace
        ));
    }
    Ok(code)
}

/// A unique name for a request.
fn request() -> String {
    format!("kubectl-lockstep-{}", uuid::Uuid::new_v4().simple())
}

/// Requests the restart through the platform API. If it does not accept the caller or cannot be
/// reached, this writes the annotation that it would write. Returns which of the two was used.
async fn request_restart(
    cluster: &Cluster,
    platform: Option<&Platform>,
    jobset: &JobSet,
    request: &str,
) -> Result<&'static str> {
    if let Some(platform) = platform {
        match platform.restart(jobset.ns(), jobset.name(), request).await {
            Ok(_) => return Ok("platform"),
            // The platform API may have written the request already. Written twice, it is still one
            // request.
            Err(status)
                if matches!(
                    status.code(),
                    Code::Unauthenticated | Code::Unavailable | Code::DeadlineExceeded
                ) =>
            {
                print::note(&format!(
                    "the restart is requested by an annotation, since the platform API says: {}",
                    api_error::words(&status)
                ));
            }
            Err(status) => bail!(
                "restart JobSet {}/{}: {}",
                jobset.ns(),
                jobset.name(),
                api_error::words(&status)
            ),
        }
    }
    cluster.annotate(jobset, request).await?;
    Ok("annotation")
}

/// Waits until all workers run again, and shows the progress.
async fn wait(
    cluster: &Cluster,
    platform: Option<&Platform>,
    jobset: &JobSet,
    request: &str,
    (since, args): (Instant, &Restart),
) -> Result<Waited> {
    let (namespace, name) = (jobset.ns(), jobset.name());
    let mut line = ProgressLine::new(Printer::new(&args.output));
    let mut request = Request::of_all(jobset, request);
    let changes = Changes::of_one(cluster, name, platform).await;
    let waited = Poller::new(cluster, name, changes, since, args.timeout)
        .wait_for(&mut line, async |jobset| {
            let group = match platform {
                Some(platform) => platform.group(namespace, name).await.ok().flatten(),
                None => None,
            };
            progress(jobset, group.as_ref(), &mut request)
        })
        .await;
    line.clear();
    waited
}

/// The duration that the control plane measured, from its event, which may come a moment later or
/// never.
async fn took(cluster: &Cluster, jobset: &JobSet, generation: i64) -> Option<f64> {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let events = cluster.events(jobset.name()).await.ok()?;
        let history = history(jobset, &events);
        let wanted = u64::try_from(generation).ok();
        let entry = history
            .entries
            .iter()
            .find(|entry| entry.generation == wanted && entry.took_ms.is_some());
        if let Some(entry) = entry {
            return entry.took_ms;
        }
        if Instant::now() >= until {
            return None;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn words(answer: &Answer, waited: bool) -> String {
    let name = format!("{}/{}", answer.namespace, answer.name);
    let Some(generation) = answer.generation else {
        let more = if waited {
            ""
        } else {
            " (--wait waits until all workers run)"
        };
        return format!("{name}: restart requested by {}{more}\n", by(answer.by));
    };
    let took = match (answer.took_ms, answer.waited_ms) {
        (Some(took), _) => format!(" in {}", time::took(took)),
        (None, Some(waited)) => format!(" within {waited} ms, as seen from here"),
        (None, None) => String::new(),
    };
    format!("{name}: all workers run again at generation {generation}{took}\n")
}

fn by(by: &str) -> &str {
    match by {
        "platform" => "the platform API",
        _ => "the annotation lockstep.dev/restart-request",
    }
}
