//! The output of the benchmark of the whole system.

use std::fs;

use anyhow::Result;
use lockstep_integration::host::target_dir;
use serde_json::json;

use super::{Args, Measured};
use crate::bench::load;
use crate::output::Table;
use crate::samples::Times;

pub(super) fn print(all: &[Measured]) {
    println!("\none JobSet, 8 pods on a node: seconds until all run, median (worst)\n");
    let table = Table::begin(all, 44, |of| format!("{} pods", of.pods));
    table.row("created", |of| times(&of.start));
    table.row("a worker failed, in place", |of| times(&of.worker));
    table.row("a pod was deleted, in place", |of| times(&of.pod));
    table.row("8 pods of a node were deleted, in place", |of| times(&of.node));
    table.row("a pod failed, Recreate", |of| times(&of.recreate));
    table.row("Recreate, of a worker's in place", |of| {
        format!("{:.0}", of.recreate.percentile(50) / of.worker.percentile(50))
    });
    table.row("writes for a failed worker", |of| format!("{:.1}", of.writes));
    table.row("our CPU ms for a failed worker", |of| {
        format!("{:.0}", of.cpu * 1e3)
    });
    table.row("our memory at most, MiB", |of| format!("{:.0}", of.peak));
}

fn times(times: &Times) -> String {
    if times.count() == 0 {
        return "-".to_owned();
    }
    format!(
        "{:.2} ({:.2})",
        times.percentile(50) / 1e3,
        times.percentile(100) / 1e3
    )
}

pub(super) fn write(args: &Args, all: &[Measured]) -> Result<()> {
    let sizes: Vec<_> = all
        .iter()
        .map(|of| {
            json!({
                "pods": of.pods,
                "created": of.start.json(),
                "worker_failed": of.worker.json(),
                "pod_deleted": of.pod.json(),
                "node_emptied": of.node.json(),
                "recreate": of.recreate.json(),
                "writes_for_a_worker": of.writes,
                "cpu_seconds_for_a_worker": of.cpu,
                "peak_mib": of.peak,
            })
        })
        .collect();
    let results = json!({
        "rounds": args.rounds,
        "losses": args.losses,
        "recreations": args.recreations,
        "cores": std::thread::available_parallelism()?,
        "load_after": load(),
        "sizes": sizes,
    });
    let out = target_dir().join("bench/system.json");
    fs::write(&out, serde_json::to_string_pretty(&results)? + "\n")?;
    println!("written to {}", out.display());
    Ok(())
}
