//! The node daemons: on every node that should have one, and ready.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use lockstep_proto::platform::v1 as pb;

use super::{Level, Observed, Report};
use crate::view::nodes::{self, Nri};

/// Name of the DaemonSet.
const NAME: &str = "lockstep-node-daemon";
/// Most nodes that are named in one line.
const MAX_NAMED: usize = 5;

pub(super) fn check(seen: &Observed, report: &mut Report) {
    report.section("node daemons");
    let Some(daemons) = report.fetched("the DaemonSet of the node daemons", &seen.daemon_set) else {
        return;
    };
    let namespace = &seen.namespace;
    let Some(daemons) = daemons else {
        return report.error(
            format!("DaemonSet {namespace}/{NAME} does not exist"),
            "without node daemons nothing restarts in place: set nodeDaemon.enabled=true in the chart",
        );
    };
    let (Some(all), Some(pods)) = (
        report.fetched("nodes", &seen.nodes),
        report.fetched("the pods of the node daemons", &seen.daemon_pods),
    ) else {
        return;
    };
    let rows = nodes::rows(all, pods, &nodes::PlatformNodes::default());
    let wanted = |node: &str| {
        let node = all.iter().find(|it| it.name_any() == node);
        node.is_some_and(|node| nodes::is_wanted(daemons, node))
    };
    let missing = names(
        rows.iter()
            .filter(|row| row.pod.is_none() && wanted(&row.node) && !row.unschedulable),
    );
    if let Some(missing) = missing {
        report.error(
            format!("no node daemon on {missing}"),
            format!("kubectl -n {namespace} describe daemonset {NAME}; failures there lead to recreations"),
        );
    }
    let left_out = names(
        rows.iter()
            .filter(|row| row.pod.is_none() && !wanted(&row.node) && row.node_ready),
    );
    if let Some(left_out) = left_out {
        report.warning(
            format!("the DaemonSet excludes {left_out}"),
            "workers there cannot be restarted in place: see nodeDaemon.nodeSelector and nodeDaemon.tolerations of the chart",
        );
    }
    let unready = names(rows.iter().filter(|row| row.pod.is_some() && !row.ready));
    if let Some(unready) = unready {
        report.error(
            format!("the node daemon is not ready on {unready}"),
            format!("kubectl lockstep nodes; kubectl -n {namespace} logs daemonset/{NAME}"),
        );
    }
    let ready = rows.iter().filter(|row| row.ready).count();
    if none_missing(&rows, &wanted) && ready > 0 && rows.iter().all(|row| row.pod.is_none() || row.ready) {
        report.ok(format!(
            "node daemons are ready on {ready} of {} nodes",
            rows.len()
        ));
    } else if rows.is_empty() {
        report.warning("there are no nodes", "nothing can run yet");
    }
    // A daemon that reports its NRI knows better than the version.
    let reports = |name: &str| {
        let mut connected = seen.connected.iter().flatten();
        connected.any(|node| node.name == name && node.nri.is_some())
    };
    let too_old = names(
        rows.iter()
            .filter(|row| row.pod.is_some() && row.nri == Nri::TooOld && !reports(&row.node)),
    );
    for (why, nodes) in without_nri(seen) {
        report.warning(
            format!("no agent gets into containers on {}: {why}", named(&nodes)),
            "if a worker that starts there fails, its group is recreated: kubectl lockstep nodes -o wide",
        );
    }
    if let Some(too_old) = too_old {
        report.warning(
            format!("containerd is too old on {too_old}: it cannot put agents into containers"),
            "use containerd 2.2 or later, or nodeDaemon.injectAgent of the chart",
        );
    }
}

/// What happens to a worker that is out of memory, and to its agent.
pub(super) fn memory(seen: &Observed, report: &mut Report) {
    let asked = &seen.kills_of_whole_containers;
    let whole = asked.iter().filter(|(_, whole)| **whole);
    let whole: Vec<&str> = whole.map(|(node, _)| node.as_str()).collect();
    if !whole.is_empty() {
        // Kubernetes' default with cgroup v2, so it is no fault.
        let text = format!(
            "a worker that is out of memory is killed with its agent on {}",
            named(&whole)
        );
        let hint = "its group waits until the kubelet has started the container again, unless the kubelet's configuration has singleProcessOOMKill";
        report.say(Level::Ok, text, Some(hint.to_owned()));
    } else if !asked.is_empty() {
        let all = seen.nodes.as_ref().map_or(0, Vec::len);
        report.ok(format!(
            "if a worker is out of memory, its agent survives: asked {} of {all} nodes",
            asked.len()
        ));
    }
}

fn none_missing(rows: &[nodes::Row], wanted: &impl Fn(&str) -> bool) -> bool {
    !rows
        .iter()
        .any(|row| row.pod.is_none() && wanted(&row.node) && !row.unschedulable)
}

/// The names of these nodes, or the first of them and a count.
fn names<'r>(rows: impl Iterator<Item = &'r nodes::Row>) -> Option<String> {
    let names: Vec<&str> = rows.map(|row| row.node.as_str()).collect();
    (!names.is_empty()).then(|| named(&names))
}

fn named(names: &[&str]) -> String {
    match names.len() {
        0..=MAX_NAMED => names.join(", "),
        more => format!("{} and {} more", names[..MAX_NAMED].join(", "), more - MAX_NAMED),
    }
}

/// The nodes whose daemons report that they cannot use NRI, by the reason. Nodes on which pod
/// templates already contain the agents are left out.
fn without_nri(seen: &Observed) -> BTreeMap<&str, Vec<&str>> {
    let mut without: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in seen.connected.iter().flatten() {
        if let Some(nri) = &node.nri
            && nri.state() == pb::RuntimeAccessState::Away
            && node.level != "Process"
        {
            without.entry(&nri.detail).or_default().push(&node.name);
        }
    }
    without
}
