use super::*;
use crate::common::testing::{Fate, ReplicatedJobBuild, child, jobset, observe, replicated_job};

/// A JobSet of `a` with this parallelism and completions, and its Job as created with one pod.
fn scaled(parallelism: Option<i32>, completions: Option<i32>, fate: Fate) -> Vec<Change> {
    let before = jobset([replicated_job("a", 1)]);
    let job = child(&before, "a", 0, fate);
    let after = jobset([replicated_job("a", 1).job_spec(|spec| {
        spec.parallelism = parallelism;
        spec.completions = completions;
    })]);
    let observed = observe(&after, [job]);
    let changes = changes(
        &after,
        &Children::sort(&observed.jobset, &observed.jobs, observed.features),
    );
    changes.into_iter().map(|change| change.change).collect()
}

#[test]
fn an_active_job_follows_the_jobset() {
    assert_eq!(scaled(Some(3), Some(3), Fate::Ready), [Change::Scale(3)]);
    assert_eq!(scaled(Some(1), Some(1), Fate::Ready), []);
}

#[test]
fn numbers_that_differ_or_are_missing_change_nothing() {
    assert_eq!(scaled(Some(3), Some(4), Fate::Ready), []);
    assert_eq!(scaled(None, None, Fate::Ready), []);
    assert_eq!(scaled(Some(3), None, Fate::Ready), []);
}

#[test]
fn a_finished_job_stays_as_it_is() {
    assert_eq!(scaled(Some(3), Some(3), Fate::Succeeded), []);
}

/// The same JobSet, but for a RayCluster.
fn of_ray(mut jobset: JobSet) -> JobSet {
    jobset.metadata.owner_references = Some(vec![
        k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
            api_version: "ray.io/v1".to_owned(),
            kind: "RayCluster".to_owned(),
            controller: Some(true),
            ..Default::default()
        },
    ]);
    jobset
}

#[test]
fn a_group_of_a_ray_cluster_without_workers_has_no_job() {
    let before = jobset([replicated_job("a", 1)]);
    let job = child(&before, "a", 0, Fate::Ready);
    let after = jobset([replicated_job("a", 0)]);
    let observed = observe(&after, [job]);
    let children = Children::sort(&observed.jobset, &observed.jobs, observed.features);
    assert_eq!(surplus(&after, &children), []);
    let after = of_ray(after);
    let names: Vec<String> = surplus(&after, &children)
        .into_iter()
        .map(|job| job.name)
        .collect();
    assert_eq!(names, ["js-a-0"]);
    assert_eq!(surplus(&of_ray(before), &children), []);
}

#[test]
fn only_the_gate_or_a_ray_cluster_makes_a_jobset_elastic() {
    let js = jobset([replicated_job("a", 1)]);
    let on = Features {
        elastic_jobset: true,
        ..Features::default()
    };
    assert!(!is_elastic(&js, &Features::default()) && is_elastic(&js, &on));
    assert!(is_elastic(&of_ray(js), &Features::default()));
}
