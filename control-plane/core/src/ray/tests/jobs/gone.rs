//! Deleted objects that stay, and submitters whose pods are lost.

use super::*;
use crate::ray::job::Pods;

/// The Warnings of a plan.
fn warnings(plan: &JobPlan) -> Vec<&str> {
    let warnings = plan.events.iter();
    warnings
        .filter(|event| event.severity == crate::jobset::plan::Severity::Warning)
        .map(|event| event.reason.as_str())
        .collect()
}

#[test]
fn a_cluster_that_does_not_go_is_named_once() {
    for (spec, suspend) in [
        (json!({"backoffLimit": 1, "retryPolicy": "NewCluster"}), false),
        (json!({"shutdownAfterJobFinishes": true}), true),
    ] {
        let mut stage = running(spec);
        // The deletion stops there: one of its pods is on a lost node.
        stage.cluster.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(at(0)));
        stage.submitter = None;
        match suspend {
            true => stage.job.spec.suspend = Some(true),
            false => drop(stage.says("FAILED")),
        }
        let name = stage.clusters[0].clone();
        stage.wait(60);
        assert!(
            !stage.status().message.contains("waiting until"),
            "{:?}",
            stage.status()
        );
        stage.seconds += 1;
        let plan = stage.step();
        assert_eq!(warnings(&plan), ["FailedToDeleteRayCluster"]);
        let message = &stage.status().message;
        assert!(
            message.contains(&format!("waiting until RayCluster {name} is gone")),
            "{message}"
        );
        stage.seconds += 60;
        let plan = stage.step();
        assert_eq!((warnings(&plan), &plan.status), (vec![], &None));
        stage.cluster = None;
        stage.settle();
        assert_eq!(stage.status().message, "");
    }
}

#[test]
fn a_cluster_that_is_deleted_while_the_job_runs_ends_the_attempt_at_once() {
    let mut stage = running(json!({"backoffLimit": 1}));
    (stage.cluster, stage.jobset, stage.ray) = (None, None, Ray::Unreachable);
    let plan = stage.step();
    assert_eq!(warnings(&plan), ["Retrying"]);
    assert!(
        stage.status().message.contains("was deleted while the job ran"),
        "{:?}",
        stage.status()
    );
    // The next attempt has another cluster.
    stage.runs("s1");
    assert_eq!((stage.clusters.len(), stage.submitted.len()), (2, 2));
    assert_ne!(stage.clusters[0], stage.clusters[1]);
    // What the submitter has seen until then counts.
    (stage.cluster, stage.jobset, stage.ray) = (None, None, Ray::Unreachable);
    stage.submitter_ends("Complete", "");
    assert_eq!((stage.phase(), stage.status().succeeded), (Phase::Complete, 1));
}

#[test]
fn an_attempt_waits_for_the_pods_of_a_cluster_that_was_deleted_without_them() {
    let mut stage = running(json!({"backoffLimit": 1}));
    // The driver runs on in one of them until its grace period is over.
    (stage.cluster, stage.jobset, stage.ray) = (None, None, Ray::Unreachable);
    stage.has_left_pods = true;
    stage.submitter = None;
    stage.settle().wait(60);
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Retrying, 1));
    assert!(stage.status().message.contains("was deleted while the job ran"));
    stage.seconds += 1;
    let plan = stage.step();
    assert_eq!(warnings(&plan), ["FailedToDeleteRayCluster"]);
    let name = stage.clusters[0].clone();
    let message = &stage.status().message;
    assert!(
        message.contains(&format!(
            "waiting until the pods of the deleted RayCluster {name} are gone"
        )),
        "{message}"
    );
    stage.has_left_pods = false;
    stage.submits("s1");
    assert_eq!((stage.clusters.len(), stage.submitted.len()), (2, 2));
    assert_eq!(stage.status().message, "");
}

#[test]
fn a_suspension_that_waits_for_such_pods_reports_it() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true}));
    stage.job.spec.suspend = Some(true);
    stage.step();
    (stage.cluster, stage.jobset, stage.ray) = (None, None, Ray::Unreachable);
    (stage.has_left_pods, stage.submitter) = (true, None);
    stage.settle().wait(61);
    assert_eq!(stage.phase(), Phase::Suspending);
    let message = &stage.status().message;
    assert!(
        message.contains("waiting until the pods of the deleted RayCluster"),
        "{message}"
    );
    stage.has_left_pods = false;
    stage.settle().wait(10);
    assert_eq!(stage.phase(), Phase::Suspended);
}

#[test]
fn a_submitter_that_does_not_go_is_named() {
    let mut stage = running(json!({"backoffLimit": 1}));
    let submitter = stage.submitter.as_mut().unwrap();
    submitter.metadata.deletion_timestamp = Some(Time(at(0)));
    stage.says("FAILED").wait(61);
    assert!(
        stage.status().message.contains("waiting until Job rj is gone"),
        "{:?}",
        stage.status()
    );
}

/// How a plan deletes the submitter.
fn how(plan: &JobPlan) -> Option<Pods> {
    plan.delete_submitter.as_ref().map(|(_, pods)| *pods)
}

#[test]
fn nothing_goes_on_before_the_pods_of_a_submitter_are_gone_unless_they_never_go() {
    for suspend in [false, true] {
        let mut stage = running(json!({"backoffLimit": 1, "shutdownAfterJobFinishes": true}));
        match &mut stage.ray {
            Ray::Reached { job: Some(info), .. } if !suspend => info.status = "FAILED".to_owned(),
            _ => stage.job.spec.suspend = Some(true),
        }
        stage.step();
        let plan = stage.plan();
        assert_eq!(how(&plan), Some(Pods::First));
        // It is being deleted, and waits for its pods.
        let meta = &mut stage.submitter.as_mut().unwrap().metadata;
        meta.deletion_timestamp = Some(Time(at(0)));
        meta.finalizers = Some(vec!["foregroundDeletion".to_owned()]);
        for seconds in [0, 30, 60] {
            stage.seconds = seconds;
            let plan = stage.plan();
            assert_eq!((how(&plan), plan.restart), (None, None));
            assert!(plan.requeue_after.is_some());
        }
        stage.seconds = 61;
        let plan = stage.plan();
        assert_eq!(how(&plan), Some(Pods::Later));
        assert_eq!(warnings(&plan), ["FailedToDeleteRayJobSubmitter"]);
        // A foreign finalizer holds it now, and it is not deleted again and again.
        let meta = &mut stage.submitter.as_mut().unwrap().metadata;
        meta.finalizers = Some(vec!["example.com/held".to_owned()]);
        assert_eq!(how(&stage.plan()), None);
    }
}

#[test]
fn what_was_seen_of_one_attempts_submitter_does_not_apply_to_the_next() {
    for retries in [1, 0] {
        let mut stage = running(json!({"backoffLimit": retries}));
        pods(&mut stage, 0, 1);
        stage.settle();
        assert!(stage.status().submitter_lost_since.is_some());
        stage.says("FAILED");
        assert_eq!(stage.status().submitter_lost_since, None);
    }
}

/// Its pods that run, and those that are being deleted.
fn pods(stage: &mut Stage, active: i32, terminating: i32) {
    let status = stage.submitter.as_mut().unwrap().status.get_or_insert_default();
    status.active = Some(active);
    status.terminating = Some(terminating);
}

#[test]
fn a_submitter_whose_pod_stays_is_recreated() {
    // Before Ray knows the job, and after.
    for known in [false, true] {
        let mut stage = match known {
            true => running(json!({})),
            false => submitted(json!({})),
        };
        let made = stage.submitted.len();
        pods(&mut stage, 0, 1);
        stage.wait(60);
        assert_eq!(stage.submitted.len(), made);
        // A pod that comes in between ends the wait.
        pods(&mut stage, 1, 0);
        stage.settle();
        pods(&mut stage, 0, 1);
        stage.settle().wait(60);
        assert_eq!(stage.submitted.len(), made);
        stage.seconds += 1;
        let plan = stage.step();
        assert_eq!(how(&plan), Some(Pods::Later));
        assert_eq!(plan.events[0].reason, "DeletedRayJobSubmitter");
        stage.settle();
        assert_eq!((stage.submitted.len(), stage.phase()), (made + 1, Phase::Running));
        assert_eq!(stage.submitted[0], stage.submitted[made]);
    }
}
