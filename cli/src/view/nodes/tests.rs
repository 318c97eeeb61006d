use serde_json::{Value, json};

use super::*;
use crate::view::testing::object;

fn node(name: &str, spec: Value) -> Node {
    object(json!({
        "metadata": {"name": name, "labels": {"pool": "gpu"}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.3.7", "architecture": "", "bootID": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}},
    }))
}

#[test]
fn the_version_of_the_runtime_implies_nri() {
    for (runtime, nri) in [
        ("containerd://2.2.0", Nri::OnByDefault),
        ("containerd://v2.3.0-rc.1", Nri::OnByDefault),
        ("containerd://3.0.1", Nri::OnByDefault),
        ("containerd://2.1.4", Nri::TooOld),
        ("containerd://1.7.20", Nri::TooOld),
        ("cri-o://1.32.0", Nri::Unknown),
        ("containerd://", Nri::Unknown),
    ] {
        assert_eq!(Nri::of(runtime), nri, "{runtime}");
    }
}

#[test]
fn a_node_is_shown_with_its_daemon_or_without() {
    let daemon: Pod = object(json!({
        "metadata": {"name": "d1"},
        "spec": {"nodeName": "n1", "containers": [{"name": "node-daemon", "image": "r.example/lockstep-node-daemon:0.1.0"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }));
    let worker = |node: &str, phase: pb::WorkerPhase| pb::Worker {
        node: node.into(),
        phase: phase.into(),
        ..pb::Worker::default()
    };
    let group = pb::Group {
        workers: vec![
            worker("n1", pb::WorkerPhase::Running),
            worker("n1", pb::WorkerPhase::Unlinked),
            worker("n2", pb::WorkerPhase::Pending),
        ],
        ..pb::Group::default()
    };
    let nodes = [node("n2", json!({})), node("n1", json!({}))];
    let way = |state: pb::RuntimeAccessState, detail: &str| pb::RuntimeAccess {
        state: state.into(),
        since_unix_nanos: 1_700_000_000_000_000_000,
        detail: detail.into(),
    };
    let connected = pb::Node {
        name: "n1".into(),
        daemon_version: "0.1.0".into(),
        protocol: 3,
        level: "Container".into(),
        cri: Some(way(pb::RuntimeAccessState::Well, "")),
        nri: Some(way(pb::RuntimeAccessState::Away, "no socket")),
    };
    let rows = rows(
        &nodes,
        &[daemon],
        &PlatformNodes::new(&[group], Some(vec![connected])),
    );
    assert_eq!(
        (rows[0].node.as_str(), rows[0].ready, rows[0].pod.as_deref()),
        ("n1", true, Some("d1"))
    );
    assert_eq!((rows[0].workers, rows[0].workers_linked), (Some(2), Some(1)));
    assert_eq!(
        (rows[0].daemon_version.as_deref(), rows[0].protocol),
        (Some("0.1.0"), Some(3))
    );
    assert_eq!((&rows[1].daemon_version, rows[1].protocol), (&None, None));
    assert_eq!(
        (rows[1].ready, rows[1].pod.as_deref(), rows[1].workers_linked),
        (false, None, Some(0))
    );
    assert_eq!(
        (rows[0].connected, rows[0].level),
        (Connection::Connected, Some(RestartLevel::Container))
    );
    let nri = serde_json::to_value(&rows[0].nri_health).unwrap();
    assert_eq!(
        nri,
        json!({"state": "away", "since": "2023-11-14T22:13:20Z", "detail": "no socket"})
    );
    // Nothing restarts in place without a connected daemon, whatever the state of its pod.
    assert_eq!(
        (rows[1].connected, rows[1].level),
        (Connection::Missing, Some(RestartLevel::Pod))
    );
    assert_eq!(rows[1].nri_health, None);
}

#[test]
fn what_the_platform_api_does_not_report_is_unknown() {
    let nodes = [node("n1", json!({}))];
    let unreached = &rows(&nodes, &[], &PlatformNodes::default())[0];
    assert_eq!(
        (unreached.connected, unreached.level, unreached.workers),
        (Connection::Unknown, None, None)
    );
    // An older control plane, and an older daemon.
    let older = &rows(&nodes, &[], &PlatformNodes::new(&[], None))[0];
    assert_eq!(
        (older.connected, older.level, older.workers),
        (Connection::Unknown, None, Some(0))
    );
    let silent = pb::Node {
        name: "n1".into(),
        ..pb::Node::default()
    };
    let silent = &rows(&nodes, &[], &PlatformNodes::new(&[], Some(vec![silent])))[0];
    assert_eq!((silent.connected, silent.level), (Connection::Connected, None));
    assert!(
        silent
            .cri_health
            .as_ref()
            .is_some_and(|way| way.state == AccessState::Unknown)
    );
}

#[test]
fn the_daemon_set_wants_nodes_whose_taints_it_tolerates() {
    let daemons = |spec: Value| -> DaemonSet {
        object(json!({"metadata": {}, "spec": {"selector": {}, "template": {"spec": spec}}}))
    };
    let tainted = node(
        "n",
        json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}),
    );
    let cordoned = node(
        "n",
        json!({"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}),
    );
    let plain = daemons(json!({"containers": []}));
    assert!(!is_wanted(&plain, &tainted) && is_wanted(&plain, &cordoned));
    let tolerant = daemons(json!({"containers": [], "tolerations": [{"operator": "Exists"}]}));
    assert!(is_wanted(&tolerant, &tainted));
    let exactly = daemons(json!({"containers": [], "tolerations": [{"key": "gpu", "value": "yes"}]}));
    assert!(is_wanted(&exactly, &tainted));
    let elsewhere = daemons(json!({"containers": [], "nodeSelector": {"pool": "cpu"}}));
    assert!(!is_wanted(&elsewhere, &cordoned));
}
