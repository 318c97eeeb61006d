use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use lockstep_api::{CompletedJobs, labels};
use lockstep_core::jobset::completed::with_gone;
use serde_json::json;

use super::*;

fn jobset(uid: &str) -> JobSet {
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": uid},
        "spec": {"replicatedJobs": [{"name": "a", "replicas": 3, "template": {"spec": {"template": {}}}}]},
    }))
    .unwrap()
}

fn job(uid: &str, index: u32, attempt: i32, condition: &str) -> Job {
    serde_json::from_value(json!({
        "metadata": {
            "name": format!("js-a-{index}"), "namespace": "ns", "uid": "u",
            "labels": {
                labels::JOBSET_NAME: "js", labels::REPLICATED_JOB_NAME: "a",
                labels::JOB_INDEX: index.to_string(), labels::RESTART_ATTEMPT: attempt.to_string(),
            },
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "JobSet", "name": "js", "uid": uid, "controller": true},
            ],
        },
        "status": {"conditions": [{"type": condition, "status": "True"}]},
    }))
    .unwrap()
}

fn store(jobset: &JobSet) -> (Store<PackedJobSet>, Writer<PackedJobSet>) {
    let mut writer = Writer::new(());
    writer.apply_watcher_event(&Event::Apply(PackedJobSet::of(jobset).unwrap()));
    (writer.as_reader(), writer)
}

fn names(jobs: &[Arc<Job>]) -> Vec<&str> {
    jobs.iter()
        .filter_map(|job| job.metadata.name.as_deref())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_completed_job_is_seen_until_recorded_and_by_readers_of_an_older_status() {
    let before = jobset("o");
    let (jobsets, _writer) = store(&before);
    let departed = Departed::default();
    departed.put(&jobsets, &job("o", 1, 0, "Complete"));
    assert_eq!(names(&departed.of(&before)), ["js-a-1"]);
    let mut after = before.clone();
    after.status.get_or_insert_default().completed_jobs = vec![CompletedJobs {
        name: "a".to_owned(),
        restart_attempt: 0,
        indexes: "1".to_owned(),
    }];
    assert_eq!(names(&departed.of(&after)), [] as [&str; 0]);
    assert_eq!(names(&departed.of(&before)), ["js-a-1"]);
    assert_eq!(names(&with_gone(&after, departed.of(&after))), ["js-a-1"]);
    tokio::time::advance(KEPT).await;
    departed.of(&after);
    assert_eq!(departed.locked().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn incomplete_jobs_and_those_of_another_attempt_or_jobset_are_ignored() {
    let present = jobset("o").clone();
    let (jobsets, _writer) = store(&present);
    let departed = Departed::default();
    for gone in [
        job("o", 0, 0, "Failed"),
        job("of-before", 1, 0, "Complete"),
        job("o", 3, 0, "Complete"),
    ] {
        departed.put(&jobsets, &gone);
    }
    assert_eq!(names(&departed.of(&present)), [] as [&str; 0]);
    // The known JobSet may be older than the Job, but not newer.
    departed.put(&jobsets, &job("o", 2, 1, "Complete"));
    assert_eq!(names(&departed.of(&present)), [] as [&str; 0]);
    let mut later = present.clone();
    later.status.get_or_insert_default().restarts = 1;
    assert_eq!(names(&departed.of(&later)), ["js-a-2"]);
    later.status.get_or_insert_default().restarts = 2;
    assert_eq!(names(&departed.of(&later)), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_kept_than_fit() {
    let present = jobset("o");
    let (jobsets, _writer) = store(&present);
    let departed = Departed::default();
    for _ in 0..MOST + 10 {
        departed.put(&jobsets, &job("o", 0, 0, "Complete"));
    }
    assert_eq!(departed.locked().len(), MOST);
}
