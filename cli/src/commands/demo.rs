//! `demo`: a JobSet of its own, one worker killed, the restart shown, and everything removed.
//!
//! Promises: nothing that was there before is touched; what is made has a name that nobody else has, and is removed however this ends, but for
//! `--keep` and for who kills the plugin itself.

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::progress_line::ProgressLine;
use super::{DONE, INTERRUPTED, TIMED_OUT};
use crate::args::Demo;
use crate::fetch::{Changes, Cluster, Refused, Scope};
use crate::print::{self, Printer};
use crate::view::demo::{
    ContainerRestarts, container_restarts, is_steady, kept, manifest, refusal, trouble, up,
};
use crate::view::history::history;
use crate::view::pods;
use crate::view::restart::ProgressDetail;
use crate::view::status::{Observed, view};
use crate::view::time;
use crate::view::timeline::{Timeline, timeline};

/// How long the event of a restart, which comes after its end, is waited for.
const EVENT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// What was seen.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// The pod whose worker was killed.
    killed: String,
    /// What became of pods and containers, in words.
    kept: String,
    restart: Timeline,
}

/// How it ends, where nothing failed.
enum Outcome {
    Seen(Box<Answer>),
    TimedOut(String),
}

/// What the demo makes.
struct DemoObjects<'c> {
    cluster: &'c Cluster,
    jobset: String,
    /// Else the namespace is somebody's.
    owns_namespace: bool,
}

pub(super) async fn run(cluster: Cluster, namespace_given: bool, args: &Demo) -> Result<u8> {
    if let Some(why) = refusal(&cluster.installed().await) {
        bail!("{why}");
    }
    let unique: String = uuid::Uuid::new_v4()
        .simple()
        .to_string()
        .chars()
        .take(6)
        .collect();
    let unique = format!("lockstep-demo-{unique}");
    let cluster = if namespace_given {
        cluster
    } else {
        cluster.in_namespace(unique.clone())
    };
    let made = DemoObjects {
        cluster: &cluster,
        jobset: if namespace_given {
            unique
        } else {
            "demo".to_owned()
        },
        owns_namespace: !namespace_given,
    };
    let mut interrupted = Interrupted::new()?;
    let printer = Printer::new(&args.output);
    // Never given up half-way: what may have been made is known, and is removed.
    let begun = made.make(args).await;
    if let Err(error) = &begun
        && error.is::<Refused>()
    {
        return begun.map(|()| DONE);
    }
    let ended = match begun {
        Ok(()) => tokio::select! {
            ended = made.watch(args, printer) => Some(ended),
            () = interrupted.wait() => None,
        },
        Err(error) => Some(Err(error)),
    };
    let code = match ended {
        Some(Ok(Outcome::Seen(answer))) => {
            let text = printer.render(&answer, |paint| print::timeline(&answer.restart, paint))?;
            print::out(&text).map(|()| DONE)
        }
        Some(Ok(Outcome::TimedOut(why))) => {
            print::error(&format!("not done within {:?}: {why}", args.timeout));
            Ok(TIMED_OUT)
        }
        Some(Err(error)) => Err(error),
        None => {
            print::note("interrupted");
            Ok(INTERRUPTED)
        }
    };
    let removed = made.remove(args.keep && matches!(code, Ok(DONE))).await;
    match (code, removed) {
        (Ok(code), removed) => removed.map(|()| code),
        (Err(error), Ok(())) => Err(error),
        // Why it was to be removed says more.
        (Err(error), Err(left)) => {
            print::note(&format!("what was made of it is still there: {left:#}"));
            Err(error)
        }
    }
}

impl DemoObjects<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.cluster.namespace, self.jobset)
    }

    async fn make(&self, args: &Demo) -> Result<()> {
        if self.owns_namespace {
            self.cluster.make_namespace().await?;
        }
        let made = self
            .cluster
            .make_jobset(manifest(&self.jobset, &args.image, args.workers))
            .await;
        match made {
            // Its namespace was made, and has to go.
            Err(error) if self.owns_namespace => bail!("{error:#}"),
            made => made?,
        }
        let (workers, image) = (args.workers, &args.image);
        print::note(&format!(
            "made JobSet {}: {workers} workers of {image}",
            self.name()
        ));
        Ok(())
    }

    /// Waits until all run, kills one, and waits until all run again.
    async fn watch(&self, args: &Demo, printer: Printer) -> Result<Outcome> {
        let since = Instant::now();
        let mut line = ProgressLine::new(printer.is_for_programs());
        let looked = self.until(args, 0, since, &mut line).await;
        line.clear();
        let before = match looked? {
            Ok(seen) => seen,
            Err(why) => return Ok(Outcome::TimedOut(why)),
        };
        print::note(&format!(
            "all {} workers run, {:.1} s after they were asked for",
            args.workers,
            since.elapsed().as_secs_f64()
        ));
        let victim = victim(&before.pods).context("none of the pods runs")?;
        let generation = before.jobset.status.as_ref();
        let generation = generation
            .and_then(|status| status.in_place_restart.as_ref())
            .map_or(0, |status| status.generation);
        self.cluster.kill_work(&victim).await?;
        print::note(&format!("killed the process of the worker in pod {victim}"));

        let looked = self.until(args, generation + 1, since, &mut line).await;
        line.clear();
        let after = match looked? {
            Ok(seen) => seen,
            Err(why) => return Ok(Outcome::TimedOut(why)),
        };
        self.report(&before, after, victim).await
    }

    /// Waits for all workers to run at this restart attempt; else it says how far they are.
    async fn until(
        &self,
        args: &Demo,
        generation: i64,
        since: Instant,
        line: &mut ProgressLine,
    ) -> Result<Result<Observed, String>> {
        let scope = Scope::One(self.jobset.clone());
        let until = since + args.timeout;
        let mut changes = Changes::of(self.cluster, &scope, None).await;
        loop {
            let mut seen = self.cluster.observe(&scope).await?;
            let seen = seen.pop().context("the JobSet is gone")?;
            let shown = view(&seen);
            if is_steady(&shown, args.workers, generation) {
                return Ok(Ok(seen));
            }
            let mut far = format!("{}, {} of {} workers run", shown.phase, up(&shown), args.workers);
            if let Some(why) = trouble(&seen.pods) {
                far = format!("{far}; {why}");
            }
            if Instant::now() >= until {
                return Ok(Err(far));
            }
            let part = u32::try_from(up(&shown)).ok().map(|up| (up, args.workers));
            line.show(since, ProgressDetail { words: far, part });
            line.wait(since, &mut changes, until).await;
        }
    }

    /// What the control plane has measured, once its event says it.
    async fn report(&self, before: &Observed, mut after: Observed, killed: String) -> Result<Outcome> {
        let until = Instant::now() + EVENT_TIMEOUT;
        let mut changes = Changes::of(self.cluster, &Scope::One(self.jobset.clone()), None).await;
        let mut quiet = ProgressLine::new(true);
        let restart = loop {
            match timeline(&history(&after.jobset, &after.events), None) {
                Ok(restart) => break restart,
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => {}
            }
            let look = (Instant::now() + std::time::Duration::from_millis(200)).min(until);
            quiet.wait(Instant::now(), &mut changes, look).await;
            after.events = self.cluster.events(&self.jobset).await?;
        };
        let (was, is): (ContainerRestarts, ContainerRestarts) =
            (container_restarts(&before.pods), container_restarts(&after.pods));
        let kept = kept(&was, &is);
        let took = time::took(restart.took_ms);
        print::note(&format!(
            "all {} workers run again after {took}, {kept}",
            is.len()
        ));
        Ok(Outcome::Seen(Box::new(Answer {
            killed,
            kept,
            restart,
        })))
    }

    async fn remove(&self, keep: bool) -> Result<()> {
        let (namespace, jobset) = (&self.cluster.namespace, &self.jobset);
        if keep {
            let what = if self.owns_namespace {
                format!("kubectl delete namespace {namespace}")
            } else {
                format!("kubectl -n {namespace} delete jobset {jobset}")
            };
            print::note(&format!(
                "look at it with `kubectl lockstep history {jobset} -n {namespace}`; remove it with `{what}`"
            ));
        } else if self.owns_namespace {
            if self.cluster.remove_namespace().await? {
                print::note(&format!("removed namespace {namespace} with all that is in it"));
            }
        } else if self.cluster.remove_jobset(jobset).await? {
            print::note(&format!("removed JobSet {}", self.name()));
        }
        Ok(())
    }
}

/// The second of the pods that run, where there are two: rank 0 is not the only one that may fail.
fn victim(seen: &[Pod]) -> Option<String> {
    let mut running: Vec<&Pod> = seen.iter().filter(|pod| pods::state(pod) == "Running").collect();
    running.sort_by_key(|pod| pods::index(pod));
    let pod = running.get(1).or_else(|| running.first())?;
    Some(pod.name_any())
}

/// Ctrl-C, somebody who ends the plugin politely, or the end of its terminal.
struct Interrupted(Signal, Signal, Signal);

impl Interrupted {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be listened for");
        Ok(Self(
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ))
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
            _ = self.2.recv() => {}
        }
    }
}
