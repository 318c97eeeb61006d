//! Who is believed about which pod.

use lockstep_core::restart::{Epoch, Gathered, Phase};
use lockstep_proto::node::v1 as pb;
use serde_json::json;

use super::*;
use crate::hub::{GroupPolicy, Outbox, Registry};

#[test]
fn a_node_is_believed_about_its_own_pods_alone() {
    let jobset = json!({"metadata": {"name": "js", "uid": "u", "namespace": "default"}, "spec": {}});
    let jobset: JobSet = serde_json::from_value(jobset).unwrap();
    let bound = [("p1", Some("n1")), ("p2", Some("n2")), ("p3", None)];
    let view = View {
        gathered: Gathered {
            pods: bound
                .iter()
                .map(|(pod, node)| ((*pod).to_owned(), node.map(str::to_owned)))
                .collect(),
            ..Gathered::default()
        },
        policy: GroupPolicy::default(),
        nodes: Arc::new(BTreeSet::from(["n1".to_owned(), "n2".to_owned()])),
        places: BTreeMap::new(),
    };
    let registry = Registry::new(Epoch(7));
    let link = registry.claim("u");
    let connect = |node| registry.connect(node, &Outbox::new(pb::Welcome::default()), 1, Vec::new());
    let sessions = BTreeMap::from([("n1", connect("n1")), ("n2", connect("n2"))]);
    let says = |node: &str, pod: &str, phase: pb::Phase| {
        let worker = pb::WorkerState {
            group_uid: "u".into(),
            job: "js-w-0".into(),
            container: "worker".into(),
            incarnation: Some(pb::Incarnation {
                pod_uid: pod.into(),
                container_id: format!("container of {pod}"),
            }),
            phase: phase.into(),
            revision: 9,
            ..pb::WorkerState::default()
        };
        registry.report(node, sessions[node], vec![worker]);
    };
    says("n1", "p1", pb::Phase::Running);
    // A pod of another node, one that is on none yet, one that does not exist; and not a word of its own is taken over.
    says("n1", "p2", pb::Phase::Lost);
    says("n1", "p3", pb::Phase::Lost);
    says("n1", "forged", pb::Phase::Lost);
    says("n2", "p1", pb::Phase::Lost);

    let sight = Sight::new(view, &jobset, &link, Durable::default(), false);
    let believed: Vec<_> = sight
        .observed()
        .reports
        .iter()
        .map(|(incarnation, report)| (incarnation.pod_uid.as_str(), report.node.as_str(), report.phase))
        .collect();
    assert_eq!(believed, [("p1", "n1", Phase::Running)]);
}
