//! Parts of the product die by SIGKILL: no healthy worker notices, and the next failure is handled
//! as usual.

use anyhow::{Result, ensure};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker};
use nix::sys::signal::Signal;

use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(control_plane_dies alone),
        case!(node_daemon_dies alone),
        case!(both_die_during_a_restart alone),
        case!(containerd_dies alone),
    ]
}

/// Checks that the workers are those of `before`, kills one, and waits until all restart in place
/// at `generation`.
async fn unharmed_and_restarts(group: &Group, before: &[Worker], generation: u64) -> Result<Vec<Worker>> {
    let now = group.running(before.len()).await?;
    ensure!(
        now == before,
        "healthy workers were touched: {before:#?} became {now:#?}"
    );
    now[0].signal(Signal::SIGKILL)?;
    restarts(group, before, generation).await
}

async fn restarts(group: &Group, before: &[Worker], generation: u64) -> Result<Vec<Worker>> {
    let after = group.restarted_in_place(before, generation).await?;
    group.status_has("/inPlaceRestart/restarts", generation).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    Ok(after)
}

async fn dies(scene: &Scene, part: Part) -> Result<()> {
    scene.product.fresh(part).await?;
    let group = scene.apply(&Manifest::new(4, IDLE)).await?;
    let first = group.running(4).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    // The part comes back and knows its workers; then a worker dies.
    scene.product.kill(part).await?;
    ensure!(
        first.iter().all(|worker| worker.process.is_alive()),
        "workers died with the {part:?}"
    );
    scene.product.ready().await?;
    let second = unharmed_and_restarts(&group, &first, 1).await?;

    // A worker dies while the part is away.
    scene.product.kill(part).await?;
    second[3].signal(Signal::SIGKILL)?;
    scene.product.ready().await?;
    let third = restarts(&group, &second, 2).await?;
    unharmed_and_restarts(&group, &third, 3).await?;
    Ok(())
}

async fn control_plane_dies(scene: Scene) -> Result<()> {
    dies(&scene, Part::ControlPlane).await
}

async fn node_daemon_dies(scene: Scene) -> Result<()> {
    dies(&scene, Part::NodeDaemon(1)).await
}

async fn both_die_during_a_restart(scene: Scene) -> Result<()> {
    for part in [Part::ControlPlane, Part::NodeDaemon(1)] {
        scene.product.fresh(part).await?;
    }
    // The grace period keeps the restart in its middle until both are dead.
    let script = r#"
        echo "attempt $LOCKSTEP_RESTART_ATTEMPT"
        trap 'echo stopping' TERM
        while :; do sleep 1000000 & wait $!; done"#;
    let manifest = Manifest::new(2, script).annotated("lockstep.dev/restart-grace", "2s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    group.logged(&before[1].place.pod, "stopping").await?;
    scene.product.kill(Part::NodeDaemon(1)).await?;
    scene.product.kill(Part::ControlPlane).await?;
    scene.product.ready().await?;
    restarts(&group, &before, 1).await?;
    Ok(())
}

async fn containerd_dies(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(4, IDLE)).await?;
    let before = group.running(4).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    scene.product.restart_containerd(1).await?;
    ensure!(
        before.iter().all(|worker| worker.process.is_alive()),
        "workers died with containerd"
    );
    let after = unharmed_and_restarts(&group, &before, 1).await?;
    // The agent still gets into new containers.
    let other = scene.apply(&Manifest::new(2, IDLE).named("later")).await?;
    let workers = other.running(2).await?;
    unharmed_and_restarts(&other, &workers, 1).await?;
    unharmed_and_restarts(&group, &after, 2).await?;
    Ok(())
}
