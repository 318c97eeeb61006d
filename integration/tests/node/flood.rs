//! A worker that writes as much as it can: neither the restart nor the memory of the product
//! depends on that.

use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{RESTART, Worker};
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::{Group, Manifest, Process, eventually, stopwatch};

use crate::support::{Case, Part, Scene, case};

/// Worker 0 writes blocks of 1 MB in lines of 8 kB, some 100 blocks a second. A line of its own
/// precedes each block.
const WRITER: &str = r#"
    echo "attempt $LOCKSTEP_RESTART_ATTEMPT"
    [ "$JOB_COMPLETION_INDEX" = 0 ] || exec sleep 1000000
    line=$(head -c 8000 /dev/zero | tr '\0' x)
    yes "$line" | head -n 125 > /tmp/block
    n=0
    while :; do
      for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
        n=$((n + 1))
        echo "block $n of attempt $LOCKSTEP_RESTART_ATTEMPT"
        cat /tmp/block
      done
      sleep 0.06
    done"#;
/// How long its output is measured.
const MEASURED: Duration = Duration::from_secs(2);
/// The least rate of output that is a flood, in megabytes a second: on a slow machine containerd
/// takes no more.
const FLOOD: f64 = 1.0;
/// How much more memory a program of the product may use than before, in bytes.
const MORE: u64 = 8 << 20;

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(a_flood_of_output alone)]
}

/// Resident memory in bytes.
fn resident(process: Process) -> Result<u64> {
    let line = process.status("VmRSS");
    let kilobytes = line.first().context("no VmRSS")?;
    Ok(kilobytes.parse::<u64>()? << 10)
}

/// The bytes that a process and its reaped children have written.
fn written(process: Process) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", process.pid))?;
    let count = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or_default())
}

/// Waits until the worker's log has a block of `attempt`.
async fn passed_on(group: &Group, worker: &Worker, attempt: u64) -> Result<()> {
    let end = format!("of attempt {attempt}");
    eventually(&format!("the log holds a block {end}"), RESTART, async || {
        // Two blocks at least.
        let args = [
            "logs",
            &worker.place.pod,
            "--container",
            CONTAINER,
            "--tail",
            "300",
        ];
        let log = group.namespace.kubectl(&args).await?;
        ensure!(
            log.lines()
                .any(|line| line.starts_with("block ") && line.ends_with(&end)),
            "{} bytes, none of them of that",
            log.len()
        );
        Ok(())
    })
    .await
}

async fn a_flood_of_output(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, WRITER)).await?;
    let mut workers = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    passed_on(&group, &workers[0], 0).await?;
    let daemon = scene.product.process(Part::NodeDaemon(1)).await?;
    let ours = [daemon, workers[0].agent, workers[1].agent];
    let before = ours.map(resident);

    let start = (Instant::now(), written(workers[0].process)?);
    tokio::time::sleep(MEASURED).await;
    let bytes = written(workers[0].process)? - start.1;
    let rate = bytes as f64 / 1e6 / start.0.elapsed().as_secs_f64();

    ensure!(rate >= FLOOD, "only {rate:.1} MB/s are written");

    let mut times = Vec::new();
    // The silent worker dies, then the one that writes.
    for (generation, victim) in [(1, 1), (2, 0), (3, 1), (4, 0)] {
        let victim = workers[victim].process;
        times.push(stopwatch::kill_in_place(workers.clone(), victim, RESTART).await?);
        workers = group.restarted_in_place(&workers, generation).await?;
        passed_on(&group, &workers[0], generation).await?;
    }
    group.status_has("/inPlaceRestart/restarts", 4).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    println!("     {rate:.0} MB/s written, restarts took {times:.1?}");
    for ((process, before), name) in ours
        .into_iter()
        .zip(before)
        .zip(["node daemon", "agent", "agent"])
    {
        let (before, after) = (before?, resident(process)?);
        println!(
            "     {name}: {} kB, then {} kB, at most {}",
            before >> 10,
            after >> 10,
            process.status("VmHWM").join(" ")
        );
        ensure!(
            after <= before + MORE,
            "the {name} grew from {before} to {after} bytes"
        );
    }
    // Ends the flood.
    group
        .namespace
        .kubectl(&["delete", "jobset", &group.name, "--wait=false"])
        .await?;
    Ok(())
}
