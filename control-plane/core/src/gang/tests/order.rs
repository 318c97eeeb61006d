use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{GangPhase, GangStatus};
use proptest::prelude::*;

use crate::common::testing::at;
use crate::gang::order::expected_pods;
use crate::gang::{Gang, JobSetGangs, Needs, Node, Part, Pod, PodPhase, PodRef, Resources, World, decide};

fn part(name: &str, pods: u32, minimum: u32, priority: i32) -> Part {
    let pod = |index| {
        Arc::new(Pod {
            name: format!("{name}{index}"),
            index: Some(index),
            gated: true,
            priority,
            ..Pod::default()
        })
    };
    Part {
        name: name.to_owned(),
        minimum,
        replicas: 1,
        parallelism: pods,
        indexed: true,
        needs: vec![Arc::new(Needs::default())],
        pods: (0..pods).rev().map(pod).collect(),
        ..Part::default()
    }
}

fn order(parts: Vec<Part>) -> String {
    let gang = Gang {
        parts,
        ..Gang::default()
    };
    let names = expected_pods(&gang);
    let names = names.iter().map(|expected| {
        let pod = &expected.pod.unwrap().name;
        if expected.in_minimum {
            pod.clone()
        } else {
            format!("({pod})")
        }
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_higher_priority_goes_first_and_no_optional_worker_before_a_minimum() {
    let parts = vec![part("M", 5, 3, 10), part("W", 3, 2, 1)];
    assert_eq!(order(parts), "M0 M1 M2 W0 W1 (M3) (M4) (W2)");
}

#[test]
fn without_priorities_replicated_jobs_take_turns() {
    let parts = vec![part("M", 5, 3, 0), part("W", 3, 2, 0)];
    assert_eq!(order(parts), "M0 W0 M1 W1 M2 (W2) (M3) (M4)");
}

/// Pods are released in waves, as kube-scheduler takes the pod with the highest priority among
/// those that it knows.
fn waves(parts: Vec<Part>, phase: GangPhase, pod_group: bool) -> String {
    let gang = Gang {
        name: "M".to_owned(),
        is_created: true,
        pod_group: pod_group.then(|| "group".to_owned()),
        parts,
        ..Gang::default()
    };
    let status = GangStatus {
        name: "M".to_owned(),
        phase,
        until: Some(Time(at(60))),
        ..GangStatus::default()
    };
    let node = Node {
        allocatable: Resources::of(&BTreeMap::from([("pods".to_owned(), Quantity("10".to_owned()))])),
        ..Node::default()
    };
    let world = World {
        nodes: BTreeMap::from([("n".to_owned(), node)]),
        jobsets: vec![JobSetGangs {
            status: vec![status],
            gangs: vec![gang],
            ..JobSetGangs::default()
        }],
        ..World::default()
    };
    let decisions = decide(&world, at(1));
    let names = |wave: &Vec<PodRef>| {
        let names: Vec<&str> = wave.iter().map(|pod| pod.name.as_str()).collect();
        names.join(" ")
    };
    let waves: Vec<String> = decisions.jobsets[0].ungate.iter().map(names).collect();
    waves.join(" | ")
}

/// The gates of a wave are removed at the same time, so a wave holds only pods that kube-scheduler
/// orders by itself.
#[test]
fn higher_priorities_are_released_before_lower_ones() {
    let bound = |mut part: Part| {
        for pod in &mut part.pods {
            let pod = Arc::make_mut(pod);
            if pod.index < Some(part.minimum) {
                pod.gated = false;
                pod.node = Some("n".to_owned());
            }
        }
        part
    };
    let parts = |high| vec![part("M", 5, 3, high), part("W", 3, 2, 1)];
    let both = |phase: GangPhase, parts: Vec<Part>| {
        let by_pod_group = phase == GangPhase::Scheduled;
        let by_gates = waves(parts.clone(), phase.clone(), false);
        if by_pod_group {
            assert_eq!(waves(parts, phase, true), by_gates);
        }
        by_gates
    };
    assert_eq!(both(GangPhase::Scheduling, parts(10)), "M0 M1 M2 | W0 W1");
    assert_eq!(both(GangPhase::Scheduling, parts(1)), "M0 W0 M1 W1 M2");
    let scheduled = |high| parts(high).into_iter().map(bound).collect();
    assert_eq!(both(GangPhase::Scheduled, scheduled(10)), "M3 M4 | W2");
    assert_eq!(both(GangPhase::Scheduled, scheduled(1)), "W2 M3 M4");
}

#[test]
fn expected_pods_are_counted_by_job_then_by_index() {
    let pod = |job, index| {
        Arc::new(Pod {
            name: format!("{job}-{index}"),
            job_index: job,
            index: Some(index),
            ..Pod::default()
        })
    };
    let part = Part {
        minimum: 3,
        replicas: 2,
        parallelism: 2,
        indexed: true,
        pods: vec![pod(1, 1), pod(1, 0), pod(0, 1), pod(0, 0)],
        ..Part::default()
    };
    assert_eq!(order(vec![part]), "0-0 0-1 1-0 (1-1)");
}

/// In a Job without indexes any pod can do the work of any other: one that has come farther keeps
/// its ordinal.
#[test]
fn pods_without_an_index_keep_their_ordinals() {
    let pod = |name: &str, gated, node: Option<&str>| {
        Arc::new(Pod {
            name: name.to_owned(),
            gated,
            node: node.map(str::to_owned),
            ..Pod::default()
        })
    };
    let part = Part {
        minimum: 2,
        replicas: 1,
        parallelism: 3,
        pods: vec![
            pod("a", true, None),
            pod("b", false, None),
            pod("c", false, Some("n")),
        ],
        ..Part::default()
    };
    assert_eq!(order(vec![part]), "c b (a)");
}

/// One below the minimum was lost after the gang started: no optional workers are released that
/// would take its room.
#[test]
fn optional_workers_of_a_pod_group_wait_until_the_minimum_is_bound_again() {
    fn after(change: impl Fn(&mut Part)) -> String {
        let mut part = part("M", 5, 3, 0);
        part.pods.reverse(); // By their indexes.
        for pod in &mut part.pods[..3] {
            let pod = Arc::make_mut(pod);
            (pod.gated, pod.node) = (false, Some("n".to_owned()));
        }
        change(&mut part);
        waves(vec![part], GangPhase::Scheduled, true)
    }
    let with = |change: fn(&mut Pod)| after(|part| change(Arc::make_mut(&mut part.pods[1])));
    assert_eq!(with(|_| {}), "M3 M4");
    // Its next pod is missing, then created, then about to be bound.
    assert_eq!(after(|part| drop(part.pods.remove(1))), "");
    assert_eq!(with(|pod| (pod.gated, pod.node) = (true, None)), "M1");
    assert_eq!(with(|pod| pod.node = None), "");
    // It has a node, and can do no more work.
    assert_eq!(with(|pod| pod.deleting = true), "");
    assert_eq!(with(|pod| pod.phase = PodPhase::Failed), "");
    // A completed worker needs no room.
    assert_eq!(with(|pod| pod.phase = PodPhase::Succeeded), "M3 M4");
    let done = |part: &mut Part| {
        part.pods.remove(1);
        part.done.insert(1);
    };
    assert_eq!(after(done), "M3 M4");
}

proptest! {
    #[test]
    fn minimums_come_before_optional_workers(sizes in prop::collection::vec((1_u32..6, 0_u32..6, 0_i32..3), 1..4)) {
        let parts = sizes.iter().enumerate().map(|(index, (pods, minimum, priority))| {
            part(&format!("p{index}-"), *pods, *minimum.min(pods), *priority)
        });
        let gang = Gang { parts: parts.collect(), ..Gang::default() };
        let expected_pods = expected_pods(&gang);
        let minimum: u32 = gang.parts.iter().map(|part| part.minimum).sum();
        let below = expected_pods.iter().take_while(|expected| expected.in_minimum).count();
        prop_assert_eq!(below, usize::try_from(minimum).unwrap());
        prop_assert!(!expected_pods.iter().skip(below).any(|expected| expected.in_minimum));
        for pair in expected_pods.windows(2).filter(|pair| pair[0].in_minimum == pair[1].in_minimum) {
            let key = |at: usize| (-gang.parts[pair[at].part].priority(), pair[at].ordinal, pair[at].part);
            prop_assert!(key(0) < key(1));
        }
    }
}
