//! The webhooks of Ray's resources.

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::ApiResource;
use kube::{Api, ResourceExt};
use lockstep_api::ray::{RayCluster, RayCronJob, RayJob};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::cluster::install_kuberay;
use crate::fixture::{Case, case};
use crate::ray::{cluster, raycronjob, rayjob};
use crate::scene::{PATIENCE, Scene};
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(what_can_never_run_is_refused_with_its_reason),
        case!(what_can_run_passes),
        case!(an_update_is_refused_for_what_it_makes_wrong),
        case!(what_is_there_already_can_be_changed_and_deleted),
        case!(what_others_look_after_passes),
        case!(what_kuberay_looks_after_passes alone),
    ]
}

fn named(mut manifest: Value, length: usize) -> Value {
    manifest["metadata"]["name"] = json!("n".repeat(length));
    manifest
}

/// A list of `number` elements, and another of as many aliases of it: a few bytes for each element
/// stand for the square of their number.
fn aliases(number: usize) -> String {
    let list = |element: &str| vec![element; number].join(",");
    format!("a: &a [{}]\nb: [{}]\n", list("1"), list("*a"))
}

/// Creates the object unchanged, including fields that our types do not know.
pub(crate) async fn create(scene: &Scene, manifest: Value) -> Result<DynamicObject> {
    let resource = match manifest["kind"].as_str() {
        Some("RayCluster") => ApiResource::erase::<RayCluster>(&()),
        Some("RayJob") => ApiResource::erase::<RayJob>(&()),
        Some("RayCronJob") => ApiResource::erase::<RayCronJob>(&()),
        kind => bail!("no kind of Ray: {kind:?}"),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(scene.client(), &scene.namespace.name, &resource);
    let object = serde_json::from_value(manifest)?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

/// Checks that the webhook of a kind refused it, in the form of the API server's own refusals.
pub(crate) fn ensure_refused<T>(result: Result<T>, kind: &str, expected: &str) -> Result<()> {
    let error = result
        .err()
        .with_context(|| format!("it was taken: {expected}"))?;
    let Some(kube::Error::Api(status)) = error.downcast_ref() else {
        bail!("{error:#}");
    };
    let path = format!("validate-ray-io-v1-{}.lockstep.dev", kind.to_lowercase());
    let beginning = format!("admission webhook \"{path}\" denied the request: {kind}.ray.io \"");
    ensure!(
        (status.code, status.reason.as_str()) == (422, "Invalid"),
        "{status:?}"
    );
    ensure!(
        status.message.starts_with(&beginning) && status.message.contains(expected),
        "{} does not say {expected}",
        status.message
    );
    Ok(())
}

async fn what_can_never_run_is_refused_with_its_reason(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    for (manifest, expected) in [
        (
            named(cluster(1, json!({})), 54),
            "RayCluster name should be no more than 53 characters",
        ),
        (
            cluster(1, json!({"enableInTreeAutoscaling": true})),
            "spec.enableInTreeAutoscaling: is not supported",
        ),
        (
            cluster(
                1,
                json!({"headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": []}}}}),
            ),
            "headGroupSpec should have at least one container",
        ),
        (
            named(rayjob(1, json!({})), 48),
            "RayJob name should be no more than 47 characters",
        ),
        (
            rayjob(1, json!({"submissionMode": "SidecarMode"})),
            "spec.submissionMode: SidecarMode is not supported",
        ),
        (
            rayjob(1, json!({"backoffLimit": -1})),
            "backoffLimit must be a positive integer",
        ),
        (
            rayjob(1, json!({"runtimeEnvYAML": "pip: [ray"})),
            "spec.runtimeEnvYAML: ",
        ),
        (
            rayjob(1, json!({"runtimeEnvYAML": aliases(20_000)})),
            "spec.runtimeEnvYAML: failed to unmarshal RuntimeEnvYAML: a: &a [1,1,",
        ),
        (
            rayjob(1, json!({"runtimeEnvYAML": aliases(1_000)})),
            "anchors and aliases are not supported",
        ),
        (
            rayjob(1, json!({"activeDeadlineSeconds": 0})),
            "activeDeadlineSeconds must be a positive integer",
        ),
        (
            rayjob(1, json!({"suspend": true})),
            "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended",
        ),
        (
            rayjob(1, json!({"rayClusterSpec": cluster(-1, json!({}))["spec"]})),
            "spec.rayClusterSpec.workerGroupSpecs[0].replicas",
        ),
        (
            named(raycronjob("@daily", &rayjob(1, json!({})), json!({})), 37),
            "RayCronJob name should be no more than 36 characters",
        ),
        (
            raycronjob("every day", &rayjob(1, json!({})), json!({})),
            "spec.schedule: invalid cron schedule",
        ),
        (
            raycronjob("TZ=UTC 0 0 * * *", &rayjob(1, json!({})), json!({})),
            "cannot use TZ or CRON_TZ in schedule",
        ),
        (
            raycronjob(
                "@daily",
                &rayjob(1, json!({"submissionMode": "InteractiveMode"})),
                json!({}),
            ),
            "spec.jobTemplate.submissionMode: InteractiveMode is not supported",
        ),
    ] {
        let kind = manifest["kind"].as_str().context("no kind")?.to_owned();
        ensure_refused(create(&scene, manifest).await, &kind, expected)?;
    }
    Ok(())
}

async fn what_can_run_passes(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    create(&scene, named(cluster(1, json!({})), 53)).await?;
    create(&scene, named(rayjob(1, json!({})), 47)).await?;
    create(
        &scene,
        named(raycronjob("@yearly", &rayjob(1, json!({})), json!({})), 36),
    )
    .await?;
    let mut generated = rayjob(1, json!({}));
    generated["metadata"] = json!({"generateName": "rj-"});
    let generated = create(&scene, generated).await?;
    // The webhook also accepts the control plane's own writes: the cluster of the job.
    eventually("the job's cluster", PATIENCE, async || {
        let job = scene.api::<RayJob>().get(&generated.name_any()).await?;
        let name = job.status.context("no status yet")?.ray_cluster_name;
        scene.api::<RayCluster>().get(&name).await?;
        Ok(())
    })
    .await
}

async fn an_update_is_refused_for_what_it_makes_wrong(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    create(
        &scene,
        cluster(1, json!({"managedBy": "lockstep.dev/ray-controller"})),
    )
    .await?;
    let wrong = json!({"spec": {"enableInTreeAutoscaling": true}});
    let refused = scene.merge::<RayCluster>("rc", wrong).await;
    ensure_refused(refused, "RayCluster", "spec.enableInTreeAutoscaling")?;
    scene
        .merge::<RayCluster>("rc", json!({"spec": {"suspend": true}}))
        .await?;
    // The definition of RayClusters forbids another value, but cannot forbid the removal.
    let refused = scene
        .merge::<RayCluster>("rc", json!({"spec": {"managedBy": null}}))
        .await;
    ensure_refused(
        refused,
        "RayCluster",
        "spec.managedBy: the managedBy field is immutable",
    )?;

    create(&scene, rayjob(1, json!({}))).await?;
    let refused = scene
        .merge::<RayJob>("rj", json!({"spec": {"runtimeEnvYAML": "- a"}}))
        .await;
    ensure_refused(refused, "RayJob", "spec.runtimeEnvYAML")?;
    scene
        .merge::<RayJob>("rj", json!({"spec": {"runtimeEnvYAML": "pip: [numpy]"}}))
        .await?;

    create(&scene, raycronjob("@daily", &rayjob(1, json!({})), json!({}))).await?;
    let refused = scene
        .merge::<RayCronJob>("cj", json!({"spec": {"timeZone": "Mars/Phobos"}}))
        .await;
    ensure_refused(refused, "RayCronJob", "spec.timeZone: invalid time zone")?;
    scene
        .merge::<RayCronJob>("cj", json!({"spec": {"timeZone": "Asia/Tokyo"}}))
        .await?;
    Ok(())
}

/// Objects that are older than the webhooks.
async fn what_is_there_already_can_be_changed_and_deleted(scene: Scene) -> Result<()> {
    create(&scene, cluster(1, json!({"enableInTreeAutoscaling": true}))).await?;
    create(&scene, rayjob(1, json!({"submissionMode": "SidecarMode"}))).await?;
    webhooks::enable(&scene).await?;
    scene.until_state("failed").await?;
    // A change is accepted whatever was wrong before.
    scene
        .merge::<RayCluster>("rc", json!({"spec": {"suspend": true}}))
        .await?;
    scene.until_state("suspended").await?;
    let wrong =
        json!({"spec": {"suspend": false, "workerGroupSpecs": []}, "metadata": {"labels": {"a": "b"}}});
    scene.merge::<RayCluster>("rc", wrong).await?;
    let more = json!({"spec": {"headGroupSpec": {"template": {"spec": {"containers": []}}}}});
    let refused = scene.merge::<RayCluster>("rc", more).await;
    ensure_refused(
        refused,
        "RayCluster",
        "headGroupSpec should have at least one container",
    )?;

    eventually("the job is refused in its status", PATIENCE, async || {
        let job = scene.api::<RayJob>().get("rj").await?;
        let status = job.status.context("no status yet")?;
        ensure!(status.reason == "ValidationFailed", "{status:?}");
        Ok(())
    })
    .await?;
    scene
        .api::<RayCluster>()
        .delete("rc", &DeleteParams::default())
        .await?;
    scene
        .api::<RayJob>()
        .delete("rj", &DeleteParams::default())
        .await?;
    // An update removes its finalizer.
    eventually("both are gone", PATIENCE, async || {
        let cluster = scene.api::<RayCluster>().get_opt("rc").await?;
        let job = scene.api::<RayJob>().get_opt("rj").await?;
        ensure!(cluster.is_none() && job.is_none());
        Ok(())
    })
    .await
}

async fn what_others_look_after_passes(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    let other = json!({"managedBy": "kueue.x-k8s.io/multikueue", "submissionMode": "SidecarMode"});
    create(&scene, rayjob(1, other)).await?;
    scene
        .merge::<RayJob>("rj", json!({"spec": {"backoffLimit": -1}}))
        .await?;
    let other = json!({"managedBy": "ray.io/kuberay-operator", "enableInTreeAutoscaling": true});
    create(&scene, cluster(1, other)).await?;
    Ok(())
}

/// An object without a controller belongs to KubeRay while its controller runs.
async fn what_kuberay_looks_after_passes(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    let lease = json!({
        "metadata": {"name": "ray-operator-leader"},
        "spec": {"holderIdentity": "kuberay", "renewTime": format!("{:.6}", Timestamp::now())},
    });
    let leases: Api<Lease> = scene.api();
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    install_kuberay(&scene).await?;
    // A new process, which has no cached answer.
    let again = async || {
        scene.control_plane().kill().await?;
        scene.control_plane().start().await?;
        scene.control_plane().until_ready().await
    };
    again().await?;
    create(&scene, rayjob(1, json!({"submissionMode": "SidecarMode"}))).await?;
    let claimed = json!({"managedBy": "lockstep.dev/ray-controller", "enableInTreeAutoscaling": true});
    let refused = create(&scene, cluster(1, claimed)).await;
    ensure_refused(refused, "RayCluster", "spec.enableInTreeAutoscaling")?;
    leases
        .delete("ray-operator-leader", &DeleteParams::default())
        .await?;
    again().await
}
