//! Former pods that still hold their nodes are named, and missing pods are reported.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{GangPhase, GangStatus, conditions};

use super::model::{Model, gang, part};
use crate::common::testing::at;
use crate::gang::{Gang, JobSetGangs, Part, Pod, PodPhase, World, decide};
use crate::jobset::pod::{GangPod, Leaving};
use crate::reconcile::plan;

/// kube-scheduler would count the pod, so the Jobs stay suspended until it has gone.
#[test]
fn a_resumed_gang_names_the_earlier_pod_that_it_waits_for() {
    let mut model = Model::new(&[4]);
    model.run_time = 1000;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, true);
    model.run(5);
    model.spec_of("a").suspend = Some(true);
    model.run(3);
    model.spec_of("a").suspend = Some(false);
    let leaving = |index: i32, is_lost| GangPod {
        job: "a-w-0".to_owned(),
        bound: true,
        leaving: Some(Leaving {
            pod: format!("a-w-0-{index}"),
            node: "n0".to_owned(),
            is_lost,
        }),
        ..GangPod::default()
    };
    let said = |pods: Vec<GangPod>| {
        let mut observed = model.clusters["a"].observe();
        observed.gang_pods = pods;
        let plan = plan(&observed);
        assert_eq!(plan.change_jobs, [], "resumed beside the old pod");
        let condition = plan.status.unwrap();
        let condition = condition.condition(conditions::MIN_AVAILABLE).unwrap().clone();
        assert!(plan.events.iter().any(|event| event.message == condition.message));
        condition.message
    };
    assert_eq!(
        said(vec![leaving(1, false)]),
        "the minimum number of pods is not running yet: earlier pod a-w-0-1 still holds node n0"
    );
    assert_eq!(
        said(vec![leaving(3, true), leaving(2, true), leaving(1, true)]),
        "the minimum number of pods is not running yet: earlier pod a-w-0-1 still holds node n0, which does not report; others do too"
    );
}

/// The back-off is over, and a pod of the gang is being deleted.
#[test]
fn a_gang_that_has_backed_off_names_the_pod_that_has_not_gone() {
    let mut part = Part {
        name: "w".to_owned(),
        minimum: 2,
        replicas: 1,
        parallelism: 2,
        indexed: true,
        ..Part::default()
    };
    let leaving = |phase, node_lost| {
        let pod = Pod {
            name: "w0".to_owned(),
            node: Some("n0".to_owned()),
            deleting: true,
            phase,
            node_lost,
            ..Pod::default()
        };
        vec![Arc::new(pod)]
    };
    let mut decided = |phase, node_lost| {
        part.pods = leaving(phase, node_lost);
        let status = GangStatus {
            name: "w".to_owned(),
            phase: GangPhase::BackingOff,
            until: Some(Time(at(10))),
            ..GangStatus::default()
        };
        let gang = Gang {
            name: "w".to_owned(),
            is_created: true,
            is_stopped: true,
            parts: vec![part.clone()],
            ..Gang::default()
        };
        let jobset = JobSetGangs {
            status: vec![status],
            gangs: vec![gang],
            ..JobSetGangs::default()
        };
        let world = World {
            jobsets: vec![jobset],
            ..World::default()
        };
        decide(&world, at(20)).jobsets.remove(0).write.unwrap()
    };
    let write = decided(PodPhase::Running, false);
    let message = "earlier pod w0 still holds node n0";
    assert_eq!(write.gangs[0].phase, GangPhase::BackingOff);
    assert_eq!(write.gangs[0].message.as_deref(), Some(message));
    assert_eq!(write.announcements[0].message, message);
    let write = decided(PodPhase::Running, true);
    let lost = format!("{message}, which does not report");
    assert_eq!(write.gangs[0].message, Some(lost));
    assert_eq!(decided(PodPhase::Failed, true).gangs[0].phase, GangPhase::Waiting);
}

/// A gang that has waited since 100 after a back-off. Its Jobs were last resumed at 0, and neither
/// of its 2 pods exists.
fn backed_off(pod_group: Option<&str>) -> World {
    let part = Part {
        name: "w".to_owned(),
        minimum: 2,
        replicas: 1,
        parallelism: 2,
        indexed: true,
        ..Part::default()
    };
    let gang = Gang {
        name: "w".to_owned(),
        pod_group: pod_group.map(str::to_owned),
        is_created: true,
        asked: Some(at(0)),
        timeout: SignedDuration::from_secs(60),
        parts: vec![part],
        ..Gang::default()
    };
    let status = GangStatus {
        name: "w".to_owned(),
        min_available: 2,
        attempt: 1,
        since: Some(Time(at(100))),
        ..GangStatus::default()
    };
    World {
        jobsets: vec![JobSetGangs {
            status: vec![status],
            gangs: vec![gang],
            ..JobSetGangs::default()
        }],
        ..World::default()
    }
}

/// Until its Jobs are resumed they show when they were last resumed.
#[test]
fn missing_pods_are_not_reported_right_after_a_back_off() {
    let world = backed_off(None);
    let early = decide(&world, at(101));
    assert_eq!(early.jobsets, []);
    let late = early.wake_at.unwrap();
    assert_eq!(late, at(160));
    let write = decide(&world, late).jobsets.remove(0).write.unwrap();
    assert_eq!(
        write.announcements[0].message,
        "2 of 2 pods have not been created"
    );
}

/// A missing pod of a PodGroup is not reported, so no later look is needed.
#[test]
fn a_gang_with_a_pod_group_is_not_looked_at_when_its_pods_are_late() {
    let decided = decide(&backed_off(Some("group")), at(101));
    assert_eq!(decided.wake_at, None);
}

/// Its work was complete when it was suspended, but its Jobs do not show that yet. The reconciler
/// would take back a gang that is released while they are suspended.
#[test]
fn a_gang_whose_work_is_done_starts_once_its_jobs_are_resumed() {
    for pod_group in [Some("w-1"), None] {
        let mut world = backed_off(pod_group);
        let gang = &mut world.jobsets[0].gangs[0];
        gang.parts[0].done = [0, 1].into();
        gang.is_stopped = true;
        world.jobsets[0].status.clear();
        let phase = |world: &World| {
            let decision = decide(world, at(200)).jobsets.pop();
            decision.and_then(|decision| Some(decision.write?.gangs))
        };
        let waiting = phase(&world).unwrap();
        assert_eq!(waiting[0].phase, GangPhase::Waiting);
        world.jobsets[0].status = waiting;
        assert_eq!(
            phase(&world),
            None,
            "{pod_group:?}: it goes on while its Jobs are suspended"
        );
        world.jobsets[0].gangs[0].is_stopped = false;
        assert_eq!(phase(&world).unwrap()[0].phase, GangPhase::Scheduled);
    }
}
