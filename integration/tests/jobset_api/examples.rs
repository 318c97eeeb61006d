//! The manifests under examples/: the test applies each as a user would, and it becomes what its
//! comment says.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use lockstep_integration::harness::eventually;

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(every_example_applies_and_begins_as_it_says)]
}

/// Each example and the Jobs with which it begins.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "coordinator",
        &[
            "coordinator-driver-0",
            "coordinator-workers-0",
            "coordinator-workers-1",
        ],
    ),
    ("depends-on", &["depends-on-driver-0"]),
    ("elastic", &["elastic-workers-0"]),
    (
        "exclusive-placement",
        &["exclusive-placement-workers-0", "exclusive-placement-workers-1"],
    ),
    (
        "exclusive-placement-node-selector",
        &[
            "exclusive-node-selector-workers-0",
            "exclusive-node-selector-workers-1",
        ],
    ),
    ("execution-policy", &["execution-policy-prepare-0"]),
    (
        "failure-policy",
        &[
            "failure-policy-driver-0",
            "failure-policy-workers-0",
            "failure-policy-workers-1",
        ],
    ),
    ("gang", &["gang-workers-0", "gang-workers-1"]),
    (
        "groups",
        &[
            "groups-decode-0",
            "groups-decode-1",
            "groups-prefill-0",
            "groups-router-0",
        ],
    ),
    (
        "inplace-timeout",
        &[
            "in-place-restart-example-workers-0",
            "in-place-restart-example-workers-1",
        ],
    ),
    ("managed-by", &[]),
    ("minimal", &["minimal-workers-0"]),
    ("network", &["network-workers-0"]),
    ("quickstart", &["quickstart-workers-0"]),
    (
        "restart-job",
        &[
            "restart-job-workers-0",
            "restart-job-workers-1",
            "restart-job-workers-2",
        ],
    ),
    ("ring-allreduce", &["ring-workers-0"]),
    ("ring-allreduce-recreate", &["ring-recreate-workers-0"]),
    ("startup-policy", &["startup-policy-leader-0"]),
    (
        "success-policy",
        &[
            "success-policy-driver-0",
            "success-policy-workers-0",
            "success-policy-workers-1",
        ],
    ),
    ("suspend", &["suspend-workers-0", "suspend-workers-1"]),
    ("ttl", &["ttl-workers-0"]),
    (
        "volume-claims",
        &["volume-claims-workers-0", "volume-claims-workers-1"],
    ),
];

/// Each folder for kustomize, and its Jobs.
const KUSTOMIZED: &[(&str, &[&str])] = &[
    ("jax-standby", &["jax-standby-workers-0"]),
    ("pytorch-ddp", &["pytorch-ddp-workers-0"]),
    ("pytorch-ddp-recreate", &["pytorch-ddp-recreate-workers-0"]),
    ("pytorch-ddp-standby", &["pytorch-ddp-standby-workers-0"]),
    ("pytorch-ddp-torchrun", &["pytorch-ddp-torchrun-workers-0"]),
    ("pytorch-gpu", &["pytorch-gpu-workers-0"]),
    ("pytorch-gpu-torchrun", &["pytorch-gpu-torchrun-workers-0"]),
];

async fn every_example_applies_and_begins_as_it_says(scene: Scene) -> Result<()> {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples"));
    let files: BTreeSet<String> = std::fs::read_dir(dir)?
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            Some(name.strip_suffix(".yaml")?.to_owned())
        })
        .collect();
    let known: BTreeSet<String> = EXAMPLES.iter().map(|(name, _)| (*name).to_owned()).collect();
    ensure!(files == known, "examples/ has {files:?}");
    let namespace = scene.namespace.name.as_str();
    let dir = dir.to_str().context("a path that is not text")?;
    scene
        .namespace
        .access
        .kubectl(&["--namespace", namespace, "apply", "--filename", dir], "")
        .await?;
    let folders: BTreeSet<String> = std::fs::read_dir(dir)?
        .filter_map(Result::ok)
        .filter(|entry| entry.path().join("kustomization.yaml").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let known: BTreeSet<String> = KUSTOMIZED.iter().map(|(name, _)| (*name).to_owned()).collect();
    ensure!(folders == known, "examples/ has {folders:?}");
    for folder in folders {
        let folder = format!("{dir}/{folder}");
        scene
            .namespace
            .kubectl(&["apply", "--kustomize", &folder])
            .await?;
    }
    let expected: BTreeSet<String> = EXAMPLES
        .iter()
        .chain(KUSTOMIZED)
        .flat_map(|(_, jobs)| jobs.iter().map(|job| (*job).to_owned()))
        .collect();
    eventually("the jobs of all examples", PATIENCE, async || {
        let jobs = scene.jobs().await?;
        let jobs: BTreeSet<String> = jobs.iter().map(ResourceExt::name_any).collect();
        ensure!(
            jobs == expected,
            "missing {:?}, unexpected {:?}",
            expected.difference(&jobs),
            jobs.difference(&expected)
        );
        Ok(())
    })
    .await
}
