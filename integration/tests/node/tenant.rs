//! One tenant attacks a running installation with all of its rights, in one namespace. Meanwhile
//! workers of a neighbour are killed, and new JobSets of others have to complete.
//!
//! `make soak-tenant` sets LOCKSTEP_SOAK_TENANT to the minutes of the attack. At the end a table
//! shows for each phase what the neighbour and the operator saw, and `target/bench/tenant.json`
//! holds the same. LOCKSTEP_TENANT_PHASES runs only phases with these names, separated by commas.

mod attacker;
mod canary;
mod ledger;
mod monitor;
mod neighbour;
mod phases;
mod report;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use lockstep_integration::image;
use tokio::time::{sleep_until, timeout};

use crate::chaos::setting;
use crate::ray;
use crate::support::{Case, Scene, case};
use attacker::Attacker;
use ledger::Ledger;
use monitor::Monitor;
use neighbour::Neighbour;
use phases::Phase;

/// The minutes of the attack.
const MINUTES: &str = "LOCKSTEP_SOAK_TENANT";
/// The names of the phases to run.
const ONLY: &str = "LOCKSTEP_TENANT_PHASES";
/// How long all objects of a phase may take to be gone.
const CLEAN: Duration = Duration::from_secs(300);
/// How much longer than its share a phase may take before it is ended: it stops by itself at the
/// end of its share, but not in the middle of a request.
const LATE: Duration = Duration::from_secs(90);

/// The case, if LOCKSTEP_SOAK_TENANT sets the minutes.
pub(crate) fn cases() -> Vec<Case> {
    let Some(minutes) = setting(MINUTES) else {
        return Vec::new();
    };
    let phases = u32::try_from(phases::ALL.len()).expect("few phases");
    vec![Case {
        limit: Duration::from_secs(900 + 60 * minutes) + neighbour::PATIENCE + phases * (CLEAN + LATE),
        ..case!(no_tenant_takes_the_control_plane_down alone)
    }]
}

/// The phases to run.
fn chosen() -> Result<Vec<&'static Phase>> {
    let Ok(only) = std::env::var(ONLY) else {
        return Ok(phases::ALL.iter().collect());
    };
    let find = |name: &str| phases::ALL.iter().find(|phase| phase.name == name);
    only.split(',')
        .map(|name| find(name).with_context(|| format!("there is no phase {name:?}")))
        .collect()
}

async fn no_tenant_takes_the_control_plane_down(scene: Scene) -> Result<()> {
    let minutes = setting(MINUTES).context(MINUTES)?;
    let phases = chosen()?;
    let length = Duration::from_secs(60 * minutes) / u32::try_from(phases.len())?;
    scene.product.load(&image::python().await?).await?;
    ray::enable(&scene).await?;

    let ledger = Arc::new(Ledger::new());
    let attacker = Attacker::new(&scene, ledger.clone()).await?;
    let neighbour = Neighbour::settle(&scene, ledger.clone()).await?;
    let group = neighbour.group.clone();
    let monitor = Monitor::over(&scene, ledger.clone()).await?;
    let carol = scene.access().namespace("carol").await?;
    let attack = async {
        for phase in phases {
            carry_out(phase, length, &attacker, &monitor, &ledger).await;
        }
        ledger.end();
        Ok(())
    };
    tokio::try_join!(
        attack.boxed_local(),
        neighbour.suffer().boxed_local(),
        canary::sing(&carol, &ledger).boxed_local(),
        monitor.look_on().boxed_local(),
    )?;
    let report = ledger.report();
    report.print();
    report.write()?;
    let judged = report.judge();
    if judged.is_err() {
        println!("{}", group.namespace.dump().await);
    }
    // What they hold goes with the cluster, unless it is kept.
    for name in [&attacker.namespace.name, &group.namespace.name, &carol.name] {
        let delete = ["delete", "namespace", name, "--wait=false"];
        scene.access().kubectl(&delete, "").await?;
    }
    judged
}

/// Runs a phase for its share of the time, and removes what it has made.
async fn carry_out(phase: &Phase, length: Duration, attacker: &Attacker, monitor: &Monitor, ledger: &Ledger) {
    monitor.forget_peaks();
    ledger.begin(phase.name);
    println!("     {:>5.0} s: {}", ledger.elapsed().as_secs_f64(), phase.name);
    let until = attacker.begin(length);
    match timeout(length + LATE, (phase.attack)(attacker)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => ledger.complain(format!("the attack could not go on: {error:#}")),
        Err(_) => ledger.complain("the attack did not end".to_owned()),
    }
    // What it has left takes effect for the rest of its share.
    sleep_until(until).await;
    ledger.attacked(attacker.tally());
    match attacker.clean(CLEAN).await {
        Ok(took) => ledger.cleaned(Some(took)),
        Err(error) => {
            println!("     not clean: {error:#}");
            ledger.cleaned(None);
        }
    }
}
