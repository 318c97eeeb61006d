//! `demo`: creates a JobSet, kills one worker, shows the restart, and removes everything.
//!
//! Promises: the demo touches nothing that existed before. What it creates has a unique name. The
//! demo removes it, even after an error, except with `--keep` or if the plugin itself is killed.

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

/// How long to wait for the event of a restart, which is written after its end.
const EVENT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// The pod whose worker was killed.
    killed: String,
    /// How many pods and containers the restart left in place, in words.
    kept: String,
    restart: Timeline,
}

/// The result, if no request failed.
enum Outcome {
    Restarted(Box<Answer>),
    TimedOut(String),
}

/// What the demo creates.
struct DemoObjects<'c> {
    cluster: &'c Cluster,
    jobset: String,
    /// The demo created the namespace too, and removes it.
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
    let objects = DemoObjects {
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
    // Creation is not interrupted, so that everything that was created is removed.
    let created = objects.create(args).await;
    if let Err(error) = &created
        && error.is::<Refused>()
    {
        return created.map(|()| DONE);
    }
    let ended = match created {
        Ok(()) => tokio::select! {
            ended = objects.watch(args, printer) => Some(ended),
            () = interrupted.wait() => None,
        },
        Err(error) => Some(Err(error)),
    };
    let code = match ended {
        Some(Ok(Outcome::Restarted(answer))) => {
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
    let keep = args.keep && matches!(code, Ok(DONE));
    let removed = if keep {
        objects.say_how_to_remove();
        Ok(())
    } else {
        objects.remove().await
    };
    match (code, removed) {
        (Ok(code), removed) => removed.map(|()| code),
        (Err(error), Ok(())) => Err(error),
        // The first error says more.
        (Err(error), Err(left)) => {
            print::note(&format!("some of what was created is still there: {left:#}"));
            Err(error)
        }
    }
}

impl DemoObjects<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.cluster.namespace, self.jobset)
    }

    async fn create(&self, args: &Demo) -> Result<()> {
        if self.owns_namespace {
            self.cluster.create_namespace().await?;
        }
        let created = self
            .cluster
            .create_jobset(manifest(&self.jobset, &args.image, args.workers))
            .await;
        match created {
            // The namespace exists by now and must be removed, so this is no longer a `Refused`.
            Err(error) if self.owns_namespace => bail!("{error:#}"),
            created => created?,
        }
        let (workers, image) = (args.workers, &args.image);
        print::note(&format!(
            "created JobSet {}: {workers} workers of {image}",
            self.name()
        ));
        Ok(())
    }

    /// Waits until all workers run, kills one, and waits until all run again.
    async fn watch(&self, args: &Demo, printer: Printer) -> Result<Outcome> {
        let since = Instant::now();
        let mut line = ProgressLine::new(printer);
        let waited = self.wait_for(args, 0, since, &mut line).await;
        line.clear();
        let before = match waited? {
            Ok(seen) => seen,
            Err(why) => return Ok(Outcome::TimedOut(why)),
        };
        print::note(&format!(
            "all {} workers run, {:.1} s after they were created",
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

        let waited = self.wait_for(args, generation + 1, since, &mut line).await;
        line.clear();
        let after = match waited? {
            Ok(seen) => seen,
            Err(why) => return Ok(Outcome::TimedOut(why)),
        };
        self.report(&before, after, victim).await
    }

    /// Waits until all workers run at this restart attempt. After a time-out the inner error says
    /// how many do.
    async fn wait_for(
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
            let mut words = format!("{}, {} of {} workers run", shown.phase, up(&shown), args.workers);
            if let Some(why) = trouble(&seen.pods) {
                words = format!("{words}; {why}");
            }
            if Instant::now() >= until {
                return Ok(Err(words));
            }
            let part = u32::try_from(up(&shown)).ok().map(|up| (up, args.workers));
            line.show(since, ProgressDetail { words, part });
            line.wait(since, &mut changes, until).await;
        }
    }

    /// Waits for the event of the restart, and reports what the control plane measured.
    async fn report(&self, before: &Observed, mut after: Observed, killed: String) -> Result<Outcome> {
        let until = Instant::now() + EVENT_TIMEOUT;
        let mut changes = Changes::of(self.cluster, &Scope::One(self.jobset.clone()), None).await;
        let mut hidden = ProgressLine::hidden();
        let restart = loop {
            match timeline(&history(&after.jobset, &after.events), None) {
                Ok(restart) => break restart,
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => {}
            }
            let next = (Instant::now() + std::time::Duration::from_millis(200)).min(until);
            hidden.wait(Instant::now(), &mut changes, next).await;
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
        Ok(Outcome::Restarted(Box::new(Answer {
            killed,
            kept,
            restart,
        })))
    }

    /// Says how to inspect what was created, and how to remove it.
    fn say_how_to_remove(&self) {
        let (namespace, jobset) = (&self.cluster.namespace, &self.jobset);
        let removal = if self.owns_namespace {
            format!("kubectl delete namespace {namespace}")
        } else {
            format!("kubectl -n {namespace} delete jobset {jobset}")
        };
        print::note(&format!(
            "look at it with `kubectl lockstep history {jobset} -n {namespace}`; remove it with `{removal}`"
        ));
    }

    async fn remove(&self) -> Result<()> {
        let (namespace, jobset) = (&self.cluster.namespace, &self.jobset);
        if self.owns_namespace {
            if self.cluster.remove_namespace().await? {
                print::note(&format!(
                    "deleted namespace {namespace}; Kubernetes removes everything in it"
                ));
            }
        } else if self.cluster.remove_jobset(jobset).await? {
            print::note(&format!("removed JobSet {}", self.name()));
        }
        Ok(())
    }
}

/// The second of the running pods, if there are two: any rank may fail, not only rank 0.
fn victim(seen: &[Pod]) -> Option<String> {
    let mut running: Vec<&Pod> = seen.iter().filter(|pod| pods::state(pod) == "Running").collect();
    running.sort_by_key(|pod| pods::index(pod));
    let pod = running.get(1).or_else(|| running.first())?;
    Some(pod.name_any())
}

/// SIGINT (Ctrl-C), SIGTERM and SIGHUP.
struct Interrupted(Signal, Signal, Signal);

impl Interrupted {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
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
