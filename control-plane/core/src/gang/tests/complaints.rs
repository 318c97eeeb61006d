//! Complaints of Volcano's users, by the number of the issue.

use lockstep_api::{ExecutionPolicy, ExecutionPolicyOrder, GangPhase, ReplicatedJobsStatus};

use super::model::{Model, gang, part};
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild};
use crate::gang::GangEvent;

/// 1755: the minimum of each task counts, not only that of the whole job.
#[test]
fn issue_1755_the_minimum_of_each_replicated_job_counts() {
    for pod_groups in [false, true] {
        // There is room for 5 pods in all, and the minimum is 5: 3 of one and 2 of the other.
        let mut model = Model::new(&[5]);
        model.run_time = 1000;
        let parts = vec![part("m", 1, 5, 1), part("w", 1, 3, 1)];
        model.create(gang("a", parts, &[("m", 3), ("w", 2)]), 0, pod_groups);
        model.run(10);
        let bound = |name: &str| {
            let pods = model.pods_of("a");
            pods.iter()
                .filter(|pod| pod.replicated_job == name && pod.node.is_some())
                .count()
        };
        assert_eq!((bound("m"), bound("w")), (3, 2));
    }
}

/// 2462 and 3373: waiting gangs hold no nodes, and do not block each other forever.
#[test]
fn issues_2462_and_3373_no_part_of_a_gang_holds_nodes() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4, 4]);
        model.run_time = 30;
        for name in ["a", "b", "c"] {
            model.create(gang(name, vec![part("w", 1, 6, 1)], &[]), 0, pod_groups);
        }
        for _ in 0..200 {
            model.step();
            let held: Vec<usize> = ["a", "b", "c"].iter().map(|name| model.bound(name)).collect();
            assert!(held.iter().all(|bound| [0, 6].contains(bound)), "{held:?}");
        }
        assert!(["a", "b", "c"].iter().all(|name| model.is_completed(name)));
    }
}

/// 2944, 2130 and 2226: a task that depends on another is not created yet. The gang of the other
/// must not wait for it.
#[test]
fn issues_2944_2130_and_2226_what_is_not_created_is_not_waited_for() {
    for (pod_groups, status) in [(false, "Ready"), (true, "Ready"), (false, "Complete")] {
        let mut model = Model::new(&[4]);
        let parts = vec![
            part("m", 1, 3, 1),
            part("w", 1, 2, 1).depends_on("m", status),
            part("z", 1, 1, 1).depends_on("w", "Complete"),
        ];
        model.create(gang("a", parts, &[("m", 2), ("w", 1)]), 0, pod_groups);
        model.run(6);
        assert_eq!(model.phase("a", "m"), Some(GangPhase::Scheduled));
        model.finish(100);
        let scheduled = model
            .events
            .iter()
            .filter(|(_, _, event, _)| matches!(event, GangEvent::Scheduled(_)));
        assert_eq!(scheduled.count(), 3, "each stage is a gang of its own");
    }
}

/// The same with an execution policy: each replicatedJob is a stage.
#[test]
fn what_an_execution_policy_has_not_created_is_not_waited_for() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4]);
        let parts = vec![part("m", 1, 3, 1), part("w", 1, 2, 1)];
        let jobset = gang("a", parts, &[("m", 2), ("w", 1)]).with(|js| {
            js.spec.execution_policy = Some(ExecutionPolicy {
                execution_policy_order: Some(ExecutionPolicyOrder::InOrder),
                replicated_jobs_status: Some(ReplicatedJobsStatus::Succeeded),
            });
        });
        model.create(jobset, 0, pod_groups);
        model.run(3);
        assert_eq!(model.phase("a", "m"), Some(GangPhase::Scheduled));
        assert!(model.pods_of("a").iter().all(|pod| pod.replicated_job == "m"));
        model.finish(100);
        assert!(model.is_completed("a"));
        let scheduled = model
            .events
            .iter()
            .filter(|(_, _, event, _)| matches!(event, GangEvent::Scheduled(_)));
        assert_eq!(scheduled.count(), 2, "each stage is a gang of its own");
    }
}

/// A stage is ready at its minimum although its optional workers have no room.
#[test]
fn a_stage_is_ready_at_its_minimum() {
    let mut model = Model::new(&[3]);
    model.run_time = 1000;
    let parts = vec![part("m", 1, 3, 1), part("w", 1, 1, 1).depends_on("m", "Ready")];
    model.create(gang("a", parts, &[("m", 2)]), 0, false);
    // Another user takes the room that is left after the minimum.
    *model.nodes.get_mut("n0").unwrap() = 2;
    model.run(6);
    assert_eq!(model.phase("a", "m"), Some(GangPhase::Scheduled));
    assert_eq!(
        model.phase("a", "w"),
        Some(GangPhase::Waiting),
        "{}",
        model.describe()
    );
}

/// 5805: a bound gang that has lost pods with a node gets them back when there is a node again.
#[test]
fn issue_5805_a_gang_goes_on_after_a_node_is_repaired() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4, 4]);
        model.run_time = 1000;
        model.create(gang("a", vec![part("w", 1, 8, 1)], &[]), 0, pod_groups);
        model.run(5);
        assert_eq!(model.bound("a"), 8);
        let lost: Vec<String> = model
            .pods_of("a")
            .iter()
            .filter(|pod| pod.node.as_deref() == Some("n1"))
            .map(|pod| pod.uid.clone())
            .collect();
        *model.nodes.get_mut("n1").unwrap() = 0;
        lost.iter().for_each(|uid| model.lose(uid));
        model.run(100);
        assert_eq!(model.bound("a"), 8 - lost.len(), "healthy pods stay");
        assert_eq!(model.phase("a", "w"), Some(GangPhase::Scheduled));
        *model.nodes.get_mut("n1").unwrap() = 4;
        model.run(3);
        assert_eq!(model.bound("a"), 8);
    }
}

/// Optional workers that never start block nothing.
#[test]
fn optional_workers_that_never_start_do_not_keep_the_jobset_from_completing() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[3]);
        let parts = vec![
            part("w", 2, 2, 1),
            part("after", 1, 1, 1).depends_on("w", "Complete"),
        ];
        model.create(gang("a", parts, &[("w", 3)]), 0, pod_groups);
        // Nothing else may run there once the minimum runs.
        model.run(4);
        *model.nodes.get_mut("n0").unwrap() = 1;
        let optional = model.pods_of("a").into_iter().find(|pod| pod.node.is_none());
        assert!(optional.is_some());
        let status = |model: &Model| model.clusters["a"].jobset.status.clone().unwrap();
        assert!(status(&model).is_true("MinAvailable"));
        *model.nodes.get_mut("n0").unwrap() = 0;
        for _ in 0..12 {
            model.step();
        }
        *model.nodes.get_mut("n0").unwrap() = 1;
        model.finish(60);
    }
}
