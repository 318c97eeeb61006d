//! Others go on: a small new JobSet completes every minute.

use std::time::Duration;

use anyhow::Result;
use lockstep_integration::harness::{Group, Manifest, Namespace, eventually};
use tokio::time::{MissedTickBehavior, interval};

use super::ledger::{Ledger, Timed};

const WORKERS: u32 = 2;
/// The time between two canaries.
const PACE: Duration = Duration::from_secs(60);
/// When the case no longer waits for one. What it may take is judged in the end.
const PATIENCE: Duration = Duration::from_secs(600);

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
            Ok(()) => {
                let took = ledger.elapsed().saturating_sub(at);
                ledger.completed(Timed { at, took });
            }
            Err(error) => ledger.complain(format!("{name} has not completed: {error:#}")),
        }
    }
    Ok(())
}

/// Creates a JobSet, waits until it has completed, and deletes it.
async fn complete(namespace: &Namespace, name: &str) -> Result<()> {
    let manifest = Manifest::new(WORKERS, "echo sung").named(name);
    // A client whose request fails for the load of the API server tries again.
    let group = eventually("it is created", PATIENCE, async || {
        Group::apply(namespace, &manifest).await
    })
    .await?;
    group.condition("Completed", PATIENCE).await?;
    eventually("it is deleted", PATIENCE, async || {
        let delete = ["delete", "jobset", name, "--ignore-not-found", "--wait=false"];
        namespace.kubectl(&delete).await.map(drop)
    })
    .await
}
