//! Groups without agents on a node whose clock is wrong.

use super::nodes::{CRASHED, Nodes};
use crate::restart::{Generation, GroupPhase, Phase, UnixNanos};

/// Two workers that run at generation 0. The third has never had a pod, so that their replicatedJob
/// has not started.
fn starting() -> Nodes {
    let mut nodes = Nodes::created(3, 3);
    nodes.pod(0);
    nodes.pod(1);
    nodes.settle();
    assert_eq!(nodes.running_at(Generation(0)), 2);
    nodes
}

/// By its node's clock, the container of this index began before everything else.
fn is_behind(nodes: &mut Nodes, index: u32) {
    let (incarnation, _) = nodes.live(index).unwrap();
    let report = nodes.observed.reports.get_mut(&incarnation).unwrap();
    report.since = UnixNanos(1);
}

#[test]
fn a_pod_that_replaces_a_lost_one_is_not_stopped() {
    let mut nodes = starting();
    nodes.end(0, CRASHED);
    nodes.look();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::Stopping);
    for _ in 0..2 {
        nodes.lose(0);
        nodes.look();
        nodes.pod(0);
        is_behind(&mut nodes, 0);
        nodes.look();
    }
    nodes.settle();
    assert_eq!((nodes.stops, nodes.running_at(Generation(1))), (1, 2));
    assert_eq!(nodes.observed.durable.counted_restarts, 1);
}

#[test]
fn the_successor_of_a_container_that_failed_before_its_daemon_knew_its_generation_is_not_stopped() {
    let mut nodes = starting();
    nodes.pod(2);
    nodes.look();
    let (failed, report) = nodes.live(2).unwrap();
    assert_eq!(report.phase, Phase::Fresh);
    nodes.report(&failed, 2, Phase::Lost(CRASHED), Generation(0));
    nodes.container(2);
    is_behind(&mut nodes, 2);
    nodes.settle();
    assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
    assert_eq!((nodes.stops, nodes.running_at(Generation(1))), (2, 3));
    assert_eq!(nodes.observed.durable.counted_restarts, 1);
}
