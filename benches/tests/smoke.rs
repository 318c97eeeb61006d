//! Runs the benchmarks with small fleets: all designs restart all of their workers, and recover
//! after their server is killed.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

fn assert_succeeded(ended: &Output) {
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

#[test]
fn all_designs_push_restart_and_reconnect() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("scale.json");
    let ended = Command::new(env!("CARGO_BIN_EXE_lockstep-scale"))
        .args([
            "run",
            "--nodes",
            "24",
            "--rounds",
            "2",
            "--blocks",
            "1",
            "--restarts",
            "3",
            "--out",
        ])
        .arg(&out)
        .output()
        .unwrap();
    assert_succeeded(&ended);
    let table = String::from_utf8(ended.stdout).unwrap();
    assert!(table.contains("24 workers: median (p99)"), "{table}");

    let results: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    let designs = results["sizes"][0]["designs"].as_object().unwrap();
    assert_eq!(designs.len(), 6);
    let polled = "Valkey's design as documented";
    assert_eq!(designs[polled]["ms"]["round_trip"]["rounds"], 2);
    for (name, measured) in designs.iter().filter(|(name, _)| *name != polled) {
        let rounds = |kind: &str| {
            let times = &measured["ms"][kind];
            assert!(times["median"].as_f64().unwrap() > 0.0, "{name}: {kind}");
            times["rounds"].as_u64().unwrap()
        };
        assert_eq!(
            (rounds("push"), rounds("round_trip"), rounds("reconnect")),
            (2, 2, 1),
            "{name}"
        );
    }
    // A worker that fails while nothing is connected is restarted with all others.
    let meanwhile = &designs["Lockstep, 1 worker per node"]["ms"]["failure_meanwhile"];
    assert_eq!(meanwhile["rounds"], 1);
    // Only Lockstep has a barrier.
    let parked = |name: &str| designs[name]["ms"]["parked"]["median"].as_f64().unwrap();
    assert!(parked("Lockstep, 8 workers per node") > 0.0);
    assert!(parked("Valkey's design") == 0.0);
}

#[test]
fn groups_that_fail_together_do_not_affect_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("groups.json");
    let ended = Command::new(env!("CARGO_BIN_EXE_lockstep-scale"))
        .args(["groups", "--groups", "12", "--workers", "3", "--failing", "1,4"])
        .args(["--rounds", "2", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert_succeeded(&ended);
    let results: Value = serde_json::from_str(&fs::read_to_string(&out).unwrap()).unwrap();
    for (measured, restarts) in results["failing"].as_array().unwrap().iter().zip([2, 8]) {
        assert_eq!(measured["known"]["rounds"], restarts);
        assert!(measured["known"]["median"].as_f64().unwrap() > 0.0);
        assert_eq!(measured["others_told"], 0);
    }
}
