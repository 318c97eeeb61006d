//! JobSets of many Jobs that the API server refuses: soon, after seconds, and with huge messages.
//! Only the validation of Jobs sees what is wrong with them.

use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::manifest::IDLE;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{nowhere, replicas};
use crate::tenant::attacker::{Attacker, JOB, JOBSET};

/// JobSets of each kind, and their Jobs.
const SOON: usize = 8;
const LATE: usize = 3;
const HUGE: usize = 4;
const JOBS: i64 = 1000;
/// How long one refusal of the slow kind takes at least, and the lengths of lists to find that.
const SLOW: Duration = Duration::from_secs(1);
const LENGTHS: [usize; 5] = [500, 1000, 1800, 2700, 3600];
/// The time between two changes of all JobSets, each of which is a reason to try again.
const PACE: Duration = Duration::from_secs(3);

/// Creates them, and has them tried again and again.
pub(super) async fn many_refused(attacker: &Attacker) -> Result<()> {
    let list = slow_list(attacker).await?;
    let mut names = Vec::new();
    for number in 0..SOON + LATE + HUGE {
        let manifest = match number {
            number if number < SOON => soon(),
            number if number < SOON + LATE => list.manifest(),
            _ => huge(),
        };
        let name = attacker.unique("refused");
        let manifest = replicas(manifest.named(&name), JOBS);
        attacker.create(JOBSET, manifest.0).await?;
        names.push(name);
    }
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0.. {
        pace.tick().await;
        if !attacker.goes_on() {
            break;
        }
        for name in &names {
            let patch = json!({"metadata": {"annotations": {"test.lockstep.dev/turn": turn.to_string()}}});
            attacker.patch(JOBSET, name, patch).await;
        }
    }
    Ok(())
}

/// A policy that no pod can have.
fn soon() -> Manifest {
    Manifest::new(1, IDLE)
        .strategy("Recreate")
        .pod(json!({"dnsPolicy": "Nonsense"}))
}

/// A list that the API server takes long to refuse: the time grows with the square of the number of
/// its wrong elements. 3,600 tolerations took 3.6 s, 1,000 took 0.35 s.
#[derive(Debug, Clone, Copy)]
struct List {
    field: &'static str,
    length: usize,
}

impl List {
    /// The fields that have such lists.
    const FIELDS: [&'static str; 2] = ["tolerations", "hostAliases"];

    /// A JobSet with the list, which is refused.
    fn manifest(self) -> Manifest {
        let element = |number: usize| match self.field {
            "tolerations" => json!({"key": format!("={number}"), "operator": "Exists"}),
            // Equal addresses are refused in the JobSet.
            _ => json!({"ip": format!("x{number}"), "hostnames": ["="]}),
        };
        let elements: Vec<Value> = (0..self.length).map(element).collect();
        Manifest::new(1, IDLE)
            .strategy("Recreate")
            .pod(nowhere())
            .pod(json!({self.field: elements}))
    }
}

/// Thousands of invalid entries, all of which the message names.
fn huge() -> Manifest {
    let variables: Vec<Value> = (0..3000)
        .map(|number| json!({"name": format!("={number}"), "value": "v"}))
        .collect();
    Manifest::new(1, IDLE)
        .strategy("Recreate")
        .container(json!({"env": variables}))
}

/// The shortest list of which a refusal takes long, as dry runs of a Job show, or the slowest of
/// all. It is sought once, on a cluster that is idle.
async fn slow_list(attacker: &Attacker) -> Result<List> {
    static FOUND: OnceCell<List> = OnceCell::const_new();
    let seek = async || {
        let mut slowest: Option<(Duration, List)> = None;
        for length in LENGTHS {
            for field in List::FIELDS {
                let list = List { field, length };
                let took = refusal(attacker, list).await?;
                if slowest.is_none_or(|(before, _)| before < took) {
                    slowest = Some((took, list));
                }
            }
            if slowest.is_some_and(|(took, _)| took >= SLOW) {
                break;
            }
        }
        let (took, list) = slowest.context("no list")?;
        println!("     {list:?} is refused after {took:.1?}");
        Ok(list)
    };
    FOUND.get_or_try_init(seek).await.copied()
}

/// How long the API server takes to refuse a Job with this list.
async fn refusal(attacker: &Attacker, list: List) -> Result<Duration> {
    let mut manifest = list.manifest().0;
    let spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"].take();
    let job = json!({"metadata": {"name": attacker.unique("slow")}, "spec": spec});
    let start = Instant::now();
    attacker.try_out(JOB, job).await?;
    Ok(start.elapsed())
}
