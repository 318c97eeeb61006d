use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{annotations, labels};
use proptest::prelude::*;
use serde_json::json;

use super::model::Chance;
use crate::common::quantity::quantity;
use crate::gang::eligible::is_eligible;
use crate::gang::fit::{Demand, Fit, Room};
use crate::gang::{Exclusive, Needs, Node, Resources, message};

fn cores(amount: i128) -> Resources {
    let mut resources = Resources::default();
    resources.set("cpu", amount * 1000);
    resources.set(Resources::PODS, 1000);
    resources
}

fn needs(cpu: i128) -> Needs {
    Needs {
        requests: cores(cpu).into(),
        ..Needs::default()
    }
}

fn node(cpu: i128) -> Node {
    let mut allocatable = cores(cpu);
    allocatable.set(Resources::PODS, 110_000);
    Node {
        allocatable,
        ..Node::default()
    }
}

fn nodes(cpus: &[i128]) -> BTreeMap<String, Node> {
    let nodes = cpus.iter().enumerate();
    nodes
        .map(|(index, cpu)| (format!("n{index}"), node(*cpu)))
        .collect()
}

#[test]
fn quantities_are_read_as_kubernetes_writes_them() {
    let read = [
        ("1", 1000),
        ("100m", 100),
        ("1.5", 1500),
        ("64Gi", 64 * 1024 * 1024 * 1024 * 1000),
        ("1e3", 1_000_000),
        ("5E", 5_000_000_000_000_000_000_000),
        ("500u", 1),
        ("-1", -1000),
        (".5", 500),
    ];
    for (text, amount) in read {
        assert_eq!(quantity(text), Some(amount), "{text}");
    }
    for text in ["", "one", "1x", "1ee3", "Gi"] {
        assert_eq!(quantity(text), None, "{text}");
    }
}

/// kube-scheduler also checks the host ports of sidecars, but not those of other init containers.
#[test]
fn host_ports_of_sidecars_are_not_understood() {
    let unknown = |restart_policy: Option<&str>| {
        let port = ContainerPort {
            container_port: 80,
            host_port: Some(80),
            ..ContainerPort::default()
        };
        let container = Container {
            restart_policy: restart_policy.map(str::to_owned),
            ports: Some(vec![port]),
            ..Container::default()
        };
        let spec = PodSpec {
            init_containers: Some(vec![container]),
            ..PodSpec::default()
        };
        Needs::of(&ObjectMeta::default(), &spec).unknown
    };
    assert_eq!(unknown(Some("Always")), ["hostPort"]);
    assert!(unknown(None).is_empty());
}

/// Each decision checks each of them against each node.
#[test]
fn more_terms_and_tolerations_than_are_reckoned_with_are_left_to_the_scheduler() {
    let needs = |terms: usize, tolerations: usize| {
        let requirement = json!({"key": "a", "operator": "Exists"});
        let term = json!({"matchExpressions": [requirement]});
        let required = json!({"nodeSelectorTerms": vec![term; terms]});
        let spec = json!({
            "containers": [],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "tolerations": vec![json!({"key": "a"}); tolerations],
        });
        Needs::of(&ObjectMeta::default(), &serde_json::from_value(spec).unwrap())
    };
    assert!(needs(1024, 1024).unknown.is_empty());
    let mut tainted = node(4);
    tainted.taints = vec![Taint {
        key: "other".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }];
    assert!(!is_eligible(&needs(1024, 1024), &tainted));
    let hostile = needs(1025, 1025);
    assert_eq!(hostile.unknown, ["nodeAffinity", "tolerations"]);
    assert!(is_eligible(&hostile, &tainted));
}

#[test]
fn more_labels_and_amounts_than_are_reckoned_with_are_left_to_the_scheduler() {
    let needs = |labels: usize, amounts: usize| {
        let many = |count: usize| -> BTreeMap<String, &str> {
            (0..count).map(|n| (format!("example.com/{n}"), "1")).collect()
        };
        let spec = json!({
            "nodeSelector": many(labels),
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}},
                {"name": "b", "resources": {"requests": many(amounts - 2)}},
            ],
        });
        Needs::of(&ObjectMeta::default(), &serde_json::from_value(spec).unwrap())
    };
    let most = needs(1024, 1024);
    assert!(most.unknown.is_empty(), "{:?}", most.unknown);
    assert_eq!(
        (most.node_selector.len(), most.requests.get("example.com/7")),
        (1024, 1000)
    );
    let hostile = needs(1025, 1025);
    assert_eq!(hostile.unknown, ["resources", "nodeSelector"]);
    assert_eq!(hostile.node_selector, BTreeMap::new().into());
    let asked: Vec<_> = hostile.requests.iter().collect();
    let gibibyte = 1000 * (1 << 30);
    assert_eq!(
        asked,
        [("cpu", 2000), ("memory", gibibyte), (Resources::PODS, 1000)]
    );
}

/// Kubernetes accepts any text as a value of node affinity.
#[test]
fn long_values_of_affinity_are_left_to_the_scheduler() {
    let unknown = |bytes: usize| {
        let requirement = json!({"key": "a", "operator": "In", "values": ["x".repeat(bytes)]});
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [requirement]}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
        let spec = json!({"containers": [], "affinity": affinity});
        Needs::of(&ObjectMeta::default(), &serde_json::from_value(spec).unwrap()).unknown
    };
    assert!(unknown(10_000).is_empty());
    assert_eq!(unknown(1 << 20), ["nodeAffinity"]);
}

#[test]
fn a_topology_that_can_be_no_label_is_none() {
    let exclusive = |bytes: usize| {
        let meta = json!({
            "annotations": {annotations::EXCLUSIVE_TOPOLOGY: "x".repeat(bytes)},
            "labels": {labels::JOB_KEY: "key"},
        });
        Needs::of(&serde_json::from_value(meta).unwrap(), &PodSpec::default()).exclusive
    };
    assert!(exclusive(317).is_some());
    assert_eq!(exclusive(318), None);
}

#[test]
fn the_message_names_what_is_missing() {
    let nodes = nodes(&[8, 7, 3]);
    let needs = needs(4);
    let groups = [Demand {
        needs: &needs,
        count: 5,
    }];
    let shortfall = Room::now(&nodes).fits(&groups).unwrap_err();
    assert_eq!(
        message::short(&groups, &shortfall),
        "needs 5 pods x 4 cpu, 3 fit: 2 short of cpu"
    );
    let picky = Needs {
        node_selector: BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]).into(),
        ..needs.clone()
    };
    let groups = [Demand {
        needs: &picky,
        count: 2,
    }];
    let shortfall = Room::now(&nodes).fits(&groups).unwrap_err();
    assert_eq!(
        message::short(&groups, &shortfall),
        "needs 2 pods x 4 cpu, 0 fit: 2 short of nodes that match"
    );
}

#[test]
fn labels_taints_and_cordons_are_read() {
    let mut node = node(4);
    node.labels = BTreeMap::from([
        ("zone".to_owned(), "a".to_owned()),
        ("n".to_owned(), "7".to_owned()),
    ]);
    let term = |key: &str, operator: &str, values: &[&str]| {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let requirement = NodeSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values),
        };
        let affinity = Some(vec![NodeSelectorTerm {
            match_expressions: Some(vec![requirement]),
            match_fields: None,
        }]);
        is_eligible(
            &Needs {
                affinity: affinity.map(Into::into),
                ..Needs::default()
            },
            &node,
        )
    };
    assert!(term("zone", "In", &["a", "b"]) && !term("zone", "In", &["b"]));
    assert!(term("zone", "NotIn", &["b"]) && !term("zone", "NotIn", &["a"]) && term("x", "NotIn", &["a"]));
    assert!(term("zone", "Exists", &[]) && !term("x", "Exists", &[]));
    assert!(term("x", "DoesNotExist", &[]) && !term("zone", "DoesNotExist", &[]));
    assert!(term("n", "Gt", &["6"]) && !term("n", "Gt", &["7"]) && term("n", "Lt", &["8"]));
    assert!(!term("zone", "Whatever", &["a"]));

    let taint = |effect: &str| Taint {
        key: "gpu".to_owned(),
        value: Some("yes".to_owned()),
        effect: effect.to_owned(),
        ..Taint::default()
    };
    let mut tainted = node.clone();
    tainted.taints = vec![taint("NoSchedule")];
    let tolerates = |toleration: Toleration, node: &Node| {
        let tolerations = vec![toleration].into();
        is_eligible(
            &Needs {
                tolerations,
                ..Needs::default()
            },
            node,
        )
    };
    let equal = Toleration {
        key: Some("gpu".to_owned()),
        value: Some("yes".to_owned()),
        ..Toleration::default()
    };
    let any = Toleration {
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    assert!(!is_eligible(&Needs::default(), &tainted));
    assert!(tolerates(equal.clone(), &tainted) && tolerates(any.clone(), &tainted));
    tainted.taints = vec![taint("PreferNoSchedule")];
    assert!(is_eligible(&Needs::default(), &tainted));
    tainted.unschedulable = true;
    assert!(
        !is_eligible(&Needs::default(), &tainted) && tolerates(any, &tainted) && !tolerates(equal, &tainted)
    );
}

/// Each Job needs a domain of its own, with room for all its pods.
#[test]
fn exclusive_jobs_take_a_domain_each() {
    let mut nodes = nodes(&[4, 4, 4, 4]);
    for (index, node) in nodes.values_mut().enumerate() {
        node.labels.insert("rack".to_owned(), format!("r{}", index / 2));
    }
    let job = |key: &str| Needs {
        exclusive: Some(Exclusive {
            topology: "rack".to_owned(),
            job_key: key.to_owned(),
            priority: None,
        }),
        ..needs(1)
    };
    let (a, b, c) = (job("a"), job("b"), job("c"));
    let fits = |nodes: &BTreeMap<String, Node>, groups: &[(&Needs, u32)]| {
        let groups: Vec<Demand<'_>> = groups
            .iter()
            .map(|(needs, count)| Demand { needs, count: *count })
            .collect();
        Room::now(nodes).fits(&groups).is_ok()
    };
    assert!(fits(&nodes, &[(&a, 8), (&b, 8)]));
    assert!(!fits(&nodes, &[(&a, 9)]), "one rack holds 8");
    assert!(!fits(&nodes, &[(&a, 1), (&b, 1), (&c, 1)]), "there are two racks");
    nodes
        .get_mut("n0")
        .unwrap()
        .jobs
        .insert(("other".to_owned(), None));
    assert!(!fits(&nodes, &[(&a, 8), (&b, 8)]), "a rack is taken");
    nodes.get_mut("n2").unwrap().jobs.insert(("a".to_owned(), None));
    assert!(fits(&nodes, &[(&a, 7)]), "it may go where it is");
    assert!(!fits(&nodes, &[(&b, 1)]));
}

proptest! {
    /// Pods that surely fit do fit, in any order and on any of the nodes.
    #[test]
    fn what_surely_fits_fits(
        cpus in prop::collection::vec(1_i128..9, 1..6),
        groups in prop::collection::vec((1_i128..5, 1_u32..5), 1..4),
        seed in 1_u64..,
    ) {
        let nodes = nodes(&cpus);
        let needs: Vec<(Needs, u32)> = groups.iter().map(|(cpu, count)| (needs(*cpu), *count)).collect();
        let groups: Vec<Demand<'_>> =
            needs.iter().map(|(needs, count)| Demand { needs, count: *count }).collect();
        // Some of them were promised room before.
        let mut chance = Chance(seed);
        let split = chance.below(groups.len());
        let mut room = Room::now(&nodes);
        room.promise(&groups[..split]);
        let before = room.clone();
        let fit = room.fits(&groups[split..]);
        prop_assert_eq!(format!("{before:?}"), format!("{room:?}"), "the check takes nothing");
        prop_assume!(fit == Ok(Fit::Surely));
        let mut pods: Vec<(&Needs, bool)> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            pods.extend((0..group.count).map(|_| (group.needs, index >= split)));
        }
        let mut free: Vec<Resources> = nodes.values().map(|node| node.allocatable.clone()).collect();
        while !pods.is_empty() {
            let next = chance.below(pods.len());
            let (needs, must) = pods.swap_remove(next);
            let open: Vec<usize> =
                (0..free.len()).filter(|index| free[*index].holds(&needs.requests) > 0).collect();
            prop_assert!(!open.is_empty() || !must);
            if !open.is_empty() {
                free[open[chance.below(open.len())]].take(&needs.requests, 1);
            }
        }
    }

    /// Pods that fit never overcommit a node.
    #[test]
    fn room_is_given_away_once(
        cpus in prop::collection::vec(1_i128..9, 1..6),
        groups in prop::collection::vec((1_i128..5, 1_u32..5), 1..5),
    ) {
        let nodes = nodes(&cpus);
        let needs: Vec<(Needs, u32)> = groups.iter().map(|(cpu, count)| (needs(*cpu), *count)).collect();
        let groups: Vec<Demand<'_>> =
            needs.iter().map(|(needs, count)| Demand { needs, count: *count }).collect();
        let mut room = Room::now(&nodes);
        if room.fits(&groups).is_ok() {
            let asked: i128 = groups.iter().map(|group| group.needs.requests.get("cpu") * i128::from(group.count)).sum();
            prop_assert!(asked <= cpus.iter().sum::<i128>() * 1000);
        }
    }
}
