//! Gangs whose number of pods changes while their JobSet runs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use lockstep_api::GangPhase;

use super::model::{Model, gang, part};
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild};
use crate::gang::GroupPolicy;

fn replicas(model: &mut Model, replicas: i32) {
    model.spec_of("a").replicated_jobs[1].replicas = Some(replicas);
}

/// A worker group of a RayCluster had no workers for a while: its new workers start together.
#[test]
fn a_replicated_job_that_had_no_pods_starts_together_again() {
    for (pod_groups, dies) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut model = Model::new(&[5]);
        model.run_time = 1000;
        let parts = vec![part("m", 1, 1, 1), part("w", 1, 4, 1).depends_on("m", "Ready")];
        let jobset = gang("a", parts, &[]).with(|js| {
            js.metadata.owner_references = Some(vec![OwnerReference {
                api_version: "ray.io/v1".to_owned(),
                kind: "RayCluster".to_owned(),
                controller: Some(true),
                ..OwnerReference::default()
            }]);
        });
        model.create(jobset, 0, pod_groups);
        model.run(8);
        assert_eq!(model.bound("a"), 5, "{}", model.describe());
        replicas(&mut model, 0);
        if dies {
            // The Job is deleted, and the status is not written before the group has workers again.
            let cluster = model.clusters.get_mut("a").unwrap();
            assert!(!cluster.reconcile_until_killed(1));
        } else {
            model.run(3);
            assert_eq!(model.bound("a"), 1);
            assert_eq!(model.phase("a", "w"), None);
        }
        // Another pod has taken the room.
        *model.nodes.get_mut("n0").unwrap() = 4;
        replicas(&mut model, 1);
        model.run(10);
        assert_eq!(model.bound("a"), 1, "{}", model.describe());
        assert_eq!(model.phase("a", "w"), Some(GangPhase::Waiting));
        assert_eq!(model.phase("a", "m"), Some(GangPhase::Scheduled));
        *model.nodes.get_mut("n0").unwrap() = 5;
        model.run(5);
        assert_eq!(model.bound("a"), 5, "{}", model.describe());
        assert_eq!(model.clusters["a"].jobset.restart_attempt(), 0);
    }
}

/// The template of a Job without optional workers names the PodGroup, and so do its additional
/// pods. kube-scheduler does not count ended pods.
#[test]
fn a_pod_that_comes_to_a_pod_group_of_which_some_have_ended_starts() {
    let mut model = Model::new(&[8]);
    model.run_time = 1000;
    let mut jobset = gang("a", vec![part("m", 1, 1, 1), part("w", 1, 3, 1)], &[("w", 3)]);
    jobset.spec.gang.as_mut().unwrap().min_available = Some(4);
    model.create(jobset, 0, true);
    model.clusters.get_mut("a").unwrap().features.elastic_jobset = true;
    model.run(5);
    assert_eq!(model.bound("a"), 4);
    let of_w = model
        .pods_of("a")
        .into_iter()
        .filter(|pod| pod.replicated_job == "w");
    for pod in of_w.take(2) {
        let status = model.pods.get_mut(&pod.uid).unwrap().status.as_mut().unwrap();
        status.phase = Some("Succeeded".to_owned());
    }
    model.run(2);
    assert_eq!(model.bound("a"), 2);
    model.spec_of("a").replicated_jobs[1] = part("w", 1, 4, 1);
    model.run(5);
    assert_eq!(model.bound("a"), 3, "{}", model.describe());
    let policies: Vec<GroupPolicy> = model.groups.values().map(|group| group.policy).collect();
    assert_eq!(policies, [GroupPolicy::Basic]);
}
