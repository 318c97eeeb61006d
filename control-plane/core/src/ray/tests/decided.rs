//! Decisions about a cluster, and its status.

use lockstep_api::annotations::SUPERVISE;
use lockstep_api::ray::{CONTROLLER_NAME, conditions, keys};

use super::*;

/// A cluster that runs and is ready.
fn running() -> World {
    let mut world = World::new(cluster(json!({})));
    world.settle();
    world.ready = [1, 2];
    world.settle();
    world
}

fn reasons(plan: &ClusterPlan) -> Vec<&str> {
    plan.events.iter().map(|event| event.reason.as_str()).collect()
}

#[test]
fn a_new_cluster_gets_its_service_then_its_jobset() {
    let world = World::new(cluster(json!({})));
    let plan = world.plan();
    assert!(plan.create_service.is_some() && plan.create_jobset.is_some());
    assert_eq!(reasons(&plan), ["CreatedService", "CreatedJobSet"]);
    assert_eq!(plan.status.unwrap().state, None);
}

#[test]
fn it_is_ready_when_all_pods_have_been() {
    let mut world = World::new(cluster(json!({})));
    world.settle();
    assert_eq!(world.state(), "");
    world.ready = [1, 0];
    world.settle();
    assert!(world.is_true(conditions::HEAD_POD_READY) && !world.is_true(conditions::PROVISIONED));
    world.ready = [1, 2];
    world.settle();
    assert_eq!(world.state(), "ready");
    assert!(world.is_true(conditions::PROVISIONED));
    // It stays provisioned; a pod that is away for a while changes only the numbers.
    world.ready = [1, 1];
    world.settle();
    assert_eq!(world.state(), "ready");
    let status = world.cluster.status.as_ref().unwrap();
    assert_eq!(
        (status.ready_worker_replicas, status.desired_worker_replicas),
        (1, 2)
    );
    assert_eq!((status.min_worker_replicas, status.max_worker_replicas), (1, 5));
    assert_eq!(
        (status.desired_cpu.as_str(), status.desired_memory.as_str()),
        ("3", "12Gi")
    );
    assert_eq!(status.endpoints["dashboard"], "8265");
    assert_eq!(status.head.service_name, "rc-head-svc");
}

#[test]
fn replicas_that_change_scale_the_running_jobset_and_nothing_else() {
    let mut world = running();
    for (replicas, pods) in [(5, 5), (9, 5), (1, 1), (0, 1)] {
        world.cluster.spec.worker_group_specs[0].replicas = Some(replicas);
        world.settle();
        let jobset = world.jobset.as_ref().unwrap();
        assert_eq!(jobset.replicated_job("small").unwrap().pods(), pods, "{replicas}");
        assert!(!world.is_true(conditions::PROVISIONED) || world.state() == "ready");
    }
}

#[test]
fn a_group_goes_to_no_workers_and_back() {
    let mut world = running();
    world.cluster.spec.worker_group_specs[0].min_replicas = Some(0);
    for (replicas, jobs) in [(0, 0), (3, 1)] {
        world.cluster.spec.worker_group_specs[0].replicas = Some(replicas);
        world.settle();
        let group = world
            .jobset
            .as_ref()
            .unwrap()
            .replicated_job("small")
            .unwrap()
            .clone();
        assert_eq!((group.pods(), group.replicas()), (replicas, jobs));
    }
}

#[test]
fn a_suspended_group_has_no_workers_whatever_else_is_set() {
    let mut world = running();
    for (suspended, pods, least) in [(true, 0, 0), (false, 2, 1)] {
        world.cluster.spec.worker_group_specs[0].suspend = Some(suspended);
        world.settle();
        let group = world.jobset.as_ref().unwrap().replicated_job("small").unwrap();
        assert_eq!((group.pods(), group.replicas()), (pods, i32::from(pods > 0)));
        let status = world.cluster.status.as_ref().unwrap();
        assert_eq!(
            (status.desired_worker_replicas, status.min_worker_replicas),
            (pods, least)
        );
        assert!(
            !world.is_true(conditions::CHANGES_PENDING) && !world.is_true(conditions::UNSUPPORTED_FIELDS)
        );
    }
}

#[test]
fn each_replica_has_so_many_hosts() {
    let mut stated = cluster(json!({}));
    stated.spec.worker_group_specs[0].num_of_hosts = Some(4);
    let mut world = World::new(stated);
    world.settle();
    let status = world.cluster.status.as_ref().unwrap();
    assert_eq!(
        (status.desired_worker_replicas, status.min_worker_replicas),
        (8, 4)
    );
}

#[test]
fn other_changes_wait_for_a_suspension_and_say_so() {
    let mut world = running();
    world.cluster.spec.head_group_spec.ray_start_params =
        Some([("num-cpus".to_owned(), "9".to_owned())].into());
    let plan = world.plan();
    assert!(plan.update_jobset.is_none() && plan.delete_jobset.is_none());
    assert_eq!(reasons(&plan), [conditions::CHANGES_PENDING]);
    world.settle();
    assert!(world.is_true(conditions::CHANGES_PENDING));
    world.cluster.spec.suspend = Some(true);
    world.settle();
    world.cluster.spec.suspend = Some(false);
    world.settle();
    assert!(!world.is_true(conditions::CHANGES_PENDING));
    assert!(command(world.jobset.as_ref().unwrap(), "head").contains("--num-cpus=9"));
}

#[test]
fn a_gang_and_annotations_that_change_wait_for_a_suspension_and_say_so() {
    let gang = |world: &mut World| {
        world.cluster.spec.gang = Some(serde_json::from_value(json!({"scheduleTimeoutSeconds": 5})).unwrap());
    };
    let annotation = |world: &mut World| {
        let stated = [("lockstep.dev/restart-grace".to_owned(), "5s".to_owned())];
        world.cluster.metadata.annotations = Some(stated.into());
    };
    let changes: [&dyn Fn(&mut World); 2] = [&gang, &annotation];
    for change in changes {
        let mut world = running();
        change(&mut world);
        world.settle();
        assert!(world.is_true(conditions::CHANGES_PENDING) && world.state() == "ready");
        world.cluster.spec.suspend = Some(true);
        world.settle();
        world.cluster.spec.suspend = Some(false);
        world.settle();
        assert!(!world.is_true(conditions::CHANGES_PENDING));
        // If a JobSet does not record its source, no change of the source is known.
        let mut world = running();
        let annotations = world.jobset.as_mut().unwrap().metadata.annotations.as_mut();
        assert!(annotations.unwrap().remove(keys::SETTINGS_DIGEST).is_some());
        change(&mut world);
        assert_eq!(world.plan(), ClusterPlan::default());
    }
    // Foreign annotations and numbers of workers are not such a change.
    let mut world = running();
    world.cluster.metadata.annotations = Some([("example.com/a".to_owned(), "b".to_owned())].into());
    world.cluster.spec.worker_group_specs[0].replicas = Some(3);
    world.settle();
    assert!(!world.is_true(conditions::CHANGES_PENDING));
}

#[test]
fn a_jobset_from_before_its_workers_were_listed_runs_on_as_it_is() {
    let mut world = running();
    let annotations = world.jobset.as_mut().unwrap().metadata.annotations.as_mut();
    assert!(annotations.unwrap().remove(SUPERVISE).is_some());
    assert_eq!(world.plan(), ClusterPlan::default());
    // Scaling does not add the annotation either: the running pods were created without it.
    world.cluster.spec.worker_group_specs[0].replicas = Some(3);
    world.settle();
    assert_eq!(world.jobset.as_ref().unwrap().annotation(SUPERVISE), None);
    assert!(!world.is_true(conditions::CHANGES_PENDING));
}

#[test]
fn a_suspension_deletes_the_jobset_and_is_over_when_that_is_gone() {
    let mut world = running();
    world.cluster.spec.suspend = Some(true);
    let plan = world.plan();
    assert_eq!(plan.delete_jobset.as_ref().unwrap().uid, "uid-js");
    let status = plan.status.as_ref().unwrap();
    assert!(status.is_true(conditions::SUSPENDING) && !status.is_true(conditions::SUSPENDED));
    world.settle();
    assert_eq!(world.state(), "suspended");
    assert!(world.is_true(conditions::SUSPENDED) && !world.is_true(conditions::SUSPENDING));
    world.cluster.spec.suspend = None;
    world.settle();
    assert!(world.jobset.is_some() && !world.is_true(conditions::SUSPENDED));
    assert_eq!(world.state(), "");
}

#[test]
fn a_cluster_that_starts_suspended_makes_nothing() {
    let mut world = World::new(cluster(json!({"suspend": true})));
    let plan = world.plan();
    assert!(plan.create_jobset.is_none() && plan.create_service.is_none());
    world.settle();
    assert_eq!(world.state(), "suspended");
}

#[test]
fn fields_that_are_not_supported_are_named_once() {
    let mut world = World::new(cluster(json!({
        "autoscalerOptions": {"idleTimeoutSeconds": 5},
        "upgradeStrategy": {},
        "headGroupSpec": {"enableIngress": true},
    })));
    let plan = world.plan();
    let event = plan
        .events
        .iter()
        .find(|event| event.reason == conditions::UNSUPPORTED_FIELDS)
        .unwrap();
    assert_eq!(
        event.message,
        "not supported, and ignored: spec.autoscalerOptions, spec.headGroupSpec.enableIngress"
    );
    world.settle();
    let status = world.cluster.status.as_ref().unwrap();
    assert_eq!(
        status.condition(conditions::UNSUPPORTED_FIELDS).unwrap().message,
        event.message
    );
    assert!(world.jobset.is_some());
}

#[test]
fn options_that_ask_for_something_however_empty_they_are_are_named() {
    for option in ["authOptions", "gcsFaultToleranceOptions", "networkPolicy"] {
        for (stated, named) in [(json!({}), true), (Value::Null, false)] {
            let mut spec = json!({"upgradeStrategy": {}});
            spec[option] = stated;
            let mut world = World::new(cluster(spec));
            world.settle();
            let status = world.cluster.status.as_ref().unwrap();
            let said = status.condition(conditions::UNSUPPORTED_FIELDS);
            assert_eq!(
                said.map(|condition| condition.message.as_str()),
                named.then_some(format!("not supported, and ignored: spec.{option}").as_str())
            );
        }
    }
}

#[test]
fn autoscaling_is_refused_by_name() {
    let mut world = World::new(cluster(json!({"enableInTreeAutoscaling": true})));
    let plan = world.plan();
    assert!(plan.create_jobset.is_none());
    assert_eq!(reasons(&plan), ["InvalidRayClusterSpec"]);
    world.settle();
    assert_eq!(world.state(), "failed");
    assert!(
        world
            .cluster
            .status
            .as_ref()
            .unwrap()
            .reason
            .contains("spec.enableInTreeAutoscaling")
    );
}

#[test]
fn a_group_is_not_scaled_below_the_minimum_of_its_gang() {
    let gang = json!({"replicatedJobs": [{"name": "small", "minAvailable": 2}]});
    let mut world = World::new(cluster(json!({"gang": gang})));
    world.settle();
    world.cluster.spec.worker_group_specs[0].replicas = Some(1);
    world.settle();
    assert_eq!(
        world
            .jobset
            .as_ref()
            .unwrap()
            .replicated_job("small")
            .unwrap()
            .pods(),
        2
    );
    let reason = &world.cluster.status.as_ref().unwrap().reason;
    assert!(
        reason.contains("spec.gang.replicatedJobs[0].minAvailable"),
        "{reason}"
    );
}

#[test]
fn a_name_that_others_have_is_not_taken_from_them() {
    let mut world = running();
    world.jobset.as_mut().unwrap().metadata.owner_references = None;
    let plan = world.plan();
    assert!(plan.update_jobset.is_none() && plan.delete_jobset.is_none() && plan.create_jobset.is_none());
    assert!(plan.status.unwrap().reason.contains("belongs to another owner"));
}

/// A cluster `rc` that existed before, and the objects that it had.
fn former(name: &str) -> (JobSet, Service) {
    let mut former = cluster(json!({}));
    former.metadata.name = Some(name.to_owned());
    former.metadata.uid = Some("uid-former".to_owned());
    (compile(&former), crate::ray::service::head(&former))
}

#[test]
fn what_a_former_cluster_of_the_name_has_left_is_waited_for() {
    let (jobset, service) = former("rc");
    let deleting = {
        let (mut jobset, _) = former("other");
        jobset.metadata.deletion_timestamp = Some(Time(at(0)));
        jobset
    };
    for (jobset, service) in [
        (Some(jobset), None),
        (None, Some(service)),
        (Some(deleting), None),
    ] {
        let mut world = World::new(cluster(json!({})));
        (world.jobset, world.service) = (jobset, service);
        world.settle();
        assert_eq!(world.state(), "", "{:?}", world.cluster.status);
        let plan = world.plan();
        assert!(plan.create_jobset.is_none() && plan.requeue_after.is_some());
        (world.jobset, world.service) = (None, None);
        world.settle();
        assert!(world.jobset.is_some());
    }
}

#[test]
fn a_service_of_another_owner_fails_the_cluster() {
    let mut world = World::new(cluster(json!({})));
    world.service = Some(Service::default());
    world.settle();
    assert_eq!(world.state(), "failed");
    let reason = &world.cluster.status.as_ref().unwrap().reason;
    assert!(
        reason.contains("Service rc-head-svc belongs to another owner"),
        "{reason}"
    );
    // No event reports when it goes.
    assert!(world.plan().requeue_after.is_some());
    world.service = None;
    world.settle();
    assert_eq!(world.state(), "");
}

#[test]
fn a_jobset_that_has_ended_fails_the_cluster() {
    let mut world = running();
    let status = world.jobset.as_mut().unwrap().status.get_or_insert_default();
    status.conditions = serde_json::from_value(json!([{
        "type": "Failed", "status": "True", "reason": "FailedJobs", "message": "no more",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]))
    .unwrap();
    world.settle();
    assert_eq!(world.state(), "failed");
    assert!(world.cluster.status.as_ref().unwrap().reason.contains("no more"));
}

#[test]
fn clusters_of_other_controllers_are_left_unchanged() {
    let cases = [
        (Some("ray.io/kuberay-operator"), false, true),
        (Some("kueue.x-k8s.io/multikueue"), false, true),
        (None, true, true),
        (Some(""), true, true),
        (Some(CONTROLLER_NAME), true, false),
        (Some(CONTROLLER_NAME), false, false),
        (None, false, false),
    ];
    for (manager, kuberay, left_alone) in cases {
        let mut world = World::new(cluster(json!({"managedBy": manager})));
        world.kuberay = kuberay;
        let plan = world.plan();
        assert_eq!(plan.notice.is_some(), left_alone, "{manager:?} {kuberay}");
        assert_eq!(
            plan.create_jobset.is_none() && plan.status.is_none(),
            left_alone,
            "{manager:?} {kuberay}"
        );
    }
}

#[test]
fn a_cluster_that_was_taken_on_stays_when_kuberay_comes() {
    let mut world = running();
    world.kuberay = true;
    assert_eq!(world.plan(), ClusterPlan::default());
}

#[test]
fn one_that_is_being_deleted_is_left_to_the_garbage_collector() {
    let mut world = running();
    world.cluster.metadata.deletion_timestamp = Some(Time(world.now()));
    world.cluster.spec.worker_group_specs[0].replicas = Some(4);
    assert_eq!(world.plan(), ClusterPlan::default());
}
