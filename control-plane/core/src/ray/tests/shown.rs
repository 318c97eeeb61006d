//! The status of a cluster, in KubeRay's words.

use jiff::SignedDuration;
use lockstep_api::ray::conditions;

use super::*;

/// Status, reason and message of a condition.
fn shown(world: &World, type_: &str) -> (String, String, String) {
    let status = world.cluster.status.as_ref().unwrap();
    let condition = status.condition(type_).unwrap().clone();
    (condition.status, condition.reason, condition.message)
}

fn said(status: &str, reason: &str, message: &str) -> (String, String, String) {
    (status.to_owned(), reason.to_owned(), message.to_owned())
}

#[test]
fn the_condition_of_the_heads_pod_is_shown_with_what_keeps_it_from_being_ready() {
    let mut world = World::new(cluster(json!({})));
    let head = |world: &World| shown(world, conditions::HEAD_POD_READY);
    world.settle();
    assert_eq!(
        head(&world),
        said("False", "HeadPodNotFound", "Head Pod not found")
    );
    let cases = [
        (json!({}), said("False", "Unknown", "")),
        (
            json!({"conditions": [{"type": "Ready", "status": "False", "reason": "PodReadinessGates", "message": "not yet"}]}),
            said("False", "PodReadinessGates", "not yet"),
        ),
        (
            json!({
                "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "one is not"}],
                "containerStatuses": [
                    {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
                    {"name": "ray", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                     "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
                ],
            }),
            said("False", "ImagePullBackOff", "one is not; ray: no such image"),
        ),
        (
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            said("True", "HeadPodRunningAndReady", ""),
        ),
    ];
    for (status, expected) in cases {
        let pod = json!({"metadata": {"name": "rc-head-0-0-x"}, "status": status});
        world.head_pod = Some(serde_json::from_value(pod).unwrap());
        world.settle();
        assert_eq!(head(&world), expected);
    }
    let head = &world.cluster.status.as_ref().unwrap().head;
    assert_eq!(
        (head.service_ip.as_str(), head.pod_ip.as_str()),
        ("10.0.0.1", "10.0.0.1")
    );
}

#[test]
fn suspensions_are_shown_from_the_start_and_the_first_start_until_all_is_gone() {
    let mut world = World::new(cluster(json!({})));
    let not = |type_: &str| said("False", type_, "");
    let so = |type_: &str| said("True", type_, "");
    let (suspending, suspended) = (conditions::SUSPENDING, conditions::SUSPENDED);
    let both = |world: &World| (shown(world, suspending), shown(world, suspended));
    let provisioned = |world: &World| shown(world, conditions::PROVISIONED);
    world.settle();
    assert_eq!(both(&world), (not(suspending), not(suspended)));
    let waits = said(
        "False",
        "RayClusterPodsProvisioning",
        "RayCluster Pods are being provisioned for first time",
    );
    assert_eq!(provisioned(&world), waits);
    world.ready = [1, 2];
    world.settle();
    let ready = said(
        "True",
        "AllPodRunningAndReadyFirstTime",
        "All Ray Pods are ready for the first time",
    );
    assert_eq!(provisioned(&world), ready);
    world.cluster.spec.suspend = Some(true);
    let mut plan = world.plan();
    plan.delete_jobset = None;
    world.act(plan);
    assert_eq!(both(&world), (so(suspending), not(suspended)));
    assert_eq!(provisioned(&world), ready);
    world.settle();
    assert_eq!(both(&world), (not(suspending), so(suspended)));
    let gone = said(
        "False",
        "RayClusterPodsProvisioning",
        "RayCluster has been suspended",
    );
    assert_eq!(provisioned(&world), gone);
    world.cluster.spec.suspend = None;
    world.settle();
    assert_eq!(both(&world), (not(suspending), not(suspended)));
    assert_eq!(provisioned(&world), waits);
}

#[test]
fn what_the_api_server_refuses_is_shown_as_long_as_it_does() {
    let mut world = World::new(cluster(json!({})));
    let said = "JobSet rc cannot be created: exceeded quota";
    world.refused = Some(said.to_owned());
    let plan = world.plan();
    let mut events = plan.events.iter();
    assert!(events.all(|event| event.reason != conditions::REPLICA_FAILURE));
    world.cluster.status = plan.status.map(|status| *status);
    let status = world.cluster.status.as_ref().unwrap();
    let failure = status.condition(conditions::REPLICA_FAILURE).unwrap();
    assert_eq!(
        (
            failure.status.as_str(),
            failure.reason.as_str(),
            failure.message.as_str()
        ),
        ("True", "FailedCreateHeadPod", said)
    );
    assert_eq!((status.reason.as_str(), world.state()), (said, ""));
    world.seconds += 1;
    assert_eq!(world.plan().status, None, "it is no news");
    world.refused = None;
    world.settle();
    let status = world.cluster.status.as_ref().unwrap();
    assert_eq!(status.condition(conditions::REPLICA_FAILURE), None);
    assert_eq!(status.reason, "");
}

#[test]
fn pods_that_cannot_be_created_are_a_failure_as_long_as_there_are_none() {
    let mut world = World::new(cluster(json!({})));
    world.settle();
    world.seconds = 100;
    world.without_pods = Some(100);
    assert!(world.plan().requeue_after.is_some());
    world.settle();
    let failure = |world: &World| {
        let status = world.cluster.status.as_ref().unwrap();
        status.condition(conditions::REPLICA_FAILURE).cloned()
    };
    assert_eq!(failure(&world), None);
    world.seconds = 130;
    let plan = world.plan();
    assert_eq!(plan.events[0].reason, conditions::REPLICA_FAILURE);
    world.settle();
    let found = failure(&world).unwrap();
    assert_eq!(
        (found.status.as_str(), found.reason.as_str()),
        ("True", "FailedCreateHeadPod")
    );
    assert_eq!(world.cluster.status.as_ref().unwrap().reason, found.message);
    assert_eq!(world.state(), "");
    world.without_pods = None;
    world.settle();
    assert_eq!(failure(&world), None);
}

#[test]
fn pods_of_which_some_cannot_be_created_are_a_failure_once_that_lasts() {
    let mut world = World::new(cluster(json!({})));
    world.settle();
    (world.without_pods, world.pods, world.seconds) = (Some(0), Some((2, 2)), 100);
    world.settle();
    let failure = |world: &World| {
        let status = world.cluster.status.as_ref().unwrap();
        let found = status.condition(conditions::REPLICA_FAILURE);
        found.map(|found| (found.status.clone(), found.message.clone()))
    };
    assert_eq!(failure(&world), None);
    // A pod that comes in a moment.
    world.pods = Some((1, 2));
    assert!(world.plan().events.is_empty());
    assert_eq!(world.plan().requeue_after, Some(SignedDuration::from_secs(30)));
    world.settle();
    assert_eq!(failure(&world).unwrap().0, "False");
    assert_eq!(world.cluster.status.as_ref().unwrap().reason, "");
    world.pods = Some((2, 2));
    world.settle();
    assert_eq!(failure(&world), None);
    // A pod that does not come.
    world.pods = Some((1, 2));
    world.settle();
    world.seconds = 140;
    assert_eq!(world.plan().events[0].reason, conditions::REPLICA_FAILURE);
    world.settle();
    let (status, message) = failure(&world).unwrap();
    assert!(
        status == "True" && message.contains("has 1 of its 2 pods"),
        "{message}"
    );
    assert_eq!(world.cluster.status.as_ref().unwrap().reason, message);
    assert_eq!(world.plan().requeue_after, None);
    // A group without workers misses none.
    world.pods = Some((0, 0));
    world.settle();
    assert_eq!(failure(&world), None);
}

#[test]
fn jobs_that_are_being_deleted_are_not_reported_for_lacking_pods() {
    let mut world = World::new(cluster(json!({})));
    world.settle();
    world.without_pods = Some(0);
    world.jobs_go = true;
    world.seconds = 1000;
    world.settle();
    let status = world.cluster.status.as_ref().unwrap();
    assert_eq!(status.condition(conditions::REPLICA_FAILURE), None);
    assert_eq!(world.plan().requeue_after, None);
}

#[test]
fn a_service_that_changes_waits_for_a_suspension_and_is_replaced() {
    for more in [
        json!({"headGroupSpec": {"serviceType": "NodePort"}}),
        json!({"headServiceAnnotations": {"a": "b"}}),
    ] {
        let mut world = World::new(cluster(json!({})));
        world.settle();
        world.service = Some(crate::ray::service::head(&world.cluster));
        world.settle();
        assert!(!world.is_true(conditions::CHANGES_PENDING));
        world.cluster.spec = cluster(more).spec;
        assert_eq!(world.plan().delete_service, None);
        world.settle();
        assert!(world.is_true(conditions::CHANGES_PENDING));
        world.cluster.spec.suspend = Some(true);
        world.settle();
        world.cluster.spec.suspend = None;
        let plan = world.plan();
        assert!(
            plan.delete_service.is_some() && plan.create_service.is_none() && plan.create_jobset.is_none()
        );
        world.settle();
        assert!(world.jobset.is_some() && !world.is_true(conditions::CHANGES_PENDING));
    }
}
