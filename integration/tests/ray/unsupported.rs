//! Features of KubeRay that Lockstep lacks: they are refused by name, or ignored and named.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::ray::conditions::UNSUPPORTED_FIELDS;
use lockstep_api::ray::{RayJob, RayJobDeploymentStatus as Phase};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::admission::{self, ensure_refused};
use crate::fixture::{Case, case};
use crate::job::{clusters, create, until_phase};
use crate::ray::{cluster, raycronjob, rayjob};
use crate::scene::{PATIENCE, Scene};
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(what_is_not_supported_is_refused_by_name_and_rests),
        case!(what_is_ignored_of_a_job_is_named),
        case!(what_contradicts_itself_is_refused_when_it_is_applied),
    ]
}

async fn what_is_not_supported_is_refused_by_name_and_rests(scene: Scene) -> Result<()> {
    let autoscaling = cluster(0, json!({"enableInTreeAutoscaling": true}));
    let refused = [
        (
            "sidecar",
            json!({"submissionMode": "SidecarMode"}),
            "spec.submissionMode: SidecarMode",
        ),
        (
            "interactive",
            json!({"submissionMode": "InteractiveMode"}),
            "spec.submissionMode: InteractiveMode",
        ),
        (
            "selector",
            json!({"clusterSelector": {"ray.io/cluster": "rc"}}),
            "spec.clusterSelector",
        ),
        (
            "autoscaling",
            json!({"rayClusterSpec": autoscaling["spec"]}),
            "spec.rayClusterSpec.enableInTreeAutoscaling",
        ),
    ];
    let jobs = scene.api::<RayJob>();
    let mut versions = Vec::new();
    for (name, more, named) in &refused {
        let mut manifest = rayjob(0, more.clone());
        manifest["metadata"]["name"] = json!(name);
        create(&scene, manifest).await?;
        let version = eventually(&format!("{name} is refused"), PATIENCE, async || {
            let job = jobs.get(name).await?;
            let version = job.resource_version();
            let status = job.status.context("no status yet")?;
            ensure!(
                status.job_deployment_status == Some(Phase::ValidationFailed)
                    && status.reason == "ValidationFailed"
                    && status.message.contains(named),
                "{status:?}"
            );
            ensure!(events_of(&scene, name).await?.len() == 1, "no event yet");
            Ok(version)
        })
        .await?;
        versions.push(version);
    }
    // A valid job runs beside them as usual.
    create(&scene, rayjob(0, json!({}))).await?;
    scene.ray_pods_run("head", 1).await?;
    let made = clusters(&scene).await?;
    ensure!(made.len() == 1 && made[0].starts_with("rj-"), "{made:?}");
    for ((name, _, named), version) in refused.iter().zip(versions) {
        ensure!(
            jobs.get(name).await?.resource_version() == version,
            "{name} was written again"
        );
        let told = events_of(&scene, name).await?;
        let [event] = told.as_slice() else {
            anyhow::bail!("{name}: {told:?}");
        };
        ensure!(
            event.reason.as_deref() == Some("InvalidRayJobSpec")
                && event.series.is_none()
                && event.note.as_ref().is_some_and(|note| note.contains(named)),
            "{event:?}"
        );
        ensure!(scene.api::<Job>().get_opt(name).await?.is_none(), "a submitter");
    }
    Ok(())
}

async fn what_is_ignored_of_a_job_is_named(scene: Scene) -> Result<()> {
    let ignored = json!({
        "authOptions": {"mode": "token"},
        "rayVersion": "2.60.0",
        "networkPolicy": {"mode": "DenyAll"},
        "historyServerOptions": {"collectorOptions": {"image": "collector"}},
    });
    let more = json!({
        "deletionStrategy": {"onSuccess": {"policy": "DeleteSelf"}, "onFailure": {"policy": "DeleteNone"}},
        "submitterConfig": {"backoffLimit": 1, "fromTheFuture": {"a": 1}},
        "rayClusterSpec": cluster(0, ignored)["spec"],
    });
    create(&scene, rayjob(0, more)).await?;
    let named = "not supported, and ignored: spec.deletionStrategy, spec.submitterConfig.fromTheFuture, \
                 spec.rayClusterSpec.authOptions, spec.rayClusterSpec.historyServerOptions, spec.rayClusterSpec.networkPolicy";
    let note = scene.until_event_of("RayJob", UNSUPPORTED_FIELDS).await?;
    ensure!(note == named, "{note}");
    // It runs nonetheless.
    let seen = until_phase(&scene, Phase::Initializing).await?;
    let shown = seen
        .conditions
        .iter()
        .find(|condition| condition.type_ == UNSUPPORTED_FIELDS);
    ensure!(
        shown.is_some_and(|condition| condition.message == named),
        "{seen:?}"
    );
    scene.ray_pods_run("head", 1).await?;
    Ok(())
}

async fn what_contradicts_itself_is_refused_when_it_is_applied(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    let group = |more: Value| {
        let mut spec = cluster(1, json!({}))["spec"].take();
        for (field, value) in more.as_object().into_iter().flatten() {
            spec["workerGroupSpecs"][0][field] = value.clone();
        }
        spec
    };
    let of_group = |more: Value| cluster(1, json!({"workerGroupSpecs": group(more)["workerGroupSpecs"]}));
    let redis = json!({"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}});
    let mut annotated = cluster(0, redis);
    annotated["metadata"]["annotations"] = json!({"ray.io/ft-enabled": "true"});
    let rules = json!([{"policy": "DeleteCluster", "condition": {"jobStatus": "FAILED", "ttlSeconds": 5}}]);
    for (manifest, expected) in [
        (
            annotated,
            "ray.io/ft-enabled annotation and GcsFaultToleranceOptions are both set",
        ),
        (
            cluster(0, json!({"authOptions": {"mode": "token"}})),
            "authOptions.mode is 'token' but RayVersion was not specified",
        ),
        (
            of_group(json!({"idleTimeoutSeconds": 60})),
            "worker group small: idleTimeoutSeconds is set, but autoscaler v2 is not enabled",
        ),
        (
            of_group(json!({"priority": 2})),
            "worker group small: priority is set to 2",
        ),
        (
            of_group(json!({"minReplicas": 3, "maxReplicas": 2})),
            "has minReplicas 3 greater than maxReplicas 2",
        ),
        (
            rayjob(
                0,
                json!({"deletionStrategy": {"deletionRules": rules}, "shutdownAfterJobFinishes": true}),
            ),
            "spec.shutdownAfterJobFinishes and spec.deletionStrategy.deletionRules are mutually exclusive",
        ),
        (
            rayjob(0, json!({"ttlSecondsAfterFinished": 5})),
            "a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished",
        ),
        (
            rayjob(
                0,
                json!({"clusterSelector": {"ray.io/cluster": "rc"}, "backoffLimit": 1}),
            ),
            "BackoffLimit is incompatible with ClusterSelector mode",
        ),
        (
            raycronjob("@daily", &rayjob(0, json!({"deletionStrategy": {}})), json!({})),
            "spec.jobTemplate.deletionStrategy: DeletionStrategy requires either BOTH onSuccess and onFailure",
        ),
    ] {
        let kind = manifest["kind"].as_str().context("no kind")?.to_owned();
        ensure_refused(admission::create(&scene, manifest).await, &kind, expected)?;
    }
    // A cluster that sets each feature only once is accepted, and the fields are named.
    let once = json!({"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}, "authOptions": {"mode": "disabled"}});
    admission::create(&scene, cluster(0, once)).await?;
    let note = scene.until_event_of("RayCluster", UNSUPPORTED_FIELDS).await?;
    ensure!(
        note.contains("spec.authOptions") && note.contains("spec.gcsFaultToleranceOptions"),
        "{note}"
    );
    Ok(())
}

/// The events about a RayJob.
async fn events_of(scene: &Scene, name: &str) -> Result<Vec<Event>> {
    let events = scene.api::<Event>().list(&ListParams::default()).await?.items;
    let of_job = |event: &Event| {
        let regarding = event.regarding.as_ref();
        regarding.is_some_and(|object| {
            object.kind.as_deref() == Some("RayJob") && object.name.as_deref() == Some(name)
        })
    };
    Ok(events.into_iter().filter(of_job).collect())
}
