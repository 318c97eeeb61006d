//! Gangs of clusters with groups that come and go.

use super::*;
use crate::admission;
use crate::common::features::Features;
use crate::common::testing::Cluster;

/// A cluster with a gang without a minimum, and a group of this many workers. Its JobSet has the
/// defaults of the webhook for JobSets.
fn completed(replicas: i32) -> World {
    let mut stated = cluster(json!({"gang": {}}));
    stated.spec.worker_group_specs[0].replicas = Some(replicas);
    stated.spec.worker_group_specs[0].min_replicas = Some(0);
    let mut world = World::new(stated);
    world.settle();
    admission::default(world.jobset.as_mut().unwrap());
    world
}

#[test]
fn a_group_may_become_smaller_than_it_was_at_first_and_larger_again() {
    for first in [2, 0] {
        let mut world = completed(first);
        let stated = world.jobset.as_ref().unwrap().spec.gang.clone();
        assert_eq!(stated.as_ref().unwrap().min_available, Some(first + 1));
        for replicas in [0, 3, 1] {
            world.cluster.spec.worker_group_specs[0].replicas = Some(replicas);
            let before = world.jobset.clone().unwrap();
            world.settle();
            let after = world.jobset.as_ref().unwrap();
            assert_eq!(after.replicated_job("small").unwrap().pods(), replicas);
            let refused = admission::validate_update(&before, after, &Features::default());
            assert_eq!(refused, [], "{first} to {replicas}");
            assert_eq!(after.spec.gang, stated);
        }
    }
}

#[test]
fn minimums_of_a_jobset_that_is_no_clusters_still_hold_it_back() {
    let features = Features {
        elastic_jobset: true,
        ..Features::default()
    };
    let mut world = completed(2);
    let mut before = world.jobset.take().unwrap();
    before.metadata.owner_references = None;
    before.spec.failure_policy = None;
    let mut after = before.clone();
    let job = &mut after.spec.replicated_jobs[1].template.spec;
    let job = job.as_mut().unwrap();
    (job.parallelism, job.completions) = (Some(1), Some(1));
    let refused = admission::validate_update(&before, &after, &features);
    assert!(
        refused
            .iter()
            .any(|violation| violation.field.starts_with("spec.gang")),
        "{refused:?}"
    );
}

#[test]
fn jobs_that_are_recreated_after_a_group_was_scaled_are_not_refused() {
    let mut world = completed(2);
    let mut run = Cluster::new(world.jobset.clone().unwrap());
    run.settle();
    assert_eq!(run.job_names(), ["rc-head-0"]);
    world.cluster.spec.worker_group_specs[0].replicas = Some(0);
    world.settle();
    run.jobset.spec = world.jobset.unwrap().spec;
    run.jobs.clear();
    run.settle();
    let status = run.jobset.status.as_ref().unwrap();
    assert!(status.condition("Failed").is_none(), "{:?}", status.conditions);
    assert_eq!(run.job_names(), ["rc-head-0"]);
}
