use k8s_openapi::api::core::v1 as k8s;
use lockstep_api::{annotations, labels};
use lockstep_core::gang::{Footprint, Node, Pod};
use serde_json::{Value, json};

use super::{SeenNode, SeenPod};

/// A pod with all fields that are read, and more.
fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generateName": "p-",
            "deletionTimestamp": "2024-01-01T00:00:00Z",
            "annotations": {annotations::GANG: "w", annotations::EXCLUSIVE_TOPOLOGY: "rack"},
            "labels": {
                labels::JOBSET_NAME: "js", labels::JOBSET_UID: "set", labels::RESTART_ATTEMPT: "1",
                labels::REPLICATED_JOB_NAME: "w", labels::JOB_INDEX: "2", labels::BATCH_JOB_COMPLETION_INDEX: "3",
                labels::JOB_KEY: "key", labels::PRIORITY: "5",
            },
        },
        "spec": {
            "nodeName": "n",
            "nodeSelector": {"zone": "a"},
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
                ]}},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname"},
                ]},
            },
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "schedulingGates": [{"name": "other"}, {"name": labels::GANG_GATE}],
            "schedulingGroup": {"podGroupName": "of-the-job"},
            "schedulerName": "another",
            "priority": 9,
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"},
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
            "resources": {"requests": {"memory": "3Gi"}},
            "overhead": {"cpu": "250m"},
            "containers": [{
                "name": "c", "image": "i", "command": ["sh"], "env": [{"name": "A", "value": "b"}],
                "ports": [{"containerPort": 80, "hostPort": 80}],
                "resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "2", "example.com/gpu": "4"}},
            }],
            "initContainers": [
                {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"name": "i", "image": "i", "resources": {"requests": {"cpu": "5"}}},
            ],
            "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "c", "emptyDir": {}},
            ],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [],
            "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}],
        },
    })
}

#[test]
fn the_lean_pod_decides_like_the_whole_pod() {
    let ephemeral_only = {
        let mut pod = pod();
        pod["spec"]["volumes"] = json!([{"name": "b", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]);
        pod
    };
    let by_reason = {
        let mut pod = pod();
        pod["status"] = json!({"reason": "NodeLost"});
        pod
    };
    for pod in [pod(), ephemeral_only, by_reason] {
        let whole: k8s::Pod = serde_json::from_value(pod.clone()).unwrap();
        let SeenPod(seen) = serde_json::from_value(pod).unwrap();
        let (of_whole, of_seen) = (Pod::of(&whole).unwrap(), Pod::of(&seen).unwrap());
        assert_eq!(of_seen, of_whole);
        assert!(of_seen.gated && of_seen.deleting && of_seen.node_lost);
        for what in ["persistentVolumeClaim", "schedulingGroup"] {
            assert!(
                of_seen.needs.unknown.contains(&what),
                "{:?}",
                of_seen.needs.unknown
            );
        }
        assert_eq!(Footprint::of(&seen), Footprint::of(&whole));
        assert!(Footprint::of(&seen).is_some());
        assert_eq!(seen.metadata.resource_version, whole.metadata.resource_version);
    }
}

#[test]
fn a_pod_with_few_fields_can_be_read() {
    let SeenPod(seen) = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
    assert_eq!(Footprint::of(&seen), None);
}

#[test]
fn the_lean_node_decides_like_the_whole_node() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "labels": {"zone": "a"}},
        "spec": {"unschedulable": true, "taints": [{"key": "gpu", "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
        "status": {
            "allocatable": {"cpu": "4", "pods": "110"},
            "capacity": {"cpu": "5", "pods": "110"},
            "images": [{"names": ["a", "b"], "sizeBytes": 7}],
        },
    });
    let whole: k8s::Node = serde_json::from_value(node.clone()).unwrap();
    let SeenNode(seen) = serde_json::from_value(node).unwrap();
    assert_eq!(Node::of(&seen), Node::of(&whole));
    assert!(Node::of(&seen).unschedulable);
}

#[test]
fn only_volumes_and_containers_that_decisions_depend_on_are_kept() {
    let mut pod = pod();
    let claim = |n: usize| json!({"name": format!("c{n}"), "persistentVolumeClaim": {"claimName": "data"}});
    let empty = |n: usize| json!({"name": format!("e{n}"), "emptyDir": {}});
    let (claims, dirs) = ((0..100).map(claim), (0..100).map(empty));
    pod["spec"]["volumes"] = dirs.chain(claims).collect();
    let sidecar = |n: usize| json!({"name": format!("s{n}"), "image": "i", "resources": {}});
    let worker = pod["spec"]["containers"][0].clone();
    pod["spec"]["containers"] = (0..100).map(sidecar).chain([worker]).collect();
    let whole: k8s::Pod = serde_json::from_value(pod.clone()).unwrap();
    let SeenPod(seen) = serde_json::from_value(pod).unwrap();
    assert_eq!(Pod::of(&seen), Pod::of(&whole));
    let spec = seen.spec.unwrap();
    assert_eq!((spec.volumes.unwrap().len(), spec.containers.len()), (1, 1));
}
