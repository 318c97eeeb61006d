use lockstep_api::SuccessPolicy;

use super::*;
use crate::common::features::Features;
use crate::common::testing::{Fate, JobSetBuild, child, jobset, observe, replicated_job};
use crate::jobset::children::Children;
use crate::jobset::status;

/// True if the policy is met when these Jobs of `a` (2 Jobs) and `b` (1 Job) have succeeded.
fn met(operator: &str, targets: &[&str], succeeded: &[(&str, i32)]) -> bool {
    let js = jobset([replicated_job("a", 2), replicated_job("b", 1)]).with(|js| {
        js.spec.success_policy = Some(SuccessPolicy {
            operator: operator.into(),
            target_replicated_jobs: targets.iter().map(|target| (*target).to_owned()).collect(),
        });
    });
    let jobs = [("a", 0), ("a", 1), ("b", 0)].map(|job| {
        let fate = if succeeded.contains(&job) {
            Fate::Succeeded
        } else {
            Fate::Ready
        };
        child(&js, job.0, job.1, fate)
    });
    let observed = observe(&js, jobs);
    is_met(
        &js,
        &status::replicated_jobs(&js, &Children::sort(&observed), &Features::default()),
        &[],
    )
}

#[test]
fn all_counts_every_job_of_the_targets() {
    assert!(!met("All", &[], &[("a", 0), ("a", 1)]));
    assert!(met("All", &[], &[("a", 0), ("a", 1), ("b", 0)]));
    assert!(!met("All", &["a"], &[("a", 0), ("b", 0)]));
    assert!(met("All", &["a"], &[("a", 0), ("a", 1)]));
}

#[test]
fn any_takes_one_job_of_the_targets() {
    assert!(met("Any", &[], &[("b", 0)]));
    assert!(!met("Any", &["a"], &[("b", 0)]));
    assert!(met("Any", &["a", "b"], &[("b", 0)]));
}

#[test]
fn without_a_policy_all_jobs_must_succeed() {
    let js = jobset([replicated_job("a", 2)]);
    let met = |fates: [Fate; 2]| {
        let observed = observe(&js, [child(&js, "a", 0, fates[0]), child(&js, "a", 1, fates[1])]);
        is_met(
            &js,
            &status::replicated_jobs(&js, &Children::sort(&observed), &Features::default()),
            &[],
        )
    };
    assert!(!met([Fate::Succeeded, Fate::Ready]));
    assert!(met([Fate::Succeeded, Fate::Succeeded]));
}
