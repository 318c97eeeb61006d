//! JobSets of many Jobs that the API server refuses: soon, after seconds, and with huge messages.
//! Only the validation of Jobs sees what is wrong with them.

use std::time::Duration;

use anyhow::Result;
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::manifest::IDLE;
use serde_json::{Value, json};
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
    let length = slow_length(attacker).await?;
    let mut names = Vec::new();
    for number in 0..SOON + LATE + HUGE {
        let manifest = match number {
            number if number < SOON => soon(),
            number if number < SOON + LATE => late(length),
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

/// Equal elements, each of which is compared with all others.
fn late(length: usize) -> Manifest {
    let address = json!({"ip": "10.0.0.1", "hostnames": ["a"]});
    let aliases: Vec<Value> = vec![address; length];
    Manifest::new(1, IDLE)
        .strategy("Recreate")
        .pod(nowhere())
        .pod(json!({"hostAliases": aliases, "dnsPolicy": "Nonsense"}))
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

/// The length of a list for which a refusal takes long, as dry runs of a Job show.
async fn slow_length(attacker: &Attacker) -> Result<usize> {
    for length in LENGTHS {
        let mut manifest = late(length).0;
        let spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"].take();
        let job = json!({"metadata": {"name": attacker.unique("slow")}, "spec": spec});
        let start = Instant::now();
        attacker.try_out(JOB, job).await?;
        let took = start.elapsed();
        if took >= SLOW || length == LENGTHS[LENGTHS.len() - 1] {
            println!("     {length} equal elements of a list are refused after {took:.1?}");
            return Ok(length);
        }
    }
    Ok(LENGTHS[0])
}
