//! Exclusive placement: at most one Job in each topology domain (rack, node pool), and each Job in
//! one domain.
//!
//! The pod of a Job with completion index 0 is its leader: affinity brings it to a domain of its
//! own. The other pods are followers: each is refused until the leader is scheduled, and then
//! selects the leader's domain. A follower that selects another domain, because the leader was
//! replaced or the webhook was unavailable, is evicted, and its replacement is placed again.
//!
//! Promises:
//! - Only pods that ask for it are touched, and not those that are placed by the node selector
//!   strategy.
//! - A follower that selects its leader's domain is never evicted, and nothing is evicted while the
//!   leader's domain is unknown.
//! - Changing a pod twice has the same effect as once.

mod admission;
mod eviction;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::{annotations, labels};

use crate::jobset::owner::controller_of;

pub use admission::{LeaderSearch, Refusal, admission, mutate};
pub use eviction::{CONDITION, MESSAGE, Question, REASON, misplaced, question};

#[cfg(test)]
mod tests;

/// The longest label key in bytes: a domain, a slash and a name.
pub(crate) const LONGEST_LABEL: usize = 253 + 1 + 63;

/// The role of a pod in its Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Completion index 0: chooses the domain.
    Leader,
    /// Any other index: follows the leader to its domain.
    Follower,
}

/// A pod that asks for exclusive placement, as far as placement is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// UID of the Job that controls it.
    pub job: Option<String>,
    /// Leader or follower.
    pub role: Role,
    /// The node label whose values are the domains.
    pub topology: String,
    /// The domain that its node selector names.
    pub selected: Option<String>,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// True if it is neither being deleted nor in a terminal phase.
    pub alive: bool,
    /// True if it has the condition that gives the reason of its eviction.
    pub marked: bool,
}

impl Member {
    /// Reads a pod; `None`: it does not ask for exclusive placement, or its topology key cannot be
    /// a node label.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        let topology = topology(pod).filter(|topology| topology.len() <= LONGEST_LABEL)?;
        let spec = pod.spec.as_ref();
        let selected = spec
            .and_then(|spec| spec.node_selector.as_ref()?.get(topology))
            .cloned();
        Some(Self {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            job: controller_of(&pod.metadata).map(|owner| owner.uid.clone()),
            role: role(pod),
            topology: topology.to_owned(),
            selected,
            node: spec
                .and_then(|spec| spec.node_name.clone())
                .filter(|node| !node.is_empty()),
            alive: pod.metadata.deletion_timestamp.is_none() && !is_terminal(pod),
            marked: eviction::is_marked(pod),
        })
    }
}

/// The role of the pod in its Job.
#[must_use]
pub fn role(pod: &Pod) -> Role {
    match annotation(pod, labels::BATCH_JOB_COMPLETION_INDEX) {
        Some("0") => Role::Leader,
        _ => Role::Follower,
    }
}

/// The node label whose values are the domains, if the pod asks for exclusive placement by
/// affinity.
#[must_use]
pub fn topology(pod: &Pod) -> Option<&str> {
    let by_node_selector = annotation(pod, annotations::NODE_SELECTOR_STRATEGY).is_some();
    annotation(pod, annotations::EXCLUSIVE_TOPOLOGY).filter(|_| !by_node_selector)
}

fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    value(pod.metadata.annotations.as_ref(), key)
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    value(pod.metadata.labels.as_ref(), key)
}

fn value<'a>(map: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    map?.get(key).map(String::as_str)
}
