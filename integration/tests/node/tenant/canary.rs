//! Others go on: a small new JobSet completes every minute. The course of a slow one is printed: it
//! says whether it waited for the control plane, or for Kubernetes.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use lockstep_integration::harness::{Group, Manifest, Namespace, eventually};
use serde_json::Value;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::ledger::{Ledger, Timed};

const WORKERS: u32 = 2;
/// The time between two canaries.
const PACE: Duration = Duration::from_secs(60);
/// When the case no longer waits for one. What it may take is judged in the end.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// A canary that takes longer is slow.
const SLOW: Duration = Duration::from_secs(60);
const CREATED: &str = "/metadata/creationTimestamp";

/// Creates canaries until the case ends.
pub(super) async fn sing(namespace: &Namespace, ledger: &Ledger) -> Result<()> {
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0.. {
        pace.tick().await;
        if !ledger.goes_on() {
            break;
        }
        let at = ledger.elapsed();
        let name = format!("canary-{number}");
        match complete(namespace, &name).await {
            Ok(ours) => {
                let took = ledger.elapsed().saturating_sub(at);
                ledger.completed(Timed { at, took }, Timed { at, took: ours });
            }
            Err(error) => ledger.complain(format!("{name} has not completed: {error:#}")),
        }
    }
    Ok(())
}

/// Creates a JobSet, waits until it has completed, and deletes it. Returns the control plane's part
/// of the time.
async fn complete(namespace: &Namespace, name: &str) -> Result<Duration> {
    let manifest = Manifest::new(WORKERS, "echo sung").named(name);
    let start = Instant::now();
    // A client whose request fails for the load of the API server tries again.
    let group = eventually("it is created", PATIENCE, async || {
        Group::apply(namespace, &manifest).await
    })
    .await?;
    group.condition("Completed", PATIENCE).await?;
    let course = Course::of(&group).await?;
    if start.elapsed() > SLOW {
        println!("     {name}: {course}");
    }
    eventually("it is deleted", PATIENCE, async || {
        let delete = ["delete", "jobset", name, "--ignore-not-found", "--wait=false"];
        namespace.kubectl(&delete).await.map(drop)
    })
    .await?;
    Ok(course.ours())
}

/// When the steps of a group were done for all of its parts, since the JobSet was created.
/// Kubernetes keeps these times to the second.
struct Course {
    jobs: Duration,
    pods: Duration,
    scheduled: Duration,
    ran: Duration,
    jobs_complete: Duration,
    complete: Duration,
}

impl Course {
    async fn of(group: &Group) -> Result<Self> {
        let get = ["get", "jobset", &group.name, "--output", "json"];
        let jobset: Value = serde_json::from_str(&group.namespace.kubectl(&get).await?)?;
        let jobs = values(group.jobs().await?)?;
        let pods = values(group.pods().await?)?;
        let start = time(&jobset, CREATED).context("the JobSet has no time of creation")?;
        let last = |of: &[Value], pointer: &str| -> Result<Duration> {
            let times = of.iter().filter_map(|value| time(value, pointer));
            let last = times.max().with_context(|| format!("nothing has {pointer}"))?;
            Ok(Duration::try_from(last.duration_since(start)).unwrap_or_default())
        };
        let changed = "/lastTransitionTime";
        Ok(Self {
            jobs: last(&jobs, CREATED)?,
            pods: last(&pods, CREATED)?,
            scheduled: last(&conditions(&pods, "PodScheduled"), changed)?,
            ran: last(&pods, "/status/containerStatuses/0/state/terminated/finishedAt")?,
            jobs_complete: last(&jobs, "/status/completionTime")?,
            complete: last(&conditions(&[jobset], "Completed"), changed)?,
        })
    }

    /// The part of the control plane. Job controller, scheduler and kubelet have the rest.
    fn ours(&self) -> Duration {
        self.jobs + self.complete.saturating_sub(self.jobs_complete)
    }
}

impl fmt::Display for Course {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            jobs,
            pods,
            scheduled,
            ran,
            jobs_complete,
            complete,
        } = self;
        write!(
            to,
            "Jobs after {jobs:?}, pods {pods:?}, scheduled {scheduled:?}, run {ran:?}, Jobs complete {jobs_complete:?}, complete {complete:?}"
        )
    }
}

/// The conditions of this type of all objects.
fn conditions(of: &[Value], kind: &str) -> Vec<Value> {
    let all = of
        .iter()
        .filter_map(|object| object["status"]["conditions"].as_array());
    let of_kind = all.flatten().filter(|condition| condition["type"] == kind);
    of_kind.cloned().collect()
}

fn values(objects: Vec<impl serde::Serialize>) -> Result<Vec<Value>> {
    let values = objects.into_iter().map(serde_json::to_value);
    Ok(values.collect::<Result<_, _>>()?)
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    object.pointer(pointer)?.as_str()?.parse().ok()
}
