//! Lost pods of JobSets that restart in place. The test plays the kubelet and, if needed, the
//! scheduler; the Job controller is real.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use lockstep_api::{annotations, labels, naming};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::placement::{RACK, bind, node, pods_of, until_pods};
use crate::scene::{PATIENCE, REFUSED, Scene, jobset, replicated_job};
use crate::webhooks::setup;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(lost_pods_are_replaced_within_seconds_and_the_job_controller_counts_right alone),
        case!(whenever_the_control_plane_is_killed_a_lost_pod_is_replaced_once alone),
        case!(a_control_plane_that_has_not_seen_the_pod_replaces_it_all_the_same alone),
        case!(told_not_to_it_leaves_lost_pods_to_the_job_controller alone),
        case!(told_not_to_it_makes_the_jobs_anew_where_the_job_controller_would_be_late alone),
        case!(where_a_quota_refuses_the_pod_an_event_says_so_and_it_comes_later alone),
        case!(a_worker_that_no_daemon_reports_is_named_until_it_is_over alone),
        case!(a_lost_leader_of_an_exclusive_domain_takes_its_followers_along alone),
    ]
}

/// How long a replacement may take. The Job controller by itself takes 10 s for the first, and
/// longer for each after that.
const SOON: Duration = Duration::from_secs(9);
const WORKERS: usize = 4;
const JOB: &str = "js-a-0";

/// A JobSet of one Job that restarts in place.
pub(crate) fn in_place() -> Value {
    let mut job = replicated_job("a", 1);
    let spec = &mut job["template"]["spec"];
    spec["parallelism"] = json!(WORKERS);
    spec["completions"] = json!(WORKERS);
    spec["backoffLimit"] = json!(i32::MAX);
    spec["template"]["spec"]["subdomain"] = json!("js");
    jobset(
        json!({"failurePolicy": {"maxRestarts": 9, "restartStrategy": "InPlaceRestart"}, "replicatedJobs": [job]}),
    )
}

/// Runs `body` with a control plane that coordinates groups, and then starts the usual one again.
pub(crate) async fn with_groups(
    scene: &Scene,
    flags: &[&str],
    body: impl Future<Output = Result<()>>,
) -> Result<()> {
    let control_plane = scene.control_plane();
    control_plane.stop().await?;
    start(scene, flags).await?;
    let result = body.await;
    control_plane.kill().await?;
    control_plane.start().await?;
    result
}

/// Starts the control plane as one that coordinates groups. No node daemon ever connects.
pub(crate) async fn start(scene: &Scene, flags: &[&str]) -> Result<()> {
    let dir = scene.control_plane().dir();
    let tls = dir.join("hub-tls");
    let tls = tls.to_string_lossy();
    let mut all = vec!["--hub-bind-address", "127.0.0.1:0", "--hub-tls-dir", &tls];
    all.extend(flags);
    scene.control_plane().start_with(&all).await?;
    scene.control_plane().until_ready().await
}

fn index(pod: &Pod) -> usize {
    pod.annotations()[labels::BATCH_JOB_COMPLETION_INDEX]
        .parse()
        .unwrap()
}

fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn is_live(pod: &Pod) -> bool {
    !["Failed", "Succeeded"].contains(&phase(pod))
}

/// The name of the pod that takes the place of this one.
fn next_name(pod: &Pod) -> String {
    let index = u32::try_from(index(pod)).unwrap();
    naming::replacement_pod_name(JOB, index, &pod.uid().unwrap_or_default())
}

pub(crate) async fn running(scene: &Scene) -> Result<Vec<Pod>> {
    scene.create(in_place()).await?;
    until_pods(scene, JOB, WORKERS).await?;
    scene.pods_become(JOB, "Running").await?;
    until_job(scene, |status| status.ready == Some(4)).await?;
    sorted(pods_of(scene, JOB).await?)
}

fn sorted(mut pods: Vec<Pod>) -> Result<Vec<Pod>> {
    pods.sort_by_key(index);
    Ok(pods)
}

/// Plays the kubelet: the pod's container has just been killed.
async fn fail(scene: &Scene, pod: &Pod) -> Result<()> {
    let now = jiff::Timestamp::now().to_string();
    let status = json!({"status": {
        "phase": "Failed",
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
        "containerStatuses": [{
            "name": "worker", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137, "finishedAt": now}},
        }],
    }});
    scene
        .api::<Pod>()
        .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn become_running(scene: &Scene, pod: &Pod) -> Result<()> {
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    scene
        .api::<Pod>()
        .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// Waits for the pod that takes the place of `lost`: exactly one, with the expected name.
async fn until_replaced(scene: &Scene, lost: &Pod, within: Duration) -> Result<Pod> {
    let (index, name) = (index(lost), next_name(lost));
    eventually(&format!("{} is replaced", lost.name_any()), within, async || {
        let pods = pods_of(scene, JOB).await?;
        let mut there: Vec<Pod> = pods
            .into_iter()
            .filter(|pod| self::index(pod) == index && is_live(pod))
            .collect();
        let names: Vec<String> = there.iter().map(ResourceExt::name_any).collect();
        ensure!(names == [name.clone()], "{names:?} and not {name}");
        there.pop().context("no pod")
    })
    .await
}

/// Waits for exactly one pod in place of `lost`, with any name: if the machine stalls for 10 s, the
/// Job controller's own pod comes first.
async fn until_one_lives(scene: &Scene, lost: &Pod) -> Result<()> {
    eventually(
        &format!("{} is replaced", lost.name_any()),
        PATIENCE,
        async || {
            let pods = pods_of(scene, JOB).await?;
            let there = pods
                .iter()
                .filter(|pod| index(pod) == index(lost) && is_live(pod))
                .count();
            ensure!(there == 1, "{there} live");
            Ok(())
        },
    )
    .await
}

async fn until_job(scene: &Scene, expected: impl Fn(&JobStatus) -> bool) -> Result<JobStatus> {
    eventually("the Job's counts", PATIENCE, async || {
        let job: Job = scene.api().get(JOB).await?;
        let status = job.status.unwrap_or_default();
        ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
        Ok(status)
    })
    .await
}

/// The part of a pod that must be as the Job controller makes it: everything except what is unique
/// to one pod.
fn comparable(pod: &Pod) -> Result<Value> {
    let mut pod = serde_json::to_value(pod)?;
    let meta = pod["metadata"].as_object_mut().context("no metadata")?;
    for own in [
        "name",
        "generateName",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "managedFields",
    ] {
        meta.remove(own);
    }
    pod.as_object_mut().context("no object")?.remove("status");
    // The volume of the ServiceAccount's token has a random name.
    let mut text = pod.to_string();
    if let Some(at) = text.find("kube-api-access-") {
        let name = text[at..].split('"').next().unwrap_or_default().to_owned();
        text = text.replace(&name, "kube-api-access");
    }
    Ok(serde_json::from_str(&text)?)
}

/// Waits for an event about the JobSet with this reason; returns its note.
async fn until_event(scene: &Scene, reason: &str) -> Result<String> {
    eventually(&format!("an event {reason}"), PATIENCE, async || {
        let events = scene.api::<Event>().list(&ListParams::default()).await?.items;
        let event = events
            .into_iter()
            .find(|event| event.reason.as_deref() == Some(reason));
        event.and_then(|event| event.note).context("no such event")
    })
    .await
}

async fn lost_pods_are_replaced_within_seconds_and_the_job_controller_counts_right(
    scene: Scene,
) -> Result<()> {
    let body = Box::pin(async {
        let first = running(&scene).await?;
        for (round, pod) in first.iter().enumerate() {
            if round >= 2 {
                // Deleted as by kubectl, the pod ends as failed, and the Job controller removes its
                // finalizer.
                scene
                    .api::<Pod>()
                    .delete(&pod.name_any(), &DeleteParams::default())
                    .await?;
            }
            let start = Instant::now();
            fail(&scene, pod).await?;
            let next = until_replaced(&scene, pod, SOON).await?;
            println!(
                "pod {round} was replaced after {} ms",
                start.elapsed().as_millis()
            );
            let (expected, made) = (comparable(pod)?, comparable(&next)?);
            if round < 2 {
                ensure!(
                    made == expected,
                    "{made}\nis not what the Job controller makes:\n{expected}"
                );
            }
            become_running(&scene, &next).await?;
            let failed = i32::try_from(round)? + 1;
            until_job(&scene, |status| {
                (status.active, status.ready, status.failed) == (Some(4), Some(4), Some(failed))
            })
            .await?;
        }
        let note = until_event(&scene, "ReplacedPod").await?;
        ensure!(note.contains(JOB), "{note}");
        let metrics = scene.control_plane().metrics().await?;
        ensure!(
            metrics.contains("lockstep_replacement_pods_total{result=\"created\"} 4"),
            "{metrics}"
        );
        for pod in pods_of(&scene, JOB).await?.iter().filter(|pod| is_live(pod)) {
            let done = json!({"status": {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]}});
            scene
                .api::<Pod>()
                .patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(done))
                .await?;
        }
        scene
            .until_condition("Completed", "True", "AllJobsCompleted")
            .await?;
        let status = until_job(&scene, |status| status.completion_time.is_some()).await?;
        ensure!(
            (status.succeeded, status.failed) == (Some(4), Some(4)),
            "{status:?}"
        );
        Ok(())
    });
    with_groups(&scene, &[], body).await
}

async fn whenever_the_control_plane_is_killed_a_lost_pod_is_replaced_once(first: Scene) -> Result<()> {
    let body = Box::pin(async {
        for millis in [0, 3, 6, 10, 15, 20, 30, 50] {
            let scene = first.another().await?;
            let pods = running(&scene).await?;
            fail(&scene, &pods[0]).await?;
            // This waits for nothing: it hits a different moment each time.
            tokio::time::sleep(Duration::from_millis(millis)).await;
            scene.control_plane().kill().await?;
            start(&scene, &[]).await?;
            until_one_lives(&scene, &pods[0]).await?;
            // Once the next lost pod is replaced, the leader has seen the first again.
            fail(&scene, &pods[1]).await?;
            until_one_lives(&scene, &pods[1]).await?;
            let pods = pods_of(&scene, JOB).await?.len();
            ensure!(pods == WORKERS + 2, "killed after {millis} ms: {pods} pods");
            until_job(&scene, |status| {
                (status.active, status.failed) == (Some(4), Some(2))
            })
            .await?;
            scene.namespace.delete().await?;
        }
        Ok(())
    });
    with_groups(&first, &[], body).await
}

/// Writes to the status that all workers have run, as the group's coordinator does once it knows
/// from the node daemons.
async fn all_have_run(scene: &Scene) -> Result<()> {
    let status =
        json!({"status": {"inPlaceRestart": {"kind": "Supervised", "phase": "InSync", "started": ["a"]}}});
    let api = scene.api::<lockstep_api::JobSet>();
    api.patch_status("js", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// Ends a pod, and deletes it for good.
async fn lose(scene: &Scene, pod: &Pod) -> Result<()> {
    let api = scene.api::<Pod>();
    fail(scene, pod).await?;
    api.delete(&pod.name_any(), &DeleteParams::default()).await?;
    eventually("the pod is gone", PATIENCE, async || {
        let found = api.get_opt(&pod.name_any()).await?;
        ensure!(
            found.is_none_or(|found| found.meta().uid != pod.meta().uid),
            "it is not"
        );
        Ok(())
    })
    .await
}

async fn a_control_plane_that_has_not_seen_the_pod_replaces_it_all_the_same(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        let pods = running(&scene).await?;
        scene.control_plane().kill().await?;
        all_have_run(&scene).await?;
        // This slows the Job controller down, so it is not first: after three losses it waits for
        // 40 s.
        for pod in &pods[1..3] {
            lose(&scene, pod).await?;
        }
        lose(&scene, &pods[0]).await?;
        let began = Instant::now();
        start(&scene, &[]).await?;
        let replaced = eventually(
            "all lost pods are replaced",
            Duration::from_secs(25),
            async || {
                let pods = sorted(pods_of(&scene, JOB).await?)?;
                ensure!(pods.len() == WORKERS, "{} pods", pods.len());
                Ok(pods)
            },
        )
        .await?;
        println!("replaced after {} ms", began.elapsed().as_millis());
        ensure!(replaced.iter().map(index).eq(0..WORKERS));
        until_job(&scene, |status| {
            (status.active, status.failed) == (Some(4), Some(3))
        })
        .await?;
        Ok(())
    });
    with_groups(&scene, &[], body).await
}

async fn told_not_to_it_leaves_lost_pods_to_the_job_controller(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        let pods = running(&scene).await?;
        fail(&scene, &pods[0]).await?;
        let next = eventually("the Job controller replaces the pod", PATIENCE, async || {
            let pods = pods_of(&scene, JOB).await?;
            let next = pods.into_iter().find(|pod| index(pod) == 0 && is_live(pod));
            next.context("it has not yet")
        })
        .await?;
        ensure!(next.meta().generate_name.is_some(), "{:?}", next.name_any());
        ensure!(next.name_any() != next_name(&pods[0]));
        Ok(())
    });
    with_groups(&scene, &["--replace-lost-pods=false"], body).await
}

async fn told_not_to_it_makes_the_jobs_anew_where_the_job_controller_would_be_late(
    scene: Scene,
) -> Result<()> {
    let body = Box::pin(async {
        let pods = running(&scene).await?;
        scene.control_plane().kill().await?;
        all_have_run(&scene).await?;
        let timeout = json!({"metadata": {"annotations": {annotations::IN_PLACE_TIMEOUT: "9s"}}});
        scene.patch(timeout).await?;
        start(&scene, &["--replace-lost-pods=false"]).await?;
        is_taken_over(&scene).await?;
        lose(&scene, &pods[0]).await?;
        let began = Instant::now();
        scene.until_jobs(&[JOB], 1).await?;
        let took = began.elapsed();
        ensure!(took < SOON, "only after {took:?}");
        let status = scene.status().await?;
        let state = status.in_place_restart.unwrap_or_default();
        let reason = state.cause.and_then(|cause| cause.reason);
        ensure!(reason.as_deref() == Some("ReplacementLate"), "{reason:?}");
        ensure!((status.restarts, state.restarts) == (1, 1));
        Ok(())
    });
    with_groups(&scene, &["--replace-lost-pods=false"], body).await
}

/// Waits until the leader decides on the group again: it reads no request before that.
async fn is_taken_over(scene: &Scene) -> Result<()> {
    const TOKEN: &str = "anybody-there";
    let request = json!({"metadata": {"annotations": {annotations::RESTART_REQUEST: TOKEN}}});
    scene.patch(request).await?;
    scene
        .until_status("the request is heard", |status| {
            let state = status.in_place_restart.as_ref();
            state.is_some_and(|state| state.handled_manual_request.as_deref() == Some(TOKEN))
        })
        .await?;
    Ok(())
}

async fn where_a_quota_refuses_the_pod_an_event_says_so_and_it_comes_later(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        let pods = running(&scene).await?;
        let quota = json!({"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "3"}}});
        let quotas = scene.api::<ResourceQuota>();
        quotas
            .create(&PostParams::default(), &serde_json::from_value(quota)?)
            .await?;
        let another =
            json!({"metadata": {"name": "more"}, "spec": {"containers": [{"name": "c", "image": "none"}]}});
        scene.until_quota_refuses::<Pod>(another).await?;
        fail(&scene, &pods[0]).await?;
        let note = until_event(&scene, "PodNotReplaced").await?;
        ensure!(note.contains("exceeded quota: tight"), "{note}");
        let wide = json!({"spec": {"hard": {"pods": "9"}}});
        quotas
            .patch("tight", &PatchParams::default(), &Patch::Merge(wide))
            .await?;
        eventually("the pod is replaced in the end", REFUSED, async || {
            let live = pods_of(&scene, JOB).await?.into_iter().filter(is_live);
            let mut indexes: Vec<usize> = live.map(|pod| index(&pod)).collect();
            indexes.sort_unstable();
            ensure!(indexes == [0, 1, 2, 3], "{indexes:?}");
            Ok(())
        })
        .await
    });
    with_groups(&scene, &[], body).await
}

async fn a_worker_that_no_daemon_reports_is_named_until_it_is_over(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        let node = node(&scene, "n", json!({})).await?;
        let mut manifest = in_place();
        manifest["metadata"]["annotations"] = json!({annotations::IN_PLACE_TIMEOUT: "3s"});
        scene.create(manifest).await?;
        let pods = sorted(until_pods(&scene, JOB, WORKERS).await?)?;
        bind(&scene, &pods[2].name_any(), &node).await?;
        scene.pods_become(JOB, "Running").await?;
        let condition = async |status: &str, reason: &str| {
            let seen = scene.until_condition("RestartBlocked", status, reason).await?;
            let condition = seen.condition("RestartBlocked").cloned();
            anyhow::Ok(condition.context("no condition")?.message)
        };
        let message = condition("True", "WorkerNotReported").await?;
        ensure!(
            message.contains(&pods[2].name_any()) && message.contains(&node),
            "{message}"
        );
        let note = until_event(&scene, "RestartBlocked").await?;
        ensure!(note == message, "{note}");

        // As the node controller does.
        let lost = json!({"status": {"conditions": [
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": "False"},
        ]}});
        scene
            .api::<Pod>()
            .patch_status(&pods[2].name_any(), &PatchParams::default(), &Patch::Merge(lost))
            .await?;
        // The message still holds, and stays.
        fail(&scene, &pods[0]).await?;
        until_replaced(&scene, &pods[0], SOON).await?;
        condition("True", "WorkerNotReported").await?;

        fail(&scene, &pods[2]).await?;
        until_replaced(&scene, &pods[2], SOON).await?;
        condition("False", "Unblocked").await?;
        Ok(())
    });
    with_groups(&scene, &[], body).await
}

async fn a_lost_leader_of_an_exclusive_domain_takes_its_followers_along(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        setup::enable(&scene).await?;
        let nodes = [
            node(&scene, "n1", json!({RACK: "r1"})).await?,
            node(&scene, "n2", json!({RACK: "r2"})).await?,
        ];
        let mut manifest = in_place();
        let job = &mut manifest["spec"]["replicatedJobs"][0];
        job["template"]["metadata"] = json!({"annotations": {annotations::EXCLUSIVE_TOPOLOGY: RACK}});
        for field in ["parallelism", "completions"] {
            job["template"]["spec"][field] = json!(2);
        }
        scene.create(manifest).await?;
        let leader = until_pods(&scene, JOB, 1).await?.remove(0);
        bind(&scene, &leader.name_any(), &nodes[0]).await?;
        let mut pods = sorted(until_pods(&scene, JOB, 2).await?)?;
        let follower = pods.pop().context("no follower")?;
        ensure!(rack(&follower) == Some("r1"));
        bind(&scene, &follower.name_any(), &nodes[0]).await?;
        scene.pods_become(JOB, "Running").await?;

        fail(&scene, &leader).await?;
        let next = until_replaced(&scene, &leader, SOON).await?;
        let affinity = next.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        ensure!(
            affinity.is_some_and(|affinity| affinity.pod_affinity.is_some()),
            "the webhook has left it as it was: {affinity:?}"
        );
        // The scheduler moves the leader to another domain: the follower must go there too.
        bind(&scene, &next.name_any(), &nodes[1]).await?;
        eventually("the follower is evicted", PATIENCE, async || {
            let follower = scene.api::<Pod>().get(&follower.name_any()).await?;
            ensure!(follower.meta().deletion_timestamp.is_some(), "it is not");
            Ok(())
        })
        .await?;
        fail(&scene, &follower).await?;
        let next = until_replaced(&scene, &follower, SOON).await?;
        ensure!(rack(&next) == Some("r2"), "{:?}", next.spec);
        until_job(&scene, |status| {
            (status.active, status.failed) == (Some(2), Some(2))
        })
        .await?;

        // Both are lost at once: a follower is refused until its leader is scheduled.
        let mut both = Vec::new();
        for pod in pods_of(&scene, JOB).await?.into_iter().filter(is_live) {
            become_running(&scene, &pod).await?;
            both.push(pod);
        }
        both.sort_by_key(index);
        let [leader, follower] = both.as_slice() else {
            bail!("{} pods", both.len())
        };
        fail(&scene, leader).await?;
        fail(&scene, follower).await?;
        let next = until_replaced(&scene, leader, SOON).await?;
        bind(&scene, &next.name_any(), &nodes[0]).await?;
        let next = until_replaced(&scene, follower, SOON).await?;
        ensure!(rack(&next) == Some("r1"), "{:?}", next.spec);
        Ok(())
    });
    with_groups(&scene, &[], body).await
}

/// The domain that a pod selects.
fn rack(pod: &Pod) -> Option<&str> {
    let selector = pod.spec.as_ref()?.node_selector.as_ref()?;
    selector.get(RACK).map(String::as_str)
}
