//! Each part is upgraded and downgraded again while workers die: every restart happens in place,
//! and daemons of both versions serve agents of either version.
//!
//! LOCKSTEP_OLDER names a checkout of an older commit with the result of `make binaries`. Without
//! it the older version is the same code in different files.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Manifest, Process, Worker, eventually};
use lockstep_integration::image::{Entry, Image, Programs};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::chaos::storm::Storm;
use crate::support::{Build, Case, Part, READY, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case {
        limit: Duration::from_secs(1200),
        ..case!(each_part_is_upgraded_and_taken_back_in_a_storm_of_restarts alone)
    }]
}

const DAEMON: Part = Part::NodeDaemon(1);

async fn each_part_is_upgraded_and_taken_back_in_a_storm_of_restarts(scene: Scene) -> Result<()> {
    let (older, _files) = older()?;
    for image in [&older.control_plane, &older.node_daemon] {
        scene.product.load(image).await?;
    }
    let result = upgrade(&scene, &older, &Build::present()?).await;
    // This is restored whatever the result: other cases need it.
    scene.product.reinstall(&[]).await?;
    result?;
    old_agents_go(&scene).await
}

/// The build of an older version, and the folder of its files.
fn older() -> Result<(Build, TempDir)> {
    let dir = tempfile::tempdir()?;
    let mut build = match std::env::var_os("LOCKSTEP_OLDER").map(PathBuf::from) {
        Some(checkout) => Build {
            chart: checkout.join("charts/lockstep"),
            ..Build::of(&Programs::release(&checkout.join("target")))?
        },
        None => {
            let mut programs = Programs::chosen()?;
            for program in [
                &mut programs.control_plane,
                &mut programs.node_daemon,
                &mut programs.pod_agent,
            ] {
                let copy = dir.path().join(program.file_name().context("no name")?);
                fs::copy(&program, &copy)?;
                // The addition comes after everything that is read of a program.
                OpenOptions::new().append(true).open(&copy)?.write_all(b"older")?;
                *program = copy;
            }
            Build::of(&programs)?
        }
    };
    build.control_plane = build.control_plane.named("localhost/older-control-plane:dev");
    build.node_daemon = build.node_daemon.named("localhost/older-node-daemon:dev");
    Ok((build, dir))
}

async fn upgrade(scene: &Scene, older: &Build, present: &Build) -> Result<()> {
    scene.product.change_to(older, &[]).await?;
    let mut storm = Storm::gather(scene).await?;
    all_have(storm.workers(), &older.node_daemon)?;
    let mixed = |chart: &Build, control_plane: &Build, node_daemon: &Build| Build {
        chart: chart.chart.clone(),
        control_plane: control_plane.control_plane.clone(),
        node_daemon: node_daemon.node_daemon.clone(),
    };
    // Upgrades part by part, goes back in the same order, and then changes both parts at once.
    for build in [
        mixed(present, present, older),
        present.clone(),
        mixed(older, older, present),
        older.clone(),
        present.clone(),
    ] {
        storm
            .during(Box::pin(scene.product.change_to(&build, &[])))
            .await?;
        runs(
            scene.product.process(Part::ControlPlane).await?,
            &build.control_plane,
            "/lockstep-control-plane",
        )?;
        runs(
            scene.product.process(DAEMON).await?,
            &build.node_daemon,
            "/lockstep-node-daemon",
        )?;
        // Agents stay as long as their containers, and this daemon has restarted their workers.
        all_have(storm.workers(), &older.node_daemon)?;
        is_served(scene, &build).await?;
    }
    println!("     {} restarts during 5 changes of version", storm.restarts());
    ensure!(storm.restarts() > 5, "that was no storm");
    let kept = agents(scene).await?;
    ensure!(
        kept.len() == 2,
        "the agent of running workers is not kept: {kept:?}"
    );
    Ok(())
}

/// A new pod gets the agent of this daemon, and restarts in place.
async fn is_served(scene: &Scene, build: &Build) -> Result<()> {
    let group = scene.apply(&Manifest::new(1, IDLE).named("made-now")).await?;
    let before = group.running(1).await?;
    all_have(&before, &build.node_daemon)?;
    before[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/level", "Process").await?;
    remove(scene, &["made-now"]).await
}

async fn remove(scene: &Scene, jobsets: &[&str]) -> Result<()> {
    let delete = ["delete", "jobset", "--cascade=foreground", "--timeout=180s"];
    scene
        .namespace
        .kubectl(&[delete.as_slice(), jobsets].concat())
        .await
        .map(drop)
}

/// Once the last worker with an older agent is gone, the next daemon removes that agent.
async fn old_agents_go(scene: &Scene) -> Result<()> {
    remove(scene, &["storm", "calm"]).await?;
    scene.product.renew(DAEMON).await?;
    eventually("one agent is left", READY, async || {
        let left = agents(scene).await?;
        ensure!(left.len() == 1, "{left:?}");
        Ok(())
    })
    .await
}

/// The agents that the node has.
async fn agents(scene: &Scene) -> Result<Vec<PathBuf>> {
    let bin = scene.product.node_path(1, "/run/lockstep/bin").await?;
    let entries = fs::read_dir(bin)?.map(|entry| Ok(entry?.path()));
    entries.collect()
}

fn all_have(workers: &[Worker], image: &Image) -> Result<()> {
    for worker in workers {
        runs(worker.agent, image, "/lockstep-pod-agent")?;
    }
    Ok(())
}

/// Fails unless the process runs this program of the image.
fn runs(process: Process, image: &Image, program: &str) -> Result<()> {
    let Some(Entry::File { source, .. }) = image.files.get(Path::new(program)) else {
        anyhow::bail!("{} has no {program}", image.name)
    };
    let running = fs::read(format!("/proc/{}/exe", process.pid))?;
    ensure!(
        running == fs::read(source)?,
        "{process:?} does not run {program} of {}",
        image.name
    );
    Ok(())
}
