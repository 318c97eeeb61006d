//! Manifests of typical shapes of KubeRay's users, unchanged: they pass the webhooks and the
//! definitions' defaults, and become JobSets.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayCronJob, RayJob, RayJobDeploymentStatus as Phase, conditions, keys};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::job::{head_runs, ray_says, submits, until_phase};
use crate::scene::{PATIENCE, Scene};
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(each_shape_becomes_a_jobset),
        case!(what_is_not_stated_is_added),
        case!(a_job_whose_submitter_says_what_to_run_gets_it),
        case!(a_queued_job_waits_and_a_cron_job_is_taken),
    ]
}

/// A shape and the resulting JobSet.
struct Shape {
    file: &'static str,
    /// `RayCluster` or `RayJob`, and its name.
    object: (&'static str, &'static str),
    /// The replicatedJobs with their numbers of pods.
    parts: &'static [(&'static str, i32)],
    /// Texts that the JobSet contains somewhere.
    says: &'static [&'static str],
}

const SHAPES: [Shape; 8] = [
    Shape {
        file: "complete",
        object: ("RayCluster", "complete"),
        parts: &[("head", 1), ("cpu-group", 2)],
        says: &[
            "ray start --head",
            "--dashboard-host=0.0.0.0",
            "\"ray.io/group\":\"CPU-group\"",
            "/dev/shm",
        ],
    },
    Shape {
        file: "head-command",
        object: ("RayCluster", "head-command"),
        parts: &[("head", 1)],
        says: &["echo before ray && ", "/scripts/wait.sh"],
    },
    Shape {
        file: "overwrite-command",
        object: ("RayCluster", "overwrite-command"),
        parts: &[("head", 1), ("small", 1)],
        says: &[
            "echo the head; $KUBERAY_GEN_RAY_START_CMD",
            "\"name\":\"KUBERAY_GEN_RAY_START_CMD\"",
        ],
    },
    Shape {
        file: "multi-host",
        object: ("RayCluster", "multi-host"),
        parts: &[("head", 1), ("slices", 8)],
        says: &["google.com/tpu", "--memory=16000000000", "2x2x4"],
    },
    Shape {
        file: "sidecar",
        object: ("RayCluster", "sidecar"),
        parts: &[("head", 1)],
        says: &[
            "fluent-bit.conf",
            "metadata.labels['ray.io/cluster']",
            "\"lockstep.dev/supervise\":\"ray-head\"",
        ],
    },
    Shape {
        file: "labels",
        object: ("RayCluster", "labels"),
        parts: &[("head", 1), ("large", 1), ("none-yet", 0), ("at-rest", 0)],
        says: &["--num-cpus=0", "--num-gpus=1", "ray.io/market-type", "cpu-family"],
    },
    Shape {
        file: "job-resources",
        object: ("RayJob", "resources"),
        parts: &[("head", 1), ("small", 1)],
        says: &["--num-cpus=3", "--num-gpus=2"],
    },
    Shape {
        file: "job-shutdown",
        object: ("RayJob", "shutdown"),
        parts: &[("head", 1)],
        says: &["\"ray.io/node-type\":\"head\""],
    },
];

async fn apply(scene: &Scene, file: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ray/samples/{file}.yaml"));
    let path = path.to_string_lossy();
    scene
        .namespace
        .kubectl(&["apply", "--filename", &path])
        .await
        .map(drop)
}

async fn each_shape_becomes_a_jobset(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    for shape in &SHAPES {
        apply(&scene, shape.file).await?;
    }
    for shape in &SHAPES {
        becomes(&scene, shape).await.context(shape.file)?;
    }
    // Nothing in it is ignored or refused.
    let events = scene.api::<Event>().list(&ListParams::default()).await?.items;
    let complaints: Vec<_> = events
        .iter()
        .filter(|event| {
            let reason = event.reason.as_deref().unwrap_or_default();
            reason == conditions::UNSUPPORTED_FIELDS || reason.starts_with("Invalid")
        })
        .map(|event| &event.note)
        .collect();
    ensure!(complaints.is_empty(), "{complaints:?}");
    Ok(())
}

async fn becomes(scene: &Scene, shape: &Shape) -> Result<()> {
    let (kind, name) = shape.object;
    let cluster = match kind {
        "RayJob" => {
            eventually("the job's cluster", PATIENCE, async || {
                let job = scene.api::<RayJob>().get(name).await?;
                let status = job.status.context("no status yet")?;
                ensure!(!status.ray_cluster_name.is_empty(), "{status:?}");
                Ok(status.ray_cluster_name)
            })
            .await?
        }
        _ => name.to_owned(),
    };
    let of_cluster = ListParams::default().labels(&format!("{}={cluster}", keys::CLUSTER));
    let jobset = eventually("a JobSet", PATIENCE, async || {
        let mut found = scene.api::<JobSet>().list(&of_cluster).await?.items;
        let jobset = found.pop().context("none yet")?;
        ensure!(found.is_empty(), "more than one");
        Ok(jobset)
    })
    .await?;
    let parts: Vec<(&str, i32)> = jobset
        .spec
        .replicated_jobs
        .iter()
        .map(|job| (job.name.as_str(), job.pods()))
        .collect();
    ensure!(parts == shape.parts, "{parts:?}");
    let text = serde_json::to_string(&jobset)?;
    for said in shape.says {
        let escaped = serde_json::to_string(said)?;
        ensure!(
            text.contains(said) || text.contains(escaped.trim_matches('"')),
            "no {said}: {text}"
        );
    }
    let cluster = scene.api::<RayCluster>().get(&cluster).await?;
    let status = cluster.status.unwrap_or_default();
    ensure!(!status.is_true(conditions::UNSUPPORTED_FIELDS), "{status:?}");
    Ok(())
}

async fn what_is_not_stated_is_added(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    apply(&scene, "labels").await?;
    let cluster = scene.api::<RayCluster>().get("labels").await?;
    let large = &cluster.spec.worker_group_specs[0];
    ensure!(
        (large.min_replicas, large.max_replicas, large.num_of_hosts) == (Some(0), Some(i32::MAX), Some(1)),
        "{large:?}"
    );
    let status = scene
        .namespace
        .kubectl(&[
            "wait",
            "raycluster/labels",
            "--for=jsonpath={.status.desiredWorkerReplicas}=1",
            "--timeout=60s",
        ])
        .await?;
    ensure!(status.contains("condition met"), "{status}");
    Ok(())
}

async fn a_job_whose_submitter_says_what_to_run_gets_it(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    apply(&scene, "job-own-submitter").await?;
    head_runs(&scene, "s0").await?;
    let seen = submits(&scene).await?;
    let job = scene.api::<Job>().get("rj").await?;
    let pod = job.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
    let [container] = pod.containers.as_slice() else {
        bail!("{:?}", pod.containers);
    };
    let stated = [
        "--runtime-env-json",
        "{\"pip\": [\"requests==2.26.0\"]}",
        "--",
        "python",
    ];
    ensure!(
        container.command.as_deref() == Some(&["/submitter".to_owned()])
            && container.args.as_deref().is_some_and(|args| args[..4] == stated),
        "{container:?}"
    );
    let variable = |name: &str| {
        let found = container
            .env
            .iter()
            .flatten()
            .find(|variable| variable.name == name);
        found
            .and_then(|variable| variable.value.clone())
            .unwrap_or_default()
    };
    ensure!(
        variable("RAY_JOB_SUBMISSION_ID") == seen.job_id
            && variable("RAY_DASHBOARD_ADDRESS") == seen.dashboard_url,
        "{container:?}"
    );
    ray_says(&seen, "SUCCEEDED");
    until_phase(&scene, Phase::Complete).await?;
    Ok(())
}

async fn a_queued_job_waits_and_a_cron_job_is_taken(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    apply(&scene, "job-queued").await?;
    apply(&scene, "cronjob").await?;
    let phase = async |phase: Phase| {
        eventually(&format!("the job is {phase}"), PATIENCE, async || {
            let job = scene.api::<RayJob>().get("queued").await?;
            let status = job.status.context("no status yet")?;
            ensure!(status.job_deployment_status == Some(phase.clone()), "{status:?}");
            Ok(status)
        })
        .await
    };
    phase(Phase::Suspended).await?;
    // As a queue does.
    let goes: Value = json!({"spec": {"suspend": false}});
    scene.merge::<RayJob>("queued", goes).await?;
    phase(Phase::Initializing).await?;
    let cron = eventually("the RayCronJob is looked at", PATIENCE, async || {
        let cron = scene.api::<RayCronJob>().get("evening").await?;
        let status = cron.status.context("no status yet")?;
        ensure!(
            cron.metadata.generation == Some(status.observed_generation),
            "{status:?}"
        );
        Ok(status)
    })
    .await?;
    ensure!(cron.conditions.is_empty(), "{cron:?}");
    Ok(())
}
