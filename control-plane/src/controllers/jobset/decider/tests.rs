use std::sync::mpsc;
use std::thread;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use lockstep_core::common::features::Features;
use lockstep_core::jobset::in_place::Agents;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::k8s::watch::lean::Lean;

/// A JobSet whose failure policy has patterns.
fn jobset(uid: &str, generation: i64) -> JobSet {
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": uid, "generation": generation},
        "spec": {
            "replicatedJobs": [{"name": "w", "template": {"spec": {"template": {"spec": {"containers": []}}}}}],
            "failurePolicy": {"maxRestarts": 3, "rules": [{
                "name": "lost", "action": "FailJobSet", "onJobFailureMessagePatterns": [r"\pL{399}", "node .* lost"],
            }]},
        },
    }))
    .unwrap()
}

fn look_at(stores: Stores) -> DecisionInput {
    DecisionInput {
        stores,
        setting: Setting {
            features: Features::default(),
            has_daemons: true,
            agents: Agents::ByNode,
        },
        pod_groups: false,
        is_attended: true,
    }
}

/// The input of a decision on a JobSet with a failed Job.
fn look() -> DecisionInput {
    let failed: Job = serde_json::from_value(json!({
        "metadata": {
            "name": "js-w-0", "namespace": "ns", "uid": "j", "resourceVersion": "1",
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": "js", "jobset.sigs.k8s.io/replicatedjob-name": "w",
                "jobset.sigs.k8s.io/restart-attempt": "0", "jobset.sigs.k8s.io/job-index": "0",
            },
            "ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": "u", "controller": true}],
        },
        "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "node n1 lost"}]},
    }))
    .unwrap();
    let stores = Stores::showing(&jobset("u", 1));
    stores.wrote_job(&key(), Lean(failed));
    look_at(stores)
}

fn key() -> ObjectRef<JobSet> {
    ObjectRef::new("js").within("ns")
}

#[tokio::test]
async fn a_pattern_within_the_budget_decides_and_one_beyond_it_is_reported() {
    let Decision::Decided(decided) = Decider::default().decide(&key(), look()).await else {
        panic!("decides");
    };
    let status = decided.plan.status.unwrap();
    let condition = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == "Failed");
    assert_eq!(condition.unwrap().reason, "FailJobSetFailurePolicyAction");
    let complaint = &decided.plan.complaints[0];
    assert_eq!(complaint.reason, "InvalidPattern");
    assert!(
        complaint
            .message
            .contains("spec.failurePolicy.rules[0].onJobFailureMessagePatterns[0]: ")
            && complaint.message.contains("takes too much memory"),
        "{}",
        complaint.message
    );
}

#[test]
fn patterns_are_compiled_once_for_a_spec_and_not_all_are_kept() {
    let kept = KeptPatterns::default();
    let first = kept.of(&jobset("u", 1));
    assert!(Arc::ptr_eq(&first, &kept.of(&jobset("u", 1))));
    let changed = kept.of(&jobset("u", 2));
    assert!(!Arc::ptr_eq(&first, &changed));
    assert_eq!(kept.0.lock().unwrap().len(), 1, "the former spec is gone");
    for other in 0..KEPT {
        kept.of(&jobset(&format!("other {other}"), 1));
    }
    assert_eq!(kept.0.lock().unwrap().len(), KEPT);
    assert!(!Arc::ptr_eq(&changed, &kept.of(&jobset("u", 2))));
}

/// All reconciliations that need patterns wait until this is dropped.
fn hold(patterns: &Arc<KeptPatterns>) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel();
    let (locked, is_locked) = mpsc::channel();
    let patterns = Arc::clone(patterns);
    thread::spawn(move || {
        let _held = patterns.0.lock().unwrap();
        locked.send(()).unwrap();
        released.recv().unwrap_err();
    });
    is_locked.recv().unwrap();
    release
}

#[tokio::test]
async fn a_slow_decision_leaves_the_thread_and_most_places_to_others() {
    let decider = Decider::default();
    let release = hold(&decider.patterns);
    let (key, mut waiting) = (key(), Vec::new());
    for _ in 0..OF_ONE {
        let mut look = Box::pin(decider.decide(&key, look()));
        assert!(futures::poll!(look.as_mut()).is_pending());
        waiting.push(look);
    }
    // Another namespace still has its own share.
    let others: Vec<_> = (0..OF_ONE).map(|_| decider.line.try_take("other", 1)).collect();
    assert!(others.iter().all(Option::is_some));
    drop(others);
    // Another JobSet does not wait, and neither does one that does not exist.
    assert!(matches!(decider.decide(&key, look()).await, Decision::Busy(_)));
    let other = ObjectRef::new("other").within("ns");
    assert!(matches!(decider.decide(&other, look()).await, Decision::Gone));
    drop(release);
    let all = futures::future::join_all(waiting);
    let all = timeout(Duration::from_secs(60), all).await.expect("in time");
    assert!(all.iter().all(|looked| matches!(looked, Decision::Decided(_))));
}

#[tokio::test]
async fn a_huge_jobset_is_decided_on_by_itself_and_kept_only_as_text() {
    let mut huge = jobset("u", 1);
    let pod = huge.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
    let volumes = (0..3_000).map(|n| json!({"name": format!("v{n}")})).collect();
    pod.template.spec.as_mut().unwrap().volumes = serde_json::from_value(Value::Array(volumes)).unwrap();
    let stores = Stores::showing(&huge);
    let decider = Decider::default();
    // While another JobSet is decided on, this one waits.
    let other = decider.turns.acquire().await.unwrap();
    let key = key();
    let mut look = Box::pin(decider.decide(&key, look_at(stores)));
    assert!(futures::poll!(look.as_mut()).is_pending());
    assert!(futures::poll!(look.as_mut()).is_pending());
    drop(other);
    let Decision::Decided(decided) = look.await else {
        panic!("decides");
    };
    assert!(decided.plan.create_jobs.is_empty());
    let [job] = &decided.new_jobs[..] else {
        panic!("not one Job");
    };
    let job: Job = serde_json::from_slice(job.text().unwrap()).unwrap();
    let kept = |job: &JobSpec| job.template.spec.as_ref().unwrap().volumes.as_ref().map(Vec::len);
    assert_eq!(kept(&job.spec.unwrap()), Some(3_000));
    let template = &decided.jobset.spec.replicated_jobs[0].template;
    assert_eq!(kept(template.spec.as_ref().unwrap()), None);
}
