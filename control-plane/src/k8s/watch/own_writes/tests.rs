use k8s_openapi::api::batch::v1::Job;

use super::*;

fn key() -> ObjectRef<JobSet> {
    ObjectRef::new("js").within("ns")
}

fn job(name: &str, version: &str) -> Arc<Job> {
    let mut job = Job::default();
    job.metadata.name = Some(name.to_owned());
    job.metadata.resource_version = Some(version.to_owned());
    Arc::new(job)
}

fn complete(recent: &OwnWrites<Job>, seen: &[(&str, &str)]) -> (Vec<(String, u64)>, bool) {
    let seen = seen.iter().map(|(name, version)| job(name, version)).collect();
    let (jobs, unconfirmed) = recent.complete(&key(), seen);
    let mut jobs: Vec<_> = jobs
        .iter()
        .map(|job| (job.metadata.name.clone().unwrap(), version(&job.metadata)))
        .collect();
    jobs.sort();
    (jobs, unconfirmed)
}

fn of(jobs: &[(&str, u64)]) -> Vec<(String, u64)> {
    jobs.iter()
        .map(|(name, version)| ((*name).to_owned(), *version))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn own_writes_are_seen_until_the_watch_knows_better() {
    let recent = OwnWrites::default();
    recent.put(key(), job("a", "10"));
    recent.put(key(), job("a", "9"));
    assert_eq!(complete(&recent, &[]), (of(&[("a", 10)]), true));
    assert_eq!(
        complete(&recent, &[("a", "9"), ("b", "1")]),
        (of(&[("a", 10), ("b", 1)]), true)
    );
    assert_eq!(complete(&recent, &[("a", "10")]), (of(&[("a", 10)]), false));
    assert_eq!(complete(&recent, &[]), (of(&[]), false));
}

#[tokio::test(start_paused = true)]
async fn what_the_watch_shows_confirms_or_refutes_a_write() {
    let recent = OwnWrites::default();
    recent.put(key(), job("a", "10"));
    recent.confirm(&key(), &job("b", "20"));
    recent.confirm(&key(), &job("a", "9"));
    assert_eq!(complete(&recent, &[]), (of(&[("a", 10)]), true));
    // The watch has shown the Job, or its deletion, at a later version.
    recent.confirm(&key(), &job("a", "11"));
    assert_eq!(complete(&recent, &[]), (of(&[]), false));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_watch_never_shows_is_not_believed_for_ever() {
    let recent = OwnWrites::default();
    recent.put(key(), job("a", "10"));
    tokio::time::advance(BELIEVED).await;
    assert_eq!(complete(&recent, &[]), (of(&[]), false));
}
