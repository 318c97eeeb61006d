//! Gangs as far as an API server without kube-scheduler shows them: what it admits, and what starts
//! them if it serves no PodGroups.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use lockstep_api::{JobSet, conditions, labels};
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::hollow::{self, POOL};
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};
use crate::webhooks::setup;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(minimums_are_filled_in_and_checked_by_the_table),
        case!(without_webhooks_a_gang_stays_as_it_is_while_the_jobset_runs),
        case!(without_pod_groups_the_gates_start_a_gang_and_who_asked_for_them_is_told),
    ]
}

/// A replicatedJob of one Job with this many pods.
fn pods(name: &str, count: i32) -> Value {
    let mut job = replicated_job(name, 1);
    for field in ["parallelism", "completions"] {
        job["template"]["spec"][field] = json!(count);
    }
    job["template"]["spec"]["completionMode"] = json!("Indexed");
    job
}

/// The result of admission for a gang: the minimum of the whole and those of the replicatedJobs, or
/// the refusal. A dry run: nothing is stored.
async fn admitted(scene: &Scene, jobs: &[Value], gang: Value) -> Result<Result<Value, String>> {
    let manifest = jobset(json!({"suspend": true, "gang": gang, "replicatedJobs": jobs}));
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // It is sent as kubectl does, including fields that this version does not know.
    let api: kube::Api<kube::core::DynamicObject> = kube::Api::namespaced_with(
        scene.client(),
        &scene.namespace.name,
        &kube::core::ApiResource::erase::<JobSet>(&()),
    );
    match api.create(&dry_run, &serde_json::from_value(manifest)?).await {
        Ok(made) => {
            let gang = &made.data["spec"]["gang"];
            let listed = gang["replicatedJobs"].as_array().into_iter().flatten();
            let listed: Vec<Value> = listed
                .map(|entry| json!([entry["name"], entry["minAvailable"]]))
                .collect();
            Ok(Ok(json!([gang["minAvailable"], listed])))
        }
        Err(kube::Error::Api(status)) => Ok(Err(status.message)),
        Err(error) => Err(error.into()),
    }
}

/// The table of docs/gang.md, through the API server.
async fn minimums_are_filled_in_and_checked_by_the_table(scene: Scene) -> Result<()> {
    setup::enable(&scene).await?;
    let (one, two) = ([pods("m", 5)], [pods("m", 5), pods("w", 3)]);
    let listed = |entries: &[(&str, i32)]| {
        let entries = entries
            .iter()
            .map(|(name, minimum)| json!({"name": name, "minAvailable": minimum}));
        entries.collect::<Vec<_>>()
    };
    let (m, both) = (listed(&[("m", 3)]), listed(&[("m", 3), ("w", 2)]));
    let made: [(&[Value], Value, Value); 8] = [
        // Without any minimum: all pods.
        (&two, json!({}), json!([8, [["m", 5], ["w", 3]]])),
        (&one, json!({}), json!([5, [["m", 5]]])),
        // Only minimums of replicatedJobs: their sum.
        (
            &two,
            json!({"replicatedJobs": both}),
            json!([5, [["m", 3], ["w", 2]]]),
        ),
        (
            &two,
            json!({"replicatedJobs": m}),
            json!([6, [["m", 3], ["w", 3]]]),
        ),
        // Only the minimum of the whole: with one replicatedJob it is that one's, with several it
        // must be all pods.
        (&one, json!({"minAvailable": 3}), json!([3, [["m", 3]]])),
        (&two, json!({"minAvailable": 8}), json!([8, []])),
        // Both.
        (
            &two,
            json!({"minAvailable": 5, "replicatedJobs": both}),
            json!([5, [["m", 3], ["w", 2]]]),
        ),
        (
            &two,
            json!({"minAvailable": 6, "replicatedJobs": m}),
            json!([6, [["m", 3]]]),
        ),
    ];
    for (jobs, gang, expected) in made {
        let made = admitted(&scene, jobs, gang.clone()).await?;
        let made = made.map_err(|said| anyhow::anyhow!("{gang} is refused: {said}"))?;
        // The list is filled in if nothing contradicts it.
        ensure!(made[0] == expected[0], "{gang}: {made}, not {expected}");
        if gang["replicatedJobs"].is_null() || gang["minAvailable"].is_null() {
            ensure!(made == expected, "{gang}: {made}, not {expected}");
        }
    }
    let refused: [(&[Value], Value, &str); 7] = [
        (
            &two,
            json!({"minAvailable": 5}),
            "spec.gang.minAvailable: Invalid value: 5: must be 8, the pods of all 2 replicatedJobs, unless \
             spec.gang.replicatedJobs states their minAvailable",
        ),
        (
            &two,
            json!({"minAvailable": 6, "replicatedJobs": both}),
            "spec.gang.minAvailable: Invalid value: 6: must be 5, the sum of spec.gang.replicatedJobs[].minAvailable",
        ),
        (
            &two,
            json!({"replicatedJobs": listed(&[("m", 6)])}),
            "spec.gang.replicatedJobs[0].minAvailable: Invalid value: 6: must be greater than 0 and not more than 5, \
             the pods (replicas x parallelism) of replicatedJob m",
        ),
        (
            &one,
            json!({"minAvailable": 6}),
            "spec.gang.minAvailable: Invalid value: 6: must be greater than 0 and not more than 5",
        ),
        // The definition says so before the webhook does.
        (
            &one,
            json!({"minAvailable": 0}),
            "spec.gang.minAvailable: Invalid value: 0",
        ),
        (
            &one,
            json!({"replicatedJobs": listed(&[("m", 0)])}),
            "spec.gang.replicatedJobs[0].minAvailable: Invalid value: 0",
        ),
        (
            &one,
            json!({"replicatedJobs": listed(&[("x", 1)])}),
            "must be the name of a replicatedJob",
        ),
    ];
    for (jobs, gang, expected) in refused {
        let made = admitted(&scene, jobs, gang.clone()).await?;
        let said = made.err().with_context(|| format!("{gang} is taken"))?;
        ensure!(said.contains(expected), "{gang}: {said}");
    }
    Ok(())
}

/// Minimums for `m` and `w`.
fn minimum(m: i32, w: i32) -> Value {
    json!({
        "minAvailable": m + w,
        "replicatedJobs": [{"name": "m", "minAvailable": m}, {"name": "w", "minAvailable": w}],
    })
}

/// The definition refuses this: no webhook is registered in this namespace.
async fn without_webhooks_a_gang_stays_as_it_is_while_the_jobset_runs(scene: Scene) -> Result<()> {
    let spec = json!({"gang": minimum(1, 2), "replicatedJobs": [pods("m", 1), pods("w", 3)]});
    scene.create(jobset(spec)).await?;
    let refused = async |spec: Value| -> Result<()> {
        let changed = scene.patch(json!({"spec": spec})).await.err();
        let said = changed.with_context(|| format!("{spec} is taken"))?.to_string();
        ensure!(
            said.contains("spec.gang: Invalid value")
                && said.contains("field is immutable unless the JobSet is suspended"),
            "{spec}: {said}"
        );
        Ok(())
    };
    let taken = async |spec: Value| -> Result<Option<i32>> {
        let changed = scene.patch(json!({"spec": spec})).await;
        let gang = changed.with_context(|| spec.to_string())?.spec.gang;
        Ok(gang.and_then(|gang| gang.min_available))
    };
    refused(json!({"gang": minimum(1, 1)})).await?;
    refused(json!({"gang": {"scheduleTimeoutSeconds": 90}})).await?;
    refused(json!({"gang": null})).await?;
    // The list is keyed by name and has no order, and other changes do not concern the gang.
    let mut turned = minimum(1, 2);
    turned["replicatedJobs"]
        .as_array_mut()
        .context("no list")?
        .reverse();
    ensure!(taken(json!({"gang": turned})).await? == Some(3));
    let labelled = scene
        .patch(json!({"metadata": {"labels": {"team": "x"}}}))
        .await?;
    ensure!(labelled.labels()["team"] == "x");
    scene
        .until_status("the gang has a state", |status| !status.gangs.is_empty())
        .await?;

    ensure!(taken(json!({"suspend": true, "gang": minimum(1, 1)})).await? == Some(2));
    ensure!(taken(json!({"gang": minimum(1, 3)})).await? == Some(4));
    ensure!(taken(json!({"gang": null})).await?.is_none());
    ensure!(taken(json!({"suspend": false, "gang": minimum(1, 2)})).await? == Some(3));
    refused(json!({"gang": null})).await?;
    ensure!(taken(json!({"suspend": true, "gang": null})).await?.is_none());
    ensure!(taken(json!({"suspend": false})).await?.is_none());
    refused(json!({"gang": minimum(1, 2)})).await
}

/// The pods of the JobSet, by name.
async fn pods_of(scene: &Scene) -> Result<Vec<Pod>> {
    let mut pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    pods.sort_by_key(ResourceExt::name_any);
    Ok(pods)
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates
        .into_iter()
        .flatten()
        .any(|gate| gate.name == labels::GANG_GATE)
}

/// This API server serves no PodGroups.
async fn without_pod_groups_the_gates_start_a_gang_and_who_asked_for_them_is_told(
    scene: Scene,
) -> Result<()> {
    for backend in ["Auto", "PodGroup"] {
        let scene = scene.another().await?;
        let pool = scene.namespace.name.clone();
        let mut job = pods("w", 2);
        let template = &mut job["template"]["spec"]["template"]["spec"];
        template["nodeSelector"] = json!({POOL: pool});
        template["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        let spec = json!({"gang": {"backend": backend}, "replicatedJobs": [job]});
        scene.create(jobset(spec)).await?;
        let waits = scene
            .until_status("it waits for nodes", |status| {
                let condition = status.condition(conditions::MIN_AVAILABLE);
                let gang = status.gangs.first().and_then(|gang| gang.message.as_ref());
                gang.is_some() && condition.is_some_and(|condition| condition.reason == "Waiting")
            })
            .await?;
        let condition = waits.condition(conditions::MIN_AVAILABLE).context("none")?;
        let why = "does not serve PodGroups";
        ensure!(
            condition.message.contains(why) == (backend == "PodGroup"),
            "{backend}: {}",
            condition.message
        );
        if backend == "PodGroup" {
            let note = scene.until_event("GangBackendUnavailable").await?;
            ensure!(
                note.starts_with("spec.gang.backend is PodGroup, but gates start the gang: ")
                    && note.contains(why),
                "{note}"
            );
        }
        eventually("both pods are there, with their gates", PATIENCE, async || {
            let pods = pods_of(&scene).await?;
            ensure!(pods.len() == 2 && pods.iter().all(is_gated), "{pods:?}");
            Ok(())
        })
        .await?;
        hollow::create_nodes(&scene.client(), &pool, 2, 1).await?;
        let free = eventually("the gates are gone", PATIENCE, async || {
            let pods = pods_of(&scene).await?;
            ensure!(pods.len() == 2 && !pods.iter().any(is_gated), "{pods:?}");
            Ok(pods)
        })
        .await?;
        let grouped = |pod: &Pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.scheduling_group.is_some())
        };
        ensure!(!free.iter().any(grouped), "{free:?}");
    }
    Ok(())
}
