//! Events about failures: one event for each kind of failure, which counts its occurrences.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, PostParams};
use lockstep_api::annotations::RESTART_REQUEST;
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::fixture::{Case, case};
use crate::pods::{running, with_groups};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_job_that_can_never_be_made_is_told_of_by_one_event_that_counts_and_tried_ever_more_slowly),
        case!(a_service_of_somebody_elses_is_told_of_once_with_its_owner),
        case!(a_request_that_is_too_long_is_told_of_and_not_acted_upon alone),
    ]
}

/// The events with this reason about the JobSet.
pub(crate) async fn events(scene: &Scene, reason: &str) -> Result<Vec<Event>> {
    let mut events = scene.api::<Event>().list(&ListParams::default()).await?.items;
    events.retain(|event| {
        let regarding = event.regarding.as_ref();
        event.reason.as_deref() == Some(reason)
            && regarding.is_some_and(|object| object.kind.as_deref() == Some("JobSet"))
    });
    Ok(events)
}

async fn a_job_that_can_never_be_made_is_told_of_by_one_event_that_counts_and_tried_ever_more_slowly(
    scene: Scene,
) -> Result<()> {
    // This is a valid name of a Job, but not a valid label.
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("-a", 1)]})))
        .await?;
    let note = scene.until_event("JobCreationFailed").await?;
    for expected in [
        "job \"js--a-0\" creation failed",
        "metadata.labels: Invalid value: \"-a\"",
    ] {
        ensure!(note.contains(expected), "{note}");
    }
    let failures = |number: u32| {
        let namespace = &scene.namespace.name;
        let log = scene.control_plane();
        log.logged_with(&[
            "reconcile failed, will retry",
            namespace,
            &format!("failures={number} "),
        ])
    };
    eventually("it is tried again and again", PATIENCE, async || {
        ensure!(failures(5) > 0);
        Ok(())
    })
    .await?;
    // The retries follow one another after at least 100, 200, 400 and 800 ms.
    ensure!(failures(12) == 0, "it is tried too often");
    eventually("one event counts the attempts", PATIENCE, async || {
        let told = events(&scene, "JobCreationFailed").await?;
        ensure!(
            told.len() == 1 && told[0].type_.as_deref() == Some("Warning"),
            "{told:?}"
        );
        let counted = told[0].series.as_ref().map_or(1, |series| series.count);
        ensure!(counted >= 5, "{told:?}");
        Ok(())
    })
    .await
}

async fn a_service_of_somebody_elses_is_told_of_once_with_its_owner(scene: Scene) -> Result<()> {
    const REASON: &str = "HeadlessServiceCreationFailed";
    // One belongs to a person, the other to another JobSet.
    let service = json!({
        "metadata": {"name": "js"},
        "spec": {"selector": {"app": "other"}, "ports": [{"port": 80}]},
    });
    let services = scene.api::<Service>();
    services
        .create(&PostParams::default(), &serde_json::from_value(service)?)
        .await?;
    let mut other = jobset(json!({
        "network": {"subdomain": "shared"},
        "replicatedJobs": [replicated_job("a", 1)],
    }));
    other["metadata"]["name"] = json!("first");
    scene.create(other.clone()).await?;
    eventually("the first one's service", PATIENCE, async || {
        services.get("shared").await.map_err(Into::into)
    })
    .await?;
    other["metadata"]["name"] = json!("second");
    scene.create(other).await?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let told_of = async |name: &str| {
        let mut told = events(&scene, REASON).await?;
        told.retain(|event| {
            let regarding = event.regarding.as_ref();
            regarding.and_then(|object| object.name.as_deref()) == Some(name)
        });
        anyhow::Ok(told)
    };
    for (name, expected) in [
        ("js", "services \"js\" already exists: it is not this JobSet's"),
        (
            "second",
            "services \"shared\" already exists: it belongs to JobSet \"first\"",
        ),
    ] {
        eventually(&format!("{name} is reported"), PATIENCE, async || {
            let told = told_of(name).await?;
            let notes: Vec<_> = told.iter().filter_map(|event| event.note.as_deref()).collect();
            ensure!(notes.len() == 1 && notes[0].starts_with(expected), "{notes:?}");
            Ok(())
        })
        .await?;
    }
    // Their Jobs are created nevertheless, as upstream does.
    scene
        .until_jobs(&["first-a-0", "js-a-0", "second-a-0"], 0)
        .await?;
    ensure!(told_of("first").await?.is_empty());
    Ok(())
}

async fn a_request_that_is_too_long_is_told_of_and_not_acted_upon(scene: Scene) -> Result<()> {
    let body = Box::pin(async {
        running(&scene).await?;
        let request = async |value: &str| {
            let annotations = json!({RESTART_REQUEST: value});
            scene
                .patch(json!({"metadata": {"annotations": annotations}}))
                .await
        };
        request(&"x".repeat(100_000)).await?;
        let note = scene.until_event("InvalidAnnotation").await?;
        ensure!(
            note.contains("lockstep.dev/restart-request: must be 1 to 1024 bytes long, not 100000"),
            "{note}"
        );
        request("now").await?;
        scene
            .until_status("the next request is heard, and no other was", |status| {
                let state = status.in_place_restart.as_ref();
                let heard = state.and_then(|state| state.handled_manual_request.as_deref());
                assert!(heard.is_none_or(|heard| heard == "now"), "{heard:?}");
                heard.is_some()
            })
            .await?;
        ensure!(events(&scene, "InvalidAnnotation").await?.len() == 1);
        Ok(())
    });
    with_groups(&scene, &[], body).await
}
