//! `restart`.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use anyhow::{Result, bail};
use lockstep_api::JobSet;
use serde::Serialize;
use tokio::time::Instant;
use tonic::Code;

use super::poll::Poller;
use super::progress_line::ProgressLine;
use super::{DONE, FAILED, TIMED_OUT};
use crate::args::Restart;
use crate::fetch::{Changes, Cluster, Platform};
use crate::print::{self, Printer};
use crate::view::api_error;
use crate::view::history::history;
use crate::view::restart::{Progress, ProgressDetail, Request, progress, refusal};
use crate::view::time;

/// How often it is looked for the event.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The event of a restart is written after its end.
const EVENT_TIMEOUT: Duration = Duration::from_secs(3);

/// What was done.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    namespace: String,
    name: String,
    /// Names the request: `status.inPlaceRestart.handledManualRequest`, once it has been acted upon.
    request: String,
    /// `platform` or `annotation`.
    by: &'static str,
    /// Waited for: the restart attempt that all workers run, and milliseconds from the request being seen until they ran, as the control plane has
    /// measured it.
    generation: Option<i64>,
    took_ms: Option<f64>,
    /// Milliseconds from this command's request until it has seen that all run.
    waited_ms: Option<u64>,
}

pub(super) async fn run(cluster: &Cluster, args: &Restart) -> Result<u8> {
    let jobset = cluster.jobset(&args.jobset).await?;
    if let Some(why) = refusal(&jobset) {
        bail!("{why}");
    }
    if let Some(only) = args.only.target() {
        return Box::pin(super::restart_workers::run(
            cluster,
            &jobset,
            only,
            request(),
            args,
        ))
        .await;
    }
    if args.dry_run {
        return super::dry_run::run(cluster, &jobset, &request(), &args.output).await;
    }
    let platform = super::platform(cluster, "the restart is asked for by an annotation").await;
    let request = request();
    let since = Instant::now();
    let by = ask(cluster, platform.as_ref(), &jobset, &request).await?;
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
    let code = if args.wait {
        let mut line = ProgressLine::new(printer.is_for_programs());
        let mut request = Request::of_all(&jobset, &answer.request);
        let waited = wait(
            cluster,
            platform.as_ref(),
            (&mut request, &mut answer),
            (since, args.timeout),
            &mut line,
        )
        .await;
        line.clear();
        waited?
    } else {
        DONE
    };
    print::out(&printer.render(&answer, |_| words(&answer, args.wait))?)?;
    if code == TIMED_OUT {
        print::error(&format!(
            "not all workers of {}/{} run again within {:?}: `kubectl lockstep status {} -n {}` shows which",
            answer.namespace, answer.name, args.timeout, answer.name, answer.namespace
        ));
    }
    Ok(code)
}

/// The name of a request that nobody has made before.
fn request() -> String {
    format!("kubectl-lockstep-{}", uuid::Uuid::new_v4().simple())
}

/// By the platform API; where it does not know the caller or cannot be reached, by the annotation that it would write.
async fn ask(
    cluster: &Cluster,
    platform: Option<&Platform>,
    jobset: &JobSet,
    request: &str,
) -> Result<&'static str> {
    if let Some(platform) = platform {
        match platform.restart(jobset.ns(), jobset.name(), request).await {
            Ok(_) => return Ok("platform"),
            // The same request, written twice, is one.
            Err(status)
                if matches!(
                    status.code(),
                    Code::Unauthenticated | Code::Unavailable | Code::DeadlineExceeded
                ) =>
            {
                print::note(&format!(
                    "the restart is asked for by an annotation, since the platform API says: {}",
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

async fn wait(
    cluster: &Cluster,
    platform: Option<&Platform>,
    (request, answer): (&mut Request, &mut Answer),
    (since, timeout): (Instant, Duration),
    line: &mut ProgressLine,
) -> Result<u8> {
    let name = answer.name.clone();
    let changes = Changes::of_one(cluster, &name, platform).await;
    let mut poller = Poller::new(cluster, &name, changes, (since, timeout));
    loop {
        if let Some(jobset) = poller.poll(line).await? {
            let group = match platform {
                Some(platform) => platform.group(&answer.namespace, &name).await.ok().flatten(),
                None => None,
            };
            match show(progress(&jobset, group.as_ref(), request), since, line) {
                Break(Some(generation)) => {
                    answer.waited_ms = u64::try_from(since.elapsed().as_millis()).ok();
                    answer.generation = Some(generation);
                    answer.took_ms = took(cluster, &jobset, generation).await;
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

/// Shows how far a restart has come. It is over at a generation, or, where it was told why, for nothing.
pub(super) fn show(progress: Progress, since: Instant, line: &mut ProgressLine) -> ControlFlow<Option<i64>> {
    match progress {
        Progress::Done(generation) => return Break(Some(generation)),
        Progress::Ended(why) => {
            line.clear();
            print::error(&why);
            return Break(None);
        }
        Progress::Asked => {
            line.show(
                since,
                ProgressDetail::uncounted("asked for; the control plane has not acted upon it yet"),
            );
        }
        Progress::UnderWay(far) => line.show(since, far),
    }
    Continue(())
}

/// What the control plane has measured, as its event says. It may come a moment later, or never.
async fn took(cluster: &Cluster, jobset: &JobSet, generation: i64) -> Option<f64> {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let events = cluster.events(jobset.name()).await.ok()?;
        let told = history(jobset, &events);
        let wanted = u64::try_from(generation).ok();
        let entry = told
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
        return format!("{name}: restart asked for by {}{more}\n", by(answer.by));
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
