//! JobSets of a thousand suspended Jobs that become large when they resume, or are refused then.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Manifest, eventually};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use super::{nowhere, pod_metadata, replicas, suspended};
use crate::tenant::attacker::{Attacker, JOBSET};

/// Jobs of each JobSet. Pods of them would fill etcd, so they have none.
const JOBS: i64 = 1000;
/// A text that the annotations of an object can hold, and one that they cannot.
const LONG: usize = 250_000;
const TOO_LONG: usize = 270_000;
/// The time between two looks at the Jobs.
const PACE: Duration = Duration::from_secs(2);

/// Two of them, one of which can resume.
pub(super) async fn resume_bomb(attacker: &Attacker) -> Result<()> {
    let bombs = [LONG, TOO_LONG].map(|length| (attacker.unique("bomb"), length));
    for (name, _) in &bombs {
        let manifest = Manifest::new(1, IDLE)
            .named(name)
            .strategy("Recreate")
            .job(json!({"parallelism": 0, "completions": 1}))
            .pod(nowhere());
        let manifest = suspended(replicas(
            pod_metadata(manifest, "annotations", json!({"a": "b"})),
            JOBS,
        ));
        attacker.create(JOBSET, manifest.0).await?;
    }
    // The first half of the phase is for the Jobs to be made, the rest for them to resume.
    let patience = attacker.left() / 2;
    for (name, _) in &bombs {
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let made = eventually("the Jobs are made", patience / 2, async || {
            pace.tick().await;
            let found = attacker.get(JOBSET, name).await.unwrap_or_default();
            let made = found["status"]["replicatedJobsStatus"][0]["suspended"].as_i64();
            ensure!(made == Some(JOBS), "{made:?}");
            Ok(())
        })
        .await;
        if let Err(error) = made {
            println!("     {name} resumes before all its Jobs exist: {error:#}");
        }
    }
    for (name, length) in &bombs {
        let Some(mut found) = attacker.get(JOBSET, name).await else {
            continue;
        };
        let mut jobs = found["spec"]["replicatedJobs"].take();
        jobs[0]["template"]["spec"]["template"]["metadata"]["annotations"] =
            json!({"a": "x".repeat(*length)});
        let changed = attacker
            .patch(JOBSET, name, json!({"spec": {"replicatedJobs": jobs}}))
            .await;
        let resumed = attacker
            .patch(JOBSET, name, json!({"spec": {"suspend": false}}))
            .await;
        println!("     {name} with {length} bytes: {changed:.100?}, {resumed:.100?}");
    }
    attacker.rest().await;
    Ok(())
}
