//! Exclusive placement: a Job goes to one domain without other Jobs of the same priority.

use std::collections::BTreeMap;

use super::super::Exclusive;
use super::{Demand, NodeRoom, Room};

impl<'a> Room<'a> {
    /// The nodes of the Job's domain: the one where it already runs, else the smallest that holds
    /// all its pods, else the one that holds most of them.
    pub(super) fn domain(&self, group: &Demand<'a>, exclusive: &Exclusive) -> Vec<usize> {
        let mut domains: BTreeMap<&str, Domain> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(value) = node.facts.labels.get(&exclusive.topology) else {
                continue;
            };
            let domain = domains.entry(value).or_default();
            domain.is_taken |= node.has(|key, priority| excludes(exclusive, key, priority));
            domain.is_ours |= node.has(|key, _| key == exclusive.job_key);
            if node.could_take(group.needs) {
                domain.holds = domain
                    .holds
                    .saturating_add(node.free.holds(&group.needs.requests));
                domain.nodes.push(index);
            }
        }
        let open = domains.into_values().filter(|domain| !domain.is_taken);
        let best = open.max_by_key(|domain| {
            let enough = domain.holds >= group.count;
            // Among the large enough ones, the smallest.
            let size = i64::from(domain.holds);
            (domain.is_ours, enough, if enough { -size } else { size })
        });
        best.map(|domain| domain.nodes).unwrap_or_default()
    }
}

#[derive(Default)]
struct Domain {
    /// True if another Job is there.
    is_taken: bool,
    /// True if the Job itself is there.
    is_ours: bool,
    /// How many of the pods it holds.
    holds: u32,
    /// Its nodes that could take one.
    nodes: Vec<usize>,
}

impl NodeRoom<'_> {
    /// True if a matching Job is here, or is expected here.
    fn has(&self, is: impl Fn(&str, Option<&str>) -> bool) -> bool {
        let here = self.facts.jobs.iter().filter(|_| self.occupied);
        let here = here.map(|(key, priority)| (key.as_str(), priority.as_deref()));
        let coming = self.jobs.iter();
        let coming = coming.map(|job| (job.job_key.as_str(), job.priority.as_deref()));
        here.chain(coming).any(|(key, priority)| is(key, priority))
    }
}

/// True if another Job excludes this one. An unknown priority may be the same.
fn excludes(exclusive: &Exclusive, key: &str, priority: Option<&str>) -> bool {
    let known = exclusive.priority.as_deref().zip(priority);
    key != exclusive.job_key && known.is_none_or(|(own, other)| own == other)
}
