use super::*;
use crate::testing::{Fate, ReplicatedJobBuild, child, jobset, observe, replicated_job};

/// A JobSet of `a` with this parallelism and completions, and its Job as it was made with one pod.
fn scaled(parallelism: Option<i32>, completions: Option<i32>, fate: Fate) -> Vec<Change> {
    let before = jobset([replicated_job("a", 1)]);
    let job = child(&before, "a", 0, fate);
    let after = jobset([replicated_job("a", 1).job_spec(|spec| {
        spec.parallelism = parallelism;
        spec.completions = completions;
    })]);
    let observed = observe(&after, [job]);
    let changes = changes(&after, &Children::sort(&observed));
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
