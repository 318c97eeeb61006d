//! The product is removed and installed again: workers run on, and the next failure leads to a
//! restart as usual.

use anyhow::{Result, ensure};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker};
use nix::sys::signal::Signal;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(workers_run_on_without_the_product_and_are_taken_over_by_the_next alone)]
}

const WORKERS: usize = 3;

async fn unharmed(group: &Group, before: &[Worker]) -> Result<()> {
    let now = group.running(WORKERS).await?;
    ensure!(
        now == before,
        "healthy workers were touched: {before:#?} became {now:#?}"
    );
    Ok(())
}

async fn workers_run_on_without_the_product_and_are_taken_over_by_the_next(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(WORKERS as u32, IDLE)).await?;
    let first = group.running(WORKERS).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    scene.product.uninstall().await?;
    let removed = unharmed(&group, &first).await;
    // A worker that fails now waits. The docs ask to end such JobSets first, but nothing is lost
    // without that.
    first[0].signal(Signal::SIGKILL)?;

    // This is restored whatever the result: other cases need it.
    scene.product.reinstall(&[]).await?;
    removed?;
    let second = group.restarted_in_place(&first, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    // Once more without a failure meanwhile: nothing restarts.
    scene.product.uninstall().await?;
    let removed = unharmed(&group, &second).await;
    scene.product.reinstall(&[]).await?;
    removed?;
    unharmed(&group, &second).await?;
    second[WORKERS - 1].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&second, 2).await?;
    group.status_has("/inPlaceRestart/restarts", 2).await
}
