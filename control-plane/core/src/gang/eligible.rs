//! The nodes that a pod may run on at all: labels, affinity and taints, as kube-scheduler evaluates
//! them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

use super::{Needs, Node};

/// The taint of a cordoned node, which pods may tolerate.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// True if the node may take a pod with these needs, regardless of resources and exclusive
/// placement.
pub(super) fn is_eligible(needs: &Needs, node: &Node) -> bool {
    let selected = needs
        .node_selector
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value));
    let attracted = needs
        .affinity
        .as_ref()
        .is_none_or(|terms| terms.iter().any(|term| matches(term, &node.labels)));
    let tolerates = |taint: &Taint| {
        let keeps_away = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        !keeps_away
            || needs
                .tolerations
                .iter()
                .any(|toleration| covers(toleration, taint))
    };
    let cordon = || Taint {
        key: UNSCHEDULABLE.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    selected
        && attracted
        && (!node.unschedulable || tolerates(&cordon()))
        && node.taints.iter().all(tolerates)
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let any = |text: Option<&str>| text.is_none_or(str::is_empty);
    let key = toleration.key.as_deref();
    let effect = toleration.effect.as_deref();
    let exists = toleration.operator.as_deref() == Some("Exists");
    let same_value = || toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("");
    let equal = matches!(toleration.operator.as_deref(), None | Some("" | "Equal"));
    (any(effect) || effect == Some(taint.effect.as_str()))
        && (key == Some(taint.key.as_str()) || any(key) && exists)
        && (exists || equal && same_value())
}

/// A term without requirements matches nothing.
fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    let mut requirements = expressions(term).peekable();
    requirements.peek().is_some() && requirements.all(|requirement| holds(requirement, labels))
}

/// Fields are matched like labels: the node's name is among its labels.
fn expressions(term: &NodeSelectorTerm) -> impl Iterator<Item = &NodeSelectorRequirement> {
    let labels = term.match_expressions.iter().flatten();
    labels.chain(term.match_fields.iter().flatten())
}

fn holds(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let label = labels.get(&requirement.key);
    let values = || requirement.values.iter().flatten();
    let number = |text: &String| text.parse::<i64>().ok();
    let compare = |holds: fn(i64, i64) -> bool| {
        let pair = label.and_then(number).zip(values().next().and_then(number));
        pair.is_some_and(|(label, value)| holds(label, value))
    };
    match requirement.operator.as_str() {
        "In" => label.is_some_and(|label| values().any(|value| value == label)),
        "NotIn" => !label.is_some_and(|label| values().any(|value| value == label)),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => compare(|label, value| label > value),
        "Lt" => compare(|label, value| label < value),
        _ => false,
    }
}
