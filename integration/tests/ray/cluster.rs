//! RayClusters.

use std::path::Path;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use lockstep_api::ray::{RayCluster, conditions};
use lockstep_api::{JobSet, ReplicatedJob};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::ray::cluster;
use crate::scene::{PATIENCE, Scene};
use crate::webhooks;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(workers_start_after_the_head_and_all_is_shown),
        case!(workers_come_and_go_and_the_head_stays),
        case!(a_suspended_group_has_no_workers_and_all_else_runs_on),
        case!(a_suspended_cluster_has_no_pods_and_starts_anew),
        case!(changes_that_need_a_suspension_wait_for_it),
        case!(a_service_that_changes_is_replaced_between_a_suspension_and_its_end),
        case!(fields_that_are_not_supported_are_named),
        case!(autoscaling_is_refused),
        case!(clusters_of_other_controllers_are_left_alone),
        case!(what_a_cluster_is_made_of_goes_with_it),
        case!(a_cluster_that_cannot_be_read_stops_no_other),
        case!(the_example_applies),
        case!(the_longest_name_runs),
        case!(a_group_with_a_longer_name_makes_no_second_jobset),
        case!(the_webhook_for_jobsets_lets_workers_come_and_go),
        case!(the_webhook_for_jobsets_lets_workers_of_a_gang_come_and_go),
        case!(a_control_plane_that_is_killed_makes_one_jobset alone),
        case!(where_kuberay_runs_clusters_are_left_to_it alone),
    ]
}

/// Creates a cluster and makes its pods run. Returns the UIDs of the head's pod and of the workers'
/// pods.
async fn running(scene: &Scene, workers: usize) -> Result<(Vec<String>, Vec<String>)> {
    scene
        .create_cluster(cluster(i32::try_from(workers)?, json!({})))
        .await?;
    let head = scene.ray_pods_run("head", 1).await?;
    let small = scene.ray_pods_run("worker", workers).await?;
    scene.until_state("ready").await?;
    Ok((head, small))
}

async fn workers_start_after_the_head_and_all_is_shown(scene: Scene) -> Result<()> {
    scene.create_cluster(cluster(2, json!({}))).await?;
    scene
        .until_cluster("the head is not ready yet", |status| {
            status
                .condition(conditions::HEAD_POD_READY)
                .is_some_and(|condition| condition.status == "False")
                && status.head.service_name == "rc-head-svc"
        })
        .await?;
    scene.until_jobs(&["rc-head-0"], 0).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.ray_pods_run("worker", 2).await?;
    let status = scene.until_state("ready").await?;
    ensure!(status.is_true(conditions::PROVISIONED), "{:?}", status.conditions);
    ensure!(
        (status.desired_worker_replicas, status.ready_worker_replicas) == (2, 2),
        "{status:?}"
    );
    ensure!(status.head.pod_ip == "10.1.2.3", "{:?}", status.head);
    let pods = scene.ray_pods("head").await?;
    ensure!(status.head.pod_name == pods[0].name_any(), "{:?}", status.head);
    ensure!(Scene::job_of(&pods[0]) == Some("rc-head-0"));
    let service = scene
        .api::<Service>()
        .get("rc-head-svc")
        .await?
        .spec
        .unwrap_or_default();
    // The name of the Service leads to the pod, whatever the port.
    ensure!(
        service.cluster_ip.as_deref() == Some("None") && status.head.service_ip == "10.1.2.3",
        "{:?} {:?}",
        service.cluster_ip,
        status.head
    );
    for (name, port) in [("gcs-server", "6379"), ("dashboard", "8265"), ("client", "10001")] {
        ensure!(
            status.endpoints.get(name).map(String::as_str) == Some(port),
            "{:?}",
            status.endpoints
        );
    }
    let shown = scene.namespace.kubectl(&["get", "raycluster", "rc"]).await?;
    ensure!(
        shown.contains("DESIRED WORKERS") && shown.contains("ready"),
        "{shown}"
    );
    Ok(())
}

async fn workers_come_and_go_and_the_head_stays(scene: Scene) -> Result<()> {
    let (head, before) = running(&scene, 2).await?;
    for replicas in [4, 1, 0, 2] {
        scene.scale(i32::try_from(replicas)?).await?;
        let workers = scene.ray_pods_run("worker", replicas).await?;
        scene
            .until_cluster(&format!("{replicas} workers"), |status| {
                usize::try_from(status.ready_worker_replicas) == Ok(replicas)
            })
            .await?;
        if replicas == 4 {
            ensure!(
                before.iter().all(|uid| workers.contains(uid)),
                "{before:?} {workers:?}"
            );
        }
    }
    ensure!(
        scene.ray_pods_run("head", 1).await? == head,
        "the head was recreated"
    );
    let jobset = scene.api::<JobSet>().get("rc").await?;
    ensure!(jobset.restart_attempt() == 0, "{:?}", jobset.status);
    Ok(())
}

async fn a_suspended_group_has_no_workers_and_all_else_runs_on(scene: Scene) -> Result<()> {
    let (head, _) = running(&scene, 2).await?;
    for (suspended, workers) in [(true, 0), (false, 2)] {
        let mut cluster = scene.api::<RayCluster>().get("rc").await?;
        cluster.spec.worker_group_specs[0].suspend = Some(suspended);
        let groups = json!({"spec": {"workerGroupSpecs": cluster.spec.worker_group_specs}});
        scene.patch_cluster(groups).await?;
        scene.ray_pods_run("worker", workers).await?;
        let what = format!("{workers} workers are ready");
        let count = i32::try_from(workers)?;
        let status = scene.until_cluster(&what, |status| {
            (status.desired_worker_replicas, status.ready_worker_replicas) == (count, count)
        });
        let status = status.await?;
        ensure!(!status.is_true(conditions::CHANGES_PENDING), "{status:?}");
    }
    ensure!(
        scene.ray_pods_run("head", 1).await? == head,
        "the head was recreated"
    );
    Ok(())
}

async fn a_suspended_cluster_has_no_pods_and_starts_anew(scene: Scene) -> Result<()> {
    let (head, _) = running(&scene, 1).await?;
    scene.patch_cluster(json!({"spec": {"suspend": true}})).await?;
    let status = scene.until_state("suspended").await?;
    ensure!(status.is_true(conditions::SUSPENDED), "{:?}", status.conditions);
    ensure!(scene.ray_pods("head").await?.is_empty() && scene.ray_pods("worker").await?.is_empty());
    scene.patch_cluster(json!({"spec": {"suspend": false}})).await?;
    let again = scene.ray_pods_run("head", 1).await?;
    ensure!(again != head);
    scene.ray_pods_run("worker", 1).await?;
    scene.until_state("ready").await?;
    Ok(())
}

async fn changes_that_need_a_suspension_wait_for_it(scene: Scene) -> Result<()> {
    let (head, _) = running(&scene, 1).await?;
    let params = json!({"spec": {"headGroupSpec": {"rayStartParams": {"num-cpus": "0"}}}});
    scene.patch_cluster(params).await?;
    scene
        .until_cluster("it is said", |status| status.is_true(conditions::CHANGES_PENDING))
        .await?;
    ensure!(scene.ray_pods_run("head", 1).await? == head);
    scene.patch_cluster(json!({"spec": {"suspend": true}})).await?;
    scene.until_state("suspended").await?;
    scene.patch_cluster(json!({"spec": {"suspend": false}})).await?;
    scene.ray_pods_run("head", 1).await?;
    let pods = scene.ray_pods("head").await?;
    let args = pods[0]
        .spec
        .as_ref()
        .and_then(|spec| spec.containers[0].args.clone())
        .unwrap_or_default();
    ensure!(args.join(" ").contains("--num-cpus=0"), "{args:?}");
    Ok(())
}

async fn a_service_that_changes_is_replaced_between_a_suspension_and_its_end(scene: Scene) -> Result<()> {
    service_is_replaced(&scene).await
}

/// Creates a cluster, and changes the request for its Service.
pub(crate) async fn service_is_replaced(scene: &Scene) -> Result<()> {
    running(scene, 0).await?;
    let before = scene.api::<Service>().get("rc-head-svc").await?;
    scene
        .patch_cluster(json!({"spec": {"headServiceAnnotations": {"example.com/a": "b"}}}))
        .await?;
    scene
        .until_cluster("it is said", |status| status.is_true(conditions::CHANGES_PENDING))
        .await?;
    scene.patch_cluster(json!({"spec": {"suspend": true}})).await?;
    scene.until_state("suspended").await?;
    scene.patch_cluster(json!({"spec": {"suspend": false}})).await?;
    scene.ray_pods_run("head", 1).await?;
    let status = scene.until_state("ready").await?;
    let after = scene.api::<Service>().get("rc-head-svc").await?;
    ensure!(
        after.uid() != before.uid() && after.annotations().contains_key("example.com/a"),
        "{after:?}"
    );
    ensure!(!status.is_true(conditions::CHANGES_PENDING), "{status:?}");
    Ok(())
}

async fn fields_that_are_not_supported_are_named(scene: Scene) -> Result<()> {
    let more = json!({"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}});
    scene.create_cluster(cluster(0, more)).await?;
    let named = "spec.gcsFaultToleranceOptions";
    let note = scene
        .until_event_of("RayCluster", conditions::UNSUPPORTED_FIELDS)
        .await?;
    ensure!(note.contains(named), "{note}");
    scene
        .until_cluster("they are named", |status| {
            let condition = status.condition(conditions::UNSUPPORTED_FIELDS);
            condition.is_some_and(|condition| condition.message.contains(named))
        })
        .await?;
    // Unsupported fields are kept unchanged.
    let kept = scene
        .namespace
        .kubectl(&["get", "raycluster", "rc", "--output", "yaml"])
        .await?;
    ensure!(kept.contains("redisAddress"), "{kept}");
    Ok(())
}

async fn autoscaling_is_refused(scene: Scene) -> Result<()> {
    scene
        .create_cluster(cluster(1, json!({"enableInTreeAutoscaling": true})))
        .await?;
    let status = scene.until_state("failed").await?;
    ensure!(
        status.reason.contains("spec.enableInTreeAutoscaling"),
        "{}",
        status.reason
    );
    let note = scene
        .until_event_of("RayCluster", "InvalidRayClusterSpec")
        .await?;
    ensure!(note.contains("spec.enableInTreeAutoscaling"), "{note}");
    ensure!(scene.api::<JobSet>().get_opt("rc").await?.is_none());
    Ok(())
}

async fn clusters_of_other_controllers_are_left_alone(scene: Scene) -> Result<()> {
    let more = json!({"managedBy": "ray.io/kuberay-operator"});
    scene.create_cluster(cluster(1, more)).await?;
    let note = scene.until_event_of("RayCluster", "ManagedByAnother").await?;
    ensure!(note.contains("ray.io/kuberay-operator"), "{note}");
    ensure!(scene.api::<JobSet>().get_opt("rc").await?.is_none());
    ensure!(scene.api::<RayCluster>().get("rc").await?.status.is_none());
    Ok(())
}

async fn what_a_cluster_is_made_of_goes_with_it(scene: Scene) -> Result<()> {
    running(&scene, 1).await?;
    let cluster = scene.api::<RayCluster>().get("rc").await?;
    let owner = cluster.controller_owner_ref(&()).unwrap();
    for owners in [
        scene.api::<JobSet>().get("rc").await?.metadata.owner_references,
        scene
            .api::<Service>()
            .get("rc-head-svc")
            .await?
            .metadata
            .owner_references,
    ] {
        let owners = owners.unwrap_or_default();
        ensure!(
            owners
                .iter()
                .any(|found| found.uid == owner.uid && found.controller == Some(true)),
            "{owners:?}"
        );
    }
    Ok(())
}

async fn a_cluster_that_cannot_be_read_stops_no_other(scene: Scene) -> Result<()> {
    let mut broken = cluster(1, json!({}));
    broken["metadata"]["name"] = json!("broken");
    broken["spec"]["headGroupSpec"]["template"]["spec"]["containers"] = json!("none");
    let create = ["create", "--filename", "-"];
    scene.namespace.kubectl_with(&create, &broken.to_string()).await?;
    let note = scene.until_event_of("RayCluster", "Unreadable").await?;
    let field = "spec.headGroupSpec.template.spec.containers";
    let expected = format!(
        "cannot be read and is left unchanged: {field}: Invalid value: \"none\": must be of type array"
    );
    ensure!(note == expected, "{note}");
    running(&scene, 1).await?;
    Ok(())
}

async fn the_example_applies(scene: Scene) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ray/cluster.yaml");
    let file = file.to_string_lossy();
    scene.namespace.kubectl(&["apply", "--filename", &file]).await?;
    scene.until_jobs(&["ray-head-0"], 0).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.until_jobs(&["ray-head-0", "ray-small-0"], 0).await?;
    Ok(())
}

async fn the_longest_name_runs(scene: Scene) -> Result<()> {
    let mut long = cluster(1, json!({}));
    let name = "c".repeat(53);
    long["metadata"]["name"] = json!(name);
    scene.create_cluster(long).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.ray_pods_run("worker", 1).await?;
    eventually("it is ready", PATIENCE, async || {
        let status = scene
            .api::<RayCluster>()
            .get(&name)
            .await?
            .status
            .unwrap_or_default();
        ensure!(status.is_true(conditions::PROVISIONED), "{status:?}");
        Ok(())
    })
    .await
}

async fn a_group_with_a_longer_name_makes_no_second_jobset(scene: Scene) -> Result<()> {
    let mut long = cluster(1, json!({}));
    let name = "c".repeat(40);
    long["metadata"]["name"] = json!(name);
    scene.create_cluster(long.clone()).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.ray_pods_run("worker", 1).await?;
    // If its JobSet were created now, it would have another name.
    let mut group = long["spec"]["workerGroupSpecs"][0].clone();
    group["groupName"] = json!("of-twenty-characters");
    let mut groups = vec![long["spec"]["workerGroupSpecs"][0].clone(), group];
    groups[0]["replicas"] = json!(2);
    let patch = json!({"spec": {"workerGroupSpecs": groups}});
    scene.merge::<RayCluster>(&name, patch).await?;
    // The controller decides all of this in one step: once it has scaled and reported what waits,
    // any new object would exist.
    scene.ray_pods_run("worker", 2).await?;
    eventually("what waits is said", PATIENCE, async || {
        let found = scene.api::<RayCluster>().get(&name).await?;
        let status = found.status.unwrap_or_default();
        ensure!(status.is_true(conditions::CHANGES_PENDING), "{status:?}");
        Ok(())
    })
    .await?;
    let jobsets = scene.api::<JobSet>().list(&ListParams::default()).await?.items;
    let names: Vec<String> = jobsets.iter().map(ResourceExt::name_any).collect();
    ensure!(names == [name], "{names:?}");
    Ok(())
}

async fn the_webhook_for_jobsets_lets_workers_come_and_go(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    running(&scene, 1).await?;
    for replicas in [3, 0, 1] {
        scene.scale(i32::try_from(replicas)?).await?;
        scene.ray_pods_run("worker", replicas).await?;
    }
    Ok(())
}

async fn the_webhook_for_jobsets_lets_workers_of_a_gang_come_and_go(scene: Scene) -> Result<()> {
    webhooks::enable(&scene).await?;
    scene.create_cluster(cluster(2, json!({"gang": {}}))).await?;
    let jobsets = scene.api::<JobSet>();
    let until_workers = async |workers: i32| {
        eventually(
            &format!("{workers} workers are asked for"),
            PATIENCE,
            async || {
                let jobset = jobsets.get("rc").await?;
                let pods = jobset.replicated_job("small").map(ReplicatedJob::pods);
                ensure!(pods == Some(workers), "{pods:?}");
                Ok(jobset)
            },
        )
        .await
    };
    let gang = until_workers(2).await?.spec.gang.unwrap_or_default();
    ensure!(gang.min_available == Some(3), "no defaults: {gang:?}");
    for replicas in [0, 3, 1] {
        scene.scale(replicas).await?;
        until_workers(replicas).await?;
    }
    Ok(())
}

async fn a_control_plane_that_is_killed_makes_one_jobset(scene: Scene) -> Result<()> {
    scene.create_cluster(cluster(1, json!({}))).await?;
    scene.control_plane().kill().await?;
    scene.control_plane().start().await?;
    scene.ray_pods_run("head", 1).await?;
    scene.control_plane().kill().await?;
    scene.control_plane().start().await?;
    scene.ray_pods_run("worker", 1).await?;
    scene.until_state("ready").await?;
    let jobsets = scene.api::<JobSet>().list(&ListParams::default()).await?.items;
    ensure!(jobsets.len() == 1, "{jobsets:?}");
    Ok(())
}

/// Gives KubeRay's ServiceAccount the rights of KubeRay in the scene's namespace.
pub(super) async fn install_kuberay(scene: &Scene) -> Result<()> {
    let binding = json!({
        "metadata": {"name": "kuberay-operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "kuberay-operator", "namespace": scene.namespace.name}],
    });
    let bindings: Api<RoleBinding> = scene.api();
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    Ok(())
}

async fn where_kuberay_runs_clusters_are_left_to_it(scene: Scene) -> Result<()> {
    let leases: Api<Lease> = scene.api();
    let lease = json!({
        "metadata": {"name": "ray-operator-leader"},
        "spec": {"holderIdentity": "kuberay", "leaseDurationSeconds": 15, "renewTime": format!("{:.6}", Timestamp::now())},
    });
    leases
        .create(&PostParams::default(), &serde_json::from_value(lease)?)
        .await?;
    // A new process, which has no cached answer.
    scene.control_plane().kill().await?;
    scene.control_plane().start().await?;
    // Any user may create a Lease: the holder of this one has no rights to act as KubeRay.
    let mut others = cluster(1, json!({}));
    others["metadata"]["name"] = json!("others");
    scene.create_cluster(others).await?;
    scene.until_jobs(&["others-head-0"], 0).await?;
    install_kuberay(&scene).await?;
    scene.control_plane().kill().await?;
    scene.control_plane().start().await?;
    scene.create_cluster(cluster(1, json!({}))).await?;
    let note = scene.until_event_of("RayCluster", "ManagedByAnother").await?;
    ensure!(note.contains("KubeRay"), "{note}");
    ensure!(scene.api::<JobSet>().get_opt("rc").await?.is_none());
    let mut claimed = cluster(1, json!({"managedBy": "lockstep.dev/ray-controller"}));
    claimed["metadata"]["name"] = json!("claimed");
    scene.create_cluster(claimed).await?;
    scene.until_jobs(&["claimed-head-0", "others-head-0"], 0).await?;
    leases
        .delete("ray-operator-leader", &DeleteParams::default())
        .await?;
    Ok(())
}
