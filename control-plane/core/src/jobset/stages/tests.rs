use lockstep_api::{DependsOn, DependsOnStatus};

use super::*;
use crate::common::testing::{JobSetBuild, jobset, replicated_job};

fn with_counts(jobset: JobSet, ready: &[(&str, i32)]) -> JobSet {
    jobset.status(|status| {
        status.replicated_jobs_status = ready
            .iter()
            .map(|(name, ready)| ReplicatedJobStatus {
                name: (*name).to_owned(),
                ready: *ready,
                ..ReplicatedJobStatus::default()
            })
            .collect();
    })
}

#[test]
fn a_set_without_an_order_has_stages_that_wait_for_nothing() {
    let js = jobset([replicated_job("a", 2), replicated_job("b", 1)]);
    let stages = stages(&js);
    let seen: Vec<_> = stages
        .iter()
        .map(|stage| (stage.name, stage.expected, stage.has_started()))
        .collect();
    assert_eq!(seen, [("a", 2, false), ("b", 1, false)]);
    assert!(stages.iter().all(|stage| stage.depends_on.is_empty()));
}

#[test]
fn what_a_stage_waits_for_is_named_with_whether_it_has_come() {
    let mut worker = replicated_job("worker", 2);
    worker.depends_on.push(DependsOn {
        name: "server".into(),
        status: DependsOnStatus::Ready,
    });
    let js = jobset([replicated_job("server", 1), worker]);
    for (ready, reached) in [(0, false), (1, true)] {
        let js = with_counts(js.clone(), &[("worker", 0), ("server", ready)]);
        let stages = stages(&js);
        let dependency = Dependency {
            on: "server",
            until: Milestone::Ready,
            reached,
        };
        assert_eq!(stages[1].depends_on, [dependency]);
        assert_eq!(stages[0].has_started(), reached);
        assert!(!stages[1].has_started());
    }
}

#[test]
fn the_order_of_a_startup_policy_is_shown_as_dependencies_too() {
    let js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1),
        replicated_job("c", 1),
    ])
    .in_order();
    let seen = |js: &JobSet| -> Vec<Vec<(String, bool)>> {
        let named = |dependency: &Dependency<'_>| (dependency.on.to_owned(), dependency.reached);
        let all = stages(js);
        all.iter()
            .map(|stage| stage.depends_on.iter().map(named).collect())
            .collect()
    };
    let js = with_counts(js, &[("a", 1)]);
    assert_eq!(
        seen(&js),
        [vec![], vec![("a".into(), true)], vec![("b".into(), false)]]
    );
    // It also waits for the stages before the previous one.
    let js = with_counts(js, &[("a", 0), ("b", 1)]);
    assert_eq!(
        seen(&js),
        [vec![], vec![("a".into(), false)], vec![("b".into(), false)]]
    );
}
