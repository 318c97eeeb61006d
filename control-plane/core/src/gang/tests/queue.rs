//! Which gang may start before which other.

use lockstep_api::ReplicatedJob;

use super::model::{Chance, Model, gang, part};
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild};
use crate::gang::GangEvent;

/// A gang does not overtake a waiting one if that would leave too little room. It does overtake a
/// gang that can never start.
#[test]
fn what_passes_cannot_be_missed() {
    let mut model = Model::new(&[4, 4]);
    model.run_time = 1000;
    model.create(gang("first", vec![part("w", 1, 2, 2)], &[]), 0, false);
    model.run(3);
    // Needs all of both nodes.
    model.create(gang("big", vec![part("w", 1, 8, 1)], &[]), 0, false);
    model.run(1);
    model.create(gang("small", vec![part("w", 1, 1, 1)], &[]), 0, false);
    model.run(10);
    assert_eq!(model.bound("small"), 0, "it would take nodes from the big one");
    let message = model.status("big", "w").unwrap().message.unwrap();
    assert_eq!(message, "needs 8 pods x 1 cpu, 4 fit: 4 short of cpu");
    // A gang that fits on no nodes reserves nothing.
    let mut model = Model::new(&[4, 4]);
    model.create(gang("huge", vec![part("w", 1, 9, 1)], &[]), 5, false);
    model.run(1);
    model.create(gang("small", vec![part("w", 1, 1, 1)], &[]), 0, false);
    model.run(3);
    assert_eq!(model.bound("small"), 1);
    let message = model.status("huge", "w").unwrap().message.unwrap();
    assert_eq!(
        message,
        "needs 9 pods x 1 cpu, 8 fit: 1 short of cpu, even if no JobSet ran"
    );
}

/// Two nodes of 4 cores with 6 cores in use for long, and a gang that waits for 6.
fn one_waits() -> Model {
    let mut model = Model::new(&[4, 4]);
    model.run_time = 30;
    model.create(gang("first", vec![part("w", 1, 6, 1)], &[]), 0, false);
    model.run(3);
    model.create(gang("waits", vec![part("w", 1, 6, 1)], &[]), 0, false);
    model.run(1);
    model
}

#[test]
fn a_gang_that_leaves_enough_passes() {
    let mut model = one_waits();
    for name in ["a", "b", "c"] {
        model.create(gang(name, vec![part("w", 1, 1, 1)], &[]), 0, false);
    }
    model.run(6);
    let bound = ["first", "waits", "a", "b", "c"].map(|name| model.bound(name));
    assert_eq!(bound, [6, 0, 1, 1, 0], "{}", model.describe());
    // The third has room once the waiting one has.
    model.create(gang("d", vec![part("w", 1, 1, 1)], &[]), 0, false);
    model.run(24);
    assert_eq!(model.bound("waits"), 6, "{}", model.describe());
    model.finish(100);
}

/// Younger gangs of lower priority do not, even if they would block no other.
#[test]
fn lower_priorities_do_not_pass() {
    let mut model = one_waits();
    model.create(gang("low", vec![part("w", 1, 1, 1)], &[]), -1, false);
    model.run(10);
    assert_eq!(model.bound("low"), 0);
    let message = model.status("low", "w").unwrap().message.unwrap();
    assert!(
        message.starts_with("waits for a gang of higher priority"),
        "{message}"
    );
}

/// Nodes that the higher one could not use are an exception.
#[test]
fn lower_priorities_start_on_other_nodes() {
    let on = |node: &str, part: ReplicatedJob| {
        part.pod_spec(|spec| {
            let name = (crate::gang::Node::NAME.to_owned(), node.to_owned());
            spec.node_selector.get_or_insert_default().extend([name]);
        })
    };
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4, 4]);
        model.run_time = 1000;
        let parts = |pods| vec![on("n0", part("w", 1, pods, 1))];
        model.create(gang("first", parts(2), &[]), 0, pod_groups);
        model.run(3);
        model.create(gang("high", parts(4), &[]), 5, pod_groups);
        model.run(3);
        model.create(gang("beside", parts(1), &[]), 0, pod_groups);
        model.create(
            gang("apart", vec![on("n1", part("w", 1, 4, 1))], &[]),
            0,
            pod_groups,
        );
        model.run(6);
        let bound = ["first", "high", "beside", "apart"].map(|name| model.bound(name));
        assert_eq!(bound, [2, 0, 0, 4], "{}", model.describe());
    }
}

/// A gang whose pods cannot be created, for example because of a quota, reserves nodes for a minute
/// at most, whatever its time-out.
#[test]
fn whose_pods_do_not_come_keeps_nothing_for_long() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4]);
        model.run_time = 30;
        let refused = gang("refused", vec![part("w", 1, 2, 1)], &[]);
        let refused = refused.with(|js| {
            js.spec.gang.as_mut().unwrap().schedule_timeout_seconds = Some(i32::MAX);
        });
        model.refused = Some("refused".to_owned());
        model.create(refused, 0, pod_groups);
        model.run(3);
        model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, pod_groups);
        model.run(30);
        assert_eq!(model.bound("a"), 0, "its pods may still come");
        model.run(40);
        assert_eq!(model.bound("a"), 4, "{}", model.describe());
        model.refused = None;
        model.finish(100);
    }
}

/// A waiting gang starts when the earlier gangs have ended, however many come later.
#[test]
fn no_gang_is_starved() {
    for size in 1..=3 {
        let mut model = one_waits();
        for index in 0..30 {
            model.create(
                gang(&format!("g{index}"), vec![part("w", size, 1, 1)], &[]),
                0,
                false,
            );
            model.run(1);
        }
        model.run(3);
        assert_eq!(model.bound("waits"), 6, "{}", model.describe());
    }
}

/// The pods, the cores of each, and how long they run.
type Shape = (i32, i32, i64);

/// For 10 nodes with 8 cores: some gangs need more than half of all cores.
fn random_shape(chance: &mut Chance) -> Shape {
    let mut between = |least: i32, most: i32| {
        let span = usize::try_from(most - least + 1).unwrap();
        least + i32::try_from(chance.below(span)).unwrap()
    };
    let (pods, cpu) = match between(0, 9) {
        0 => (between(11, 13), 4),
        1..=3 => (between(4, 10), between(1, 4)),
        _ => (between(1, 4), between(1, 8)),
    };
    (pods, cpu, i64::from(between(10, 60)))
}

/// In the model each observation, write and binding takes one step of a second.
const REACTION: i64 = 2;

/// How long gangs take on these nodes in order of arrival: each starts once all before it have
/// started and it has room. The scheduler chooses as the model's does. A start takes as long as the
/// model needs to observe the room, to write, and to bind.
fn in_order(gangs: &[Shape], cores: &[i32], chance: &mut Chance) -> i64 {
    let mut free = cores.to_vec();
    let mut running: Vec<(i64, Vec<usize>, i32)> = Vec::new();
    let mut now = 0;
    for (pods, cpu, time) in gangs {
        loop {
            let mut after = free.clone();
            let mut placed = Vec::new();
            for _ in 0..*pods {
                let open: Vec<usize> = (0..after.len()).filter(|node| after[*node] >= *cpu).collect();
                if !open.is_empty() {
                    let node = open[chance.below(open.len())];
                    after[node] -= cpu;
                    placed.push(node);
                }
            }
            if placed.len() == usize::try_from(*pods).unwrap() {
                free = after;
                running.push((now + REACTION + time, placed, *cpu));
                break;
            }
            now = running.iter().map(|(end, ..)| *end).min().unwrap();
            for (_, placed, cpu) in running.extract_if(.., |(end, ..)| *end <= now) {
                placed.iter().for_each(|node| free[*node] += cpu);
            }
        }
    }
    running.iter().map(|(end, ..)| *end).max().unwrap_or(now)
}

/// The gangs use at least as many of the node-seconds as in order of arrival.
#[test]
fn nodes_are_used_as_well_as_in_order_of_arrival() {
    let cores = [8; 10];
    let (mut ours, mut plain) = (0, 0);
    for seed in 1..=6 {
        let mut chance = Chance(seed * 0x9e37_79b9);
        let gangs: Vec<Shape> = (0..30).map(|_| random_shape(&mut chance)).collect();
        let mut model = Model::new(&cores);
        for (index, (pods, cpu, time)) in gangs.iter().enumerate() {
            let name = format!("g{index:02}");
            model.run_times.insert(name.clone(), *time);
            model.create(gang(&name, vec![part("w", 1, *pods, *cpu)], &[]), 0, false);
        }
        let start = model.now;
        model.finish(10_000);
        let took = model.now.duration_since(start).as_secs();
        let in_order = in_order(&gangs, &cores, &mut chance);
        ours += took;
        plain += in_order;
    }
    assert!(ours <= plain, "{ours} s, in order {plain} s");
}

/// The status also says what is missing if kube-scheduler starts the gang.
#[test]
fn the_message_of_a_pod_group_names_what_is_missing() {
    let mut model = Model::new(&[4, 4]);
    model.run_time = 30;
    model.create(gang("first", vec![part("w", 1, 5, 1)], &[]), 0, true);
    model.run(3);
    assert_eq!(model.status("first", "w").unwrap().message, None);
    model.create(gang("waits", vec![part("w", 1, 6, 1)], &[]), 0, true);
    model.create(gang("huge", vec![part("w", 1, 9, 1)], &[]), 0, true);
    model.run(3);
    let message = |name| model.status(name, "w").unwrap().message.unwrap();
    assert_eq!(message("waits"), "needs 6 pods x 1 cpu, 3 fit: 3 short of cpu");
    assert_eq!(
        message("huge"),
        "needs 9 pods x 1 cpu, 8 fit: 1 short of cpu, even if no JobSet ran"
    );
    let told = model
        .events
        .iter()
        .filter(|(_, name, event, _)| name == "waits" && *event == GangEvent::Waiting);
    let told: Vec<&str> = told.map(|(.., message)| message.as_str()).collect();
    assert_eq!(told, ["needs 6 pods x 1 cpu, 3 fit: 3 short of cpu"], "once");
    model.run(60);
    assert!(model.is_completed("waits"));
}
