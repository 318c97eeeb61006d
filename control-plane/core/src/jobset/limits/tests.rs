use lockstep_api::{RestartStrategy, annotations};

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job};

fn with_pods(name: &str, replicas: i32, pods: i32) -> ReplicatedJob {
    replicated_job(name, replicas).job_spec(|spec| {
        spec.parallelism = Some(pods);
        spec.completions = Some(pods);
    })
}

#[track_caller]
fn says(jobset: &JobSet, expected: &str) {
    let said = violation(jobset).map(|violation| violation.to_string());
    assert_eq!(said.as_deref(), Some(expected));
}

#[test]
fn the_largest_jobset_is_taken_and_one_more_is_not() {
    assert_eq!(violation(&jobset([replicated_job("a", 20_000)])), None);
    says(
        &jobset([replicated_job("a", 20_001)]),
        "spec.replicatedJobs[0].replicas: Invalid value: 20001: a JobSet may have at most 20000 Jobs",
    );
    assert_eq!(violation(&jobset([with_pods("a", 1, 100_000)])), None);
    says(
        &jobset([with_pods("a", 60, 100_000)]),
        "spec.replicatedJobs[0].template.spec.parallelism: Invalid value: 100000: 60 x 100000 pods are 6000000 workers, but a \
         JobSet may have at most 100000",
    );
    says(
        &jobset([with_pods("a", 20_000, 6)]),
        "spec.replicatedJobs[0].replicas: Invalid value: 20000: 20000 x 6 pods are 120000 workers, but a JobSet may have at most \
         100000",
    );
}

#[test]
fn all_replicated_jobs_count_together_and_the_one_that_is_too_much_is_named() {
    says(
        &jobset([replicated_job("a", 15_000), replicated_job("b", 5_001)]),
        "spec.replicatedJobs[1].replicas: Invalid value: 5001: a JobSet may have at most 20000 Jobs; the replicatedJobs before \
         this one have 15000",
    );
    let many = (0..1_001).map(|index| replicated_job(&format!("j{index}"), 0));
    says(
        &jobset(many),
        "spec.replicatedJobs: Invalid value: 1001: a JobSet may have at most 1000 replicatedJobs",
    );
}

#[test]
fn no_large_number_overflows_to_a_small_one() {
    let many = (0..1_000).map(|index| with_pods(&format!("j{index}"), i32::MAX, i32::MAX));
    let huge = jobset(many);
    let size = Size::of(&huge);
    assert_eq!((size.jobs, size.workers), (1_000 * (i32::MAX as u64), u64::MAX));
    assert!(is_over(&huge));
    let none = jobset([with_pods("a", i32::MIN, i32::MIN), with_pods("b", -1, i32::MAX)]);
    assert_eq!(violation(&none), None);
    assert_eq!((Size::of(&none).jobs, Size::of(&none).workers), (0, 0));
}

#[test]
fn completions_and_containers_count_if_workers_restart_in_place() {
    let queue = replicated_job("a", 1).job_spec(|spec| {
        spec.parallelism = Some(10);
        spec.completions = Some(1_000_000);
    });
    let queue = jobset([queue]);
    assert_eq!(violation(&queue), None, "ten pods at a time");
    says(
        &queue.restarting(RestartStrategy::InPlaceRestart, 1),
        "spec.replicatedJobs[0].template.spec.completions: Invalid value: 1000000: 1 x 1000000 pods are 1000000 workers, but a \
         JobSet may have at most 100000",
    );

    let two = with_pods("a", 1, 60_000).pod_spec(|pod| {
        let mut second = pod.containers[0].clone();
        second.name = "sidecar".to_owned();
        pod.containers.push(second);
    });
    let two = jobset([two]);
    assert_eq!(violation(&two), None);
    let two = two.restarting(RestartStrategy::InPlaceRestart, 1);
    says(
        &two,
        "spec.replicatedJobs[0].template.spec.parallelism: Invalid value: 60000: 1 x 60000 pods with 2 worker containers are \
         120000 workers, but a JobSet may have at most 100000",
    );
    assert_eq!(violation(&two.annotated(annotations::SUPERVISE, "worker")), None);
}

#[test]
fn a_change_is_refused_for_what_it_raises_and_for_nothing_else() {
    let of = |jobs: i32, pods: i32| jobset([with_pods("a", jobs, pods)]);
    assert_eq!(raised(&of(1, 1), &of(20_000, 1)), None);
    assert!(raised(&of(1, 1), &of(20_001, 1)).is_some());
    // It was too large before.
    let before = of(30_000, 10);
    assert_eq!(raised(&before, &before.clone().suspended(true)), None);
    assert_eq!(
        raised(&before, &of(29_000, 10)),
        None,
        "lower, and still too large"
    );
    assert!(
        raised(&before, &of(30_001, 1)).is_some(),
        "fewer workers, and more Jobs"
    );
    assert!(raised(&before, &of(1, 300_001)).is_some());
}
