//! Which pods belong to a gang, and which of them have no more work.

use std::sync::Arc;

use lockstep_api::labels;
use serde_json::json;

use crate::common::features::Features;
use crate::common::testing::{JobSetBuild as _, jobset, replicated_job};
use crate::gang::members::part;
use crate::gang::{Pod, members};
use crate::jobset::in_place::Agents;
use crate::reconcile::jobs::Jobs;

#[test]
fn neither_what_is_completed_nor_what_has_failed_for_good_is_waited_for() {
    let js = jobset([replicated_job("w", 1)]).with(|js| {
        let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        job.completion_mode = Some("Indexed".to_owned());
        (job.completions, job.parallelism) = (Some(4), Some(4));
    });
    let workers = &js.spec.replicated_jobs[0];
    let mut job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(workers, 0);
    let said = json!({"completedIndexes": "0", "failedIndexes": "2,3"});
    job.status = Some(serde_json::from_value(said).unwrap());
    assert_eq!(part(&js, workers, &[&job], 4).done, [0, 2, 3].into());
}

#[test]
fn a_job_waits_for_as_many_pods_as_it_creates() {
    let workers = |mode: &str, completions| {
        jobset([replicated_job("w", 1)]).with(|js| {
            let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
            job.completion_mode = Some(mode.to_owned());
            (job.completions, job.parallelism) = (completions, Some(4));
        })
    };
    let cases = [
        // Each of six indexes has its own limit: one is completed, two have failed for good, three
        // are left.
        (
            "Indexed",
            Some(6),
            json!({"succeeded": 1, "failedIndexes": "1,4", "active": 3}),
            3,
        ),
        ("NonIndexed", Some(6), json!({"succeeded": 4, "active": 2}), 2),
        // A work queue gets no more pods once one of its pods has succeeded.
        ("NonIndexed", None, json!({"succeeded": 1, "active": 2}), 2),
        ("NonIndexed", None, json!({"active": 2, "failed": 2}), 4),
    ];
    for (mode, completions, status, left) in cases {
        let js = workers(mode, completions);
        let workers = &js.spec.replicated_jobs[0];
        let mut job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(workers, 0);
        job.status = Some(serde_json::from_value(status.clone()).unwrap());
        let done = part(&js, workers, &[&job], 4).done;
        assert_eq!(done, (left..4).collect(), "{mode} {completions:?} {status}");
    }
}

#[test]
fn a_gang_that_is_too_large_expects_no_pods_nor_does_a_job_beyond_its_replicas() {
    let mut js = jobset([replicated_job("w", 1)]).with(|js| {
        js.spec.gang = Some(lockstep_api::Gang::default());
    });
    assert!(members(&js, &[], &[]).is_some());
    let workers = js.spec.replicated_jobs[0].clone();
    let stranger = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&workers, 7);
    let mut ended = stranger.clone();
    let said = json!({"conditions": [{"type": "Complete", "status": "True"}]});
    ended.status = Some(serde_json::from_value(said).unwrap());
    assert!(part(&js, &workers, &[&ended], 1).done.is_empty());

    js.spec.replicated_jobs[0].replicas = Some(i32::MAX);
    assert_eq!(members(&js, &[], &[]), None);
}

#[test]
fn a_pod_of_another_namespace_with_the_gangs_labels_is_none_of_its_pods() {
    let js = jobset([replicated_job("w", 1)]).with(|js| {
        js.spec.gang = Some(lockstep_api::Gang::default());
    });
    let pod = |namespace: &str| {
        let said = json!({
            "metadata": {
                "name": "p", "namespace": namespace, "uid": namespace,
                "labels": {
                    labels::JOBSET_UID: js.uid_str(), labels::RESTART_ATTEMPT: "0",
                    labels::REPLICATED_JOB_NAME: "w", labels::JOB_INDEX: "0",
                },
            },
            "spec": {"containers": []},
        });
        Arc::new(Pod::of(&serde_json::from_value(said).unwrap()).unwrap())
    };
    let gangs = members(&js, &[], &[pod(js.ns()), pod("another")]).unwrap();
    let taken = gangs.gangs[0].parts[0]
        .pods
        .iter()
        .map(|pod| pod.namespace.as_str());
    assert_eq!(taken.collect::<Vec<_>>(), [js.ns()]);
}
