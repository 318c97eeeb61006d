//! Gangs that compete while writes get lost. That is the same as a controller that dies between any
//! two writes, since it keeps nothing between two decisions.

use std::collections::BTreeMap;

use lockstep_api::GangPhase;
use proptest::prelude::*;

use super::model::{Chance, Model, gang, part};
use crate::gang::{GangEvent, GroupPolicy};

/// Random gangs on random nodes. Each gang by itself fits.
fn random(seed: u64, pod_groups: bool, most_lost: usize) -> Model {
    let mut chance = Chance(seed | 1);
    let cores: Vec<i32> = (0..2 + chance.below(4))
        .map(|_| 4 + i32::try_from(chance.below(5)).unwrap())
        .collect();
    // As many pods of any size as certainly fit.
    let room: i32 = cores.iter().map(|cores| cores / 2).sum();
    let mut model = Model::new(&cores);
    model.loss = chance.below(most_lost);
    for index in 0..2 + chance.below(5) {
        let number = |chance: &mut Chance, end: i32| {
            1 + i32::try_from(chance.below(usize::try_from(end).unwrap())).unwrap()
        };
        let mut left = room;
        let mut parts = Vec::new();
        let mut minimums = Vec::new();
        for name in ["a", "b"].into_iter().take(1 + chance.below(2)) {
            let (replicas, pods) = (number(&mut chance, 2), number(&mut chance, 4));
            let cpu = number(&mut chance, 2);
            let minimum = number(&mut chance, replicas * pods).min(left / 2);
            if minimum < 1 {
                continue;
            }
            left -= minimum * 2;
            parts.push(part(name, replicas, pods, cpu));
            minimums.push((name, minimum));
        }
        if parts.is_empty() {
            continue;
        }
        let priority = i32::try_from(chance.below(3)).unwrap();
        model.create(gang(&format!("g{index}"), parts, &minimums), priority, pod_groups);
        model.run(u32::try_from(chance.below(3)).unwrap());
    }
    model.chance = chance;
    model
}

proptest! {
    // Each case is a whole history, so there are a quarter as many as for other properties.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn all_gangs_finish_by_gates(seed in any::<u64>()) {
        let mut model = random(seed, false, 40);
        model.finish(3000);
    }

    #[test]
    fn all_gangs_finish_by_pod_groups(seed in any::<u64>()) {
        let mut model = random(seed, true, 40);
        model.finish(3000);
    }

    /// A gang of higher priority starts before those of lower priority that were created after it.
    #[test]
    fn priority_is_kept(seed in any::<u64>(), pod_groups in any::<bool>()) {
        let mut model = random(seed, pod_groups, 40);
        model.finish(3000);
        let timed_out = model.events.iter().any(|(_, _, event, _)| *event == GangEvent::TimedOut);
        prop_assume!(!timed_out);
        // The time when its pods were bound counts: the status may be lost, and written later.
        let started = |jobset: &str| {
            let mut bound = model.bound_at.iter();
            bound.find(|((of, _), _)| of == jobset).map(|(_, at)| *at)
        };
        let created = |jobset: &str| model.clusters[jobset].jobset.metadata.creation_timestamp.as_ref().unwrap().0;
        for high in model.clusters.keys() {
            for low in model.clusters.keys() {
                if model.priorities[high] > model.priorities[low] && created(high) < created(low) {
                    prop_assert!(started(high) <= started(low), "{high} after {low}: {:?}", model.events);
                }
            }
        }
    }
}

/// Events of a cluster: pods and nodes are lost, JobSets are recreated, suspended and resumed,
/// PodGroups are switched on and off, and the controllers are killed between any two writes.
fn disturb(model: &mut Model, cores: &BTreeMap<String, i32>) {
    fn pick(names: Vec<String>, chance: &mut Chance) -> Option<String> {
        let index = chance.below(names.len());
        names.into_iter().nth(index)
    }
    let runs = |model: &Model| -> Vec<String> {
        let clusters = model.clusters.iter();
        let runs =
            clusters.filter(|(_, cluster)| !cluster.jobset.is_finished() && cluster.jobset.status.is_some());
        runs.map(|(name, _)| name.clone()).collect()
    };
    let mut suspended: Vec<String> = Vec::new();
    for _ in 0..8 {
        let seconds = u32::try_from(1 + model.chance.below(8)).unwrap();
        model.run(seconds);
        let (what, jobset) = (model.chance.below(6), pick(runs(model), &mut model.chance));
        match (what, jobset) {
            (0, Some(name)) => model.status_of(&name).restarts += 1,
            (1, Some(name)) => {
                model.spec_of(&name).suspend = Some(true);
                suspended.push(name);
            }
            (2, Some(name)) => {
                let bound = model.pods_of(&name).into_iter().filter(|pod| pod.node.is_some());
                let uids = bound.map(|pod| pod.uid.clone()).collect();
                if let Some(uid) = pick(uids, &mut model.chance) {
                    model.lose(&uid);
                }
            }
            (3, _) => {
                let node = pick(cores.keys().cloned().collect(), &mut model.chance).unwrap();
                model.lose_node(&node);
            }
            (4, _) => model.serve_pod_groups(!model.serves_pod_groups),
            _ => {
                for name in suspended.drain(..) {
                    model.spec_of(&name).suspend = Some(false);
                }
                model.nodes.clone_from(cores);
            }
        }
    }
    for name in suspended {
        model.spec_of(&name).suspend = Some(false);
    }
    model.nodes.clone_from(cores);
    // A replacement pod of a running gang waits until PodGroups are served again.
    if !model.serves_pod_groups {
        model.serve_pod_groups(true);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Whatever happens, no part of a gang holds nodes for too long, no optional worker starts
    /// before its gang, no gate stays on a pod that should run, and all gangs finish in the end.
    #[test]
    fn gangs_survive_what_happens_to_clusters(seed in any::<u64>(), pod_groups in any::<bool>()) {
        let mut model = random(seed, pod_groups, 30);
        model.kills = 30;
        let cores = model.nodes.clone();
        disturb(&mut model, &cores);
        model.finish(3000);
    }
}

/// kube-scheduler does not count ended pods: a replacement pod does not wait for them.
#[test]
fn a_pod_is_replaced_after_others_of_its_pod_group_have_ended() {
    let mut model = Model::new(&[8]);
    model.run_time = 1000;
    let parts = vec![part("a", 1, 3, 1), part("b", 1, 2, 1)];
    model.create(gang("g", parts, &[]), 0, true);
    model.run(6);
    assert_eq!(model.bound("g"), 5);
    let group = model.groups.values().next().unwrap().clone();
    assert_eq!((model.groups.len(), group.policy), (1, GroupPolicy::Gang(5)));
    // The group is unchanged while all of them live.
    let uid = |model: &Model, of: &str| {
        let pods = model.pods_of("g").into_iter().filter(|pod| !pod.is_terminal());
        pods.map(|pod| (pod.replicated_job.clone(), pod.uid.clone()))
            .find(|(replicated_job, _)| replicated_job == of)
            .unwrap()
            .1
    };
    let one = uid(&model, "a");
    model.lose(&one);
    model.run(2);
    assert_eq!(
        (model.bound("g"), model.groups.values().next()),
        (5, Some(&group))
    );
    // Another Job of the gang ends.
    let last = uid(&model, "a");
    model.end_now("b");
    model.run(2);
    assert_eq!(model.bound("g"), 3);
    model.lose(&last);
    model.run(3);
    assert_eq!(model.bound("g"), 3, "{}", model.describe());
    assert_eq!(model.groups.values().next().unwrap().policy, GroupPolicy::Basic);
    assert_eq!(model.phase("g", "a"), Some(GangPhase::Scheduled));
    // All start together again in the next attempt.
    model.status_of("g").restarts = 1;
    model.run(5);
    assert_eq!(model.bound("g"), 5, "{}", model.describe());
    let group = model.groups.values().next_back().unwrap();
    assert_eq!((model.groups.len(), group.policy), (2, GroupPolicy::Gang(5)));
}

/// When a gang resumes after some of its pods have ended, the rest starts together, and no
/// completed work is lost.
#[test]
fn a_gang_is_resumed_after_some_of_its_pods_have_ended() {
    let mut model = Model::new(&[8]);
    model.run_time = 1000;
    let parts = vec![part("a", 1, 3, 1), part("b", 1, 2, 1)];
    model.create(gang("g", parts, &[]), 0, true);
    model.run(6);
    model.end_now("b");
    model.run(3);
    // One is lost meanwhile, so the others may start one by one.
    let lost = model
        .pods_of("g")
        .into_iter()
        .find(|pod| !pod.is_terminal())
        .unwrap();
    model.lose(&lost.uid);
    model.run(2);
    assert_eq!(model.groups.values().next().unwrap().policy, GroupPolicy::Basic);
    model.spec_of("g").suspend = Some(true);
    model.run(3);
    // There is room for two of three.
    *model.nodes.get_mut("n0").unwrap() = 2;
    model.spec_of("g").suspend = Some(false);
    for _ in 0..20 {
        model.step();
        assert_eq!(model.bound("g"), 0, "{}", model.describe());
    }
    assert_eq!(model.phase("g", "a"), Some(GangPhase::Waiting));
    assert_eq!(model.groups.values().next().unwrap().policy, GroupPolicy::Gang(3));
    *model.nodes.get_mut("n0").unwrap() = 3;
    model.run(3);
    assert_eq!(model.bound("g"), 3, "{}", model.describe());
    let succeeded = model.pods_of("g").iter().filter(|pod| pod.is_terminal()).count();
    assert_eq!(succeeded, 2, "completed pods do not run again");
}

/// What the Job controller has counted stays counted, even if the pod disappears: no pod waits in
/// its PodGroup again.
#[test]
fn a_gang_finishes_if_an_ended_pod_is_deleted_after_the_others_were_recreated() {
    let mut model = Model::new(&[8]);
    let parts = vec![part("a", 1, 2, 1), part("b", 1, 2, 1)];
    model.create(gang("g", parts, &[("a", 2), ("b", 2)]), 0, true);
    model.run(6);
    assert_eq!(model.bound("g"), 4);
    let pod_of = |model: &Model, replicated_job: &str| {
        let mut pods = model.pods_of("g").into_iter();
        pods.find(|pod| pod.replicated_job == replicated_job).unwrap()
    };
    let lost = pod_of(&model, "b").uid.clone();
    model.lose(&lost);
    // The Job of `a` completes, that of `b` does not.
    model.run(8);
    for suspend in [true, false] {
        model.spec_of("g").suspend = Some(suspend);
        model.run(5);
    }
    assert_eq!(model.phase("g", "a"), Some(GangPhase::Scheduled));
    let ended = pod_of(&model, "a");
    assert!(ended.is_terminal() && !model.is_completed("g"));
    model.lose(&ended.uid);
    model.run(1);
    assert!(pod_of(&model, "a").is_terminal(), "{}", model.describe());
    model.finish(60);
}

/// Optional workers start when they find room later, and no other pod is touched.
#[test]
fn optional_workers_that_start_late_join_those_that_run() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[3]);
        model.run_time = 1000;
        model.create(gang("a", vec![part("w", 1, 5, 1)], &[("w", 3)]), 0, pod_groups);
        model.run(30);
        let before: Vec<String> = model.pods_of("a").iter().map(|pod| pod.uid.clone()).collect();
        assert_eq!((model.bound("a"), before.len()), (3, 5));
        *model.nodes.get_mut("n0").unwrap() = 5;
        model.run(3);
        let after: Vec<String> = model.pods_of("a").iter().map(|pod| pod.uid.clone()).collect();
        assert_eq!((model.bound("a"), after), (5, before));
        assert_eq!(model.clusters["a"].jobset.restart_attempt(), 0);
        assert_eq!(model.phase("a", "w"), Some(GangPhase::Scheduled));
    }
}

/// No gate stays on a pod that should run, whichever writes are lost.
#[test]
fn a_replaced_pod_goes_at_once() {
    let mut model = Model::new(&[8]);
    model.run_time = 1000;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[("w", 3)]), 0, false);
    model.run(20);
    assert_eq!(model.phase("a", "w"), Some(GangPhase::Scheduled));
    assert_eq!(model.bound("a"), 4);
    let uid = model.pods_of("a")[1].uid.clone();
    model.lose(&uid);
    model.run(2);
    assert_eq!(model.bound("a"), 4);
    assert_eq!(model.phase("a", "w"), Some(GangPhase::Scheduled));
}

/// Two gangs that each need more than half of the cluster run one after the other.
#[test]
fn two_gangs_of_more_than_half_both_finish() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4, 4]);
        model.create(gang("a", vec![part("w", 1, 5, 1)], &[]), 0, pod_groups);
        model.create(gang("b", vec![part("w", 1, 5, 1)], &[]), 0, pod_groups);
        model.finish(100);
        let timed_out = model
            .events
            .iter()
            .filter(|(_, _, event, _)| *event == GangEvent::TimedOut);
        assert_eq!(timed_out.count(), 0);
    }
}

/// A gang that was released but cannot be bound is taken back.
#[test]
fn a_time_out_gives_all_back_and_the_gang_waits_again() {
    let mut model = Model::new(&[4]);
    model.run_time = 100;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, false);
    // Another user takes a part of the room after the gang's release.
    model.run(3);
    let first = model
        .pods_of("a")
        .into_iter()
        .find(|pod| pod.node.is_none())
        .map(|pod| pod.uid.clone());
    assert_eq!(first, None);
    let uid = model.pods_of("a")[0].uid.clone();
    model.status_of("a").gangs[0].phase = GangPhase::Scheduling;
    let until = model.now + jiff::SignedDuration::from_secs(20);
    model.status_of("a").gangs[0].until = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(until));
    *model.nodes.get_mut("n0").unwrap() = 3;
    model.lose(&uid);
    model.run(21);
    assert_eq!(model.phase("a", "w"), Some(GangPhase::BackingOff));
    model.run(3);
    assert_eq!(model.bound("a"), 0, "{}", model.describe());
    assert!(
        model.clusters["a"]
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().suspend == Some(true))
    );
    model.run(30);
    assert_eq!(model.phase("a", "w"), Some(GangPhase::Waiting));
    assert_eq!(model.clusters["a"].jobset.restart_attempt(), 0);
    *model.nodes.get_mut("n0").unwrap() = 4;
    model.run_time = 5;
    model.finish(60);
}
