use super::*;
use crate::common::testing::{ReplicatedJobBuild, jobset, replicated_job};

#[test]
fn a_target_names_workers_of_the_jobset_or_says_what_there_is_not() {
    let wide = replicated_job("b", 2).job_spec(|spec| {
        spec.parallelism = Some(3);
        spec.completions = Some(3);
    });
    let js = jobset([replicated_job("a", 1), wide]);
    let name_of = |target: &str| {
        let target: Target = target.parse().unwrap();
        let found = find(&target, &js);
        found
            .map(|job| job.name.clone())
            .map_err(|none| format!("{}: {}", none.field, none.what))
    };
    for target in [
        "replicatedJob/b",
        "job/js-b-1",
        "worker/js-b-0/2",
        "worker/js-b-0/2/worker",
    ] {
        assert_eq!(name_of(target), Ok("b".to_owned()), "{target}");
    }
    for (target, error) in [
        ("replicatedJob/c", "replicated_job: replicatedJob c"),
        ("job/js-b-2", "job: Job js-b-2"),
        ("job/js-b", "job: Job js-b"),
        ("job/js-b-01", "job: Job js-b-01"),
        ("worker/js-c-0/0", "worker.job: Job js-c-0"),
        (
            "worker/js-b-0/3",
            "worker.completion_index: worker 3 in Job js-b-0, but 3",
        ),
        (
            "worker/js-b-0/0/other",
            "worker.container: worker in a container other of Job js-b-0",
        ),
    ] {
        assert_eq!(name_of(target), Err(error.to_owned()), "{target}");
    }
}
