//! What the attacker does, one kind of attack after the other. Each is one function that ends with
//! the phase.

mod gangs;
mod loud;
mod mounts;
mod numbers;
mod posers;
mod ray;
mod refused;
mod resume;
mod stored;

use anyhow::Result;
use futures::FutureExt;
use futures::future::LocalBoxFuture;
use lockstep_integration::harness::Manifest;
use serde_json::{Value, json};

use super::attacker::Attacker;

/// A kind of attack.
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) attack: for<'a> fn(&'a Attacker) -> LocalBoxFuture<'a, Result<()>>,
}

/// A row of the table: its name, and the function.
macro_rules! phase {
    ($name:literal, $attack:path) => {
        Phase {
            name: $name,
            attack: |attacker| $attack(attacker).boxed_local(),
        }
    };
}

/// All of them, after a time without an attack, with which the others are compared.
pub(super) static ALL: [Phase; 13] = [
    phase!("quiet", quiet),
    phase!("refused", refused::many_refused),
    phase!("numbers", numbers::numbers),
    phase!("patterns", numbers::patterns),
    phase!("loud", loud::log_flood),
    phase!("stored", stored::big_pods),
    phase!("gangs", gangs::gang_pods),
    phase!("resume", resume::resume_bomb),
    phase!("ray", ray::ray),
    phase!("posers", posers::posers),
    phase!("mounts", mounts::mounts),
    phase!("purges", mounts::purges),
    phase!("together", together),
];

/// Nothing.
async fn quiet(attacker: &Attacker) -> Result<()> {
    attacker.rest().await;
    Ok(())
}

/// Several at once. They share the bounds of one phase.
async fn together(attacker: &Attacker) -> Result<()> {
    let parts = [
        refused::many_refused(attacker).boxed_local(),
        loud::log_flood(attacker).boxed_local(),
        gangs::gang_pods(attacker).boxed_local(),
        ray::ray(attacker).boxed_local(),
        posers::posers(attacker).boxed_local(),
        mounts::purges(attacker).boxed_local(),
    ];
    futures::future::try_join_all(parts).await.map(drop)
}

/// Fields of pods that no node takes.
fn nowhere() -> Value {
    json!({"nodeSelector": {"test.lockstep.dev/pool": "nowhere"}})
}

/// A container may not take more than a part of a core: the test is about Lockstep, which shares
/// the cores of this machine with the attacker.
fn little() -> Value {
    json!({"limits": {"cpu": "150m", "memory": "200Mi"}, "requests": {"cpu": "5m", "memory": "5Mi"}})
}

/// This number of Jobs of the replicatedJob.
fn replicas(mut manifest: Manifest, count: i64) -> Manifest {
    manifest.0["spec"]["replicatedJobs"][0]["replicas"] = json!(count);
    manifest
}

/// Suspended from its creation on.
fn suspended(mut manifest: Manifest) -> Manifest {
    manifest.0["spec"]["suspend"] = json!(true);
    manifest
}

/// Sets metadata of the pod template.
fn pod_metadata(mut manifest: Manifest, key: &str, value: Value) -> Manifest {
    let template = &mut manifest.0["spec"]["replicatedJobs"][0]["template"]["spec"]["template"];
    template["metadata"][key] = value;
    manifest
}
