//! The fit check of pods on nodes. Free resources are the allocatable ones minus the requested
//! ones.
//!
//! kube-scheduler chooses the nodes, and its choice is not known in advance. So there are two
//! answers. [`Fit::Surely`]: all pods fit, whichever nodes it chooses. [`Fit::Perhaps`]: there is a
//! way to place them all. The second is enough if no other gang is starting, since then the free
//! resources are exact.

use std::collections::BTreeMap;
use std::ops::Bound;

use jiff::Timestamp;

use super::eligible::is_eligible;
use super::{Exclusive, Needs, Node, Pod, Resources};

mod exclusive;

/// The nodes, with the room that is left on them.
#[derive(Clone, Debug)]
pub(super) struct Room<'a> {
    nodes: Vec<NodeRoom<'a>>,
    /// Pods that may be bound at any time, to any node that can take them.
    promised: Vec<Demand<'a>>,
}

/// The room that is left on one node.
#[derive(Clone, Debug)]
struct NodeRoom<'a> {
    name: &'a str,
    /// The node as it was read.
    facts: &'a Node,
    /// What is not requested by bound pods.
    unbound: Resources,
    /// The same, minus pods that are expected here.
    free: Resources,
    /// True if reserved for a waiting gang.
    closed: bool,
    /// By priority, the creation time of the oldest gang that could use it. That gang goes before
    /// those of lower priority that are as old or younger.
    first: BTreeMap<i32, Timestamp>,
    /// True if the Jobs on the node count. False if the node is treated as empty.
    occupied: bool,
    /// The Jobs that are expected here.
    jobs: Vec<&'a Exclusive>,
}

/// A gang's position in the queue.
#[derive(Clone, Copy)]
pub(super) struct QueuePosition {
    pub(super) priority: i32,
    pub(super) created: Timestamp,
}

impl QueuePosition {
    /// Before all others.
    pub(super) const FIRST: Self = Self {
        priority: i32::MAX,
        created: Timestamp::MIN,
    };
}

/// Pods with the same needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand<'a> {
    pub(super) needs: &'a Needs,
    pub(super) count: u32,
}

/// How well pods fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// There is a way to place them.
    Perhaps,
    /// They fit however they are placed.
    Surely,
}

/// Why pods do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortfall {
    /// Index of the demand.
    pub(super) demand: usize,
    /// How many of its pods fit.
    pub(super) fit: u32,
    /// The resource that eligible nodes lack; `None`: no node is eligible.
    pub(super) lacks: Option<String>,
}

/// Pods that were placed on one node.
struct Placed<'a> {
    node: usize,
    needs: &'a Needs,
    count: u32,
}

impl<'a> Room<'a> {
    /// The nodes as they are.
    pub(super) fn now(nodes: &'a BTreeMap<String, Node>) -> Self {
        Self::of(nodes, true)
    }

    /// The nodes as they will be once all JobSets have ended.
    pub(super) fn empty(nodes: &'a BTreeMap<String, Node>) -> Self {
        Self::of(nodes, false)
    }

    fn of(nodes: &'a BTreeMap<String, Node>, occupied: bool) -> Self {
        let nodes = nodes.iter().map(|(name, node)| {
            let mut free = node.allocatable.clone();
            free.take(if occupied { &node.requested } else { &node.lasting }, 1);
            NodeRoom {
                name,
                facts: node,
                unbound: free.clone(),
                free,
                closed: false,
                first: BTreeMap::new(),
                occupied,
                jobs: Vec::new(),
            }
        });
        Self {
            nodes: nodes.collect(),
            promised: Vec::new(),
        }
    }

    /// How well all demands fit together, in addition to the promised pods. Reserves nothing.
    pub(super) fn fits(&mut self, demands: &[Demand<'a>]) -> Result<Fit, Shortfall> {
        if self.fits_surely(demands, &[]) {
            return Ok(Fit::Surely);
        }
        let mut placed = Vec::new();
        let result = self.place(demands, &mut placed);
        self.give_back(placed);
        result.map(|()| Fit::Perhaps)
    }

    /// Accounts for released pods that are not bound yet. Pods that do not fit may be bound
    /// anywhere too.
    pub(super) fn promise(&mut self, demands: &[Demand<'a>]) {
        for demand in demands {
            // `place` keeps the pods that fit even if it fails.
            let _ = self.place(std::slice::from_ref(demand), &mut Vec::new());
            self.promised.push(*demand);
        }
    }

    /// Accounts for a pod on its node.
    pub(super) fn occupy(&mut self, pod: &Pod) {
        let name = pod.node.as_deref().unwrap_or_default();
        let node = self.nodes.binary_search_by_key(&name, |node| node.name);
        if let Some(node) = node.ok().and_then(|node| self.nodes.get_mut(node)) {
            node.unbound.take(&pod.needs.requests, 1);
            node.free.take(&pod.needs.requests, 1);
        }
    }

    /// Gives a gang precedence over those of lower priority that are as old or younger, on all
    /// nodes that could take one of its pods.
    pub(super) fn precede(&mut self, demands: &[Demand<'a>], position: QueuePosition) {
        for node in &mut self.nodes {
            if node.could_take_any(demands) {
                let oldest = node.first.entry(position.priority).or_insert(position.created);
                *oldest = position.created.min(*oldest);
            }
        }
    }

    /// True if any of these pods could run on a node where another gang has precedence over this
    /// one.
    pub(super) fn is_preceded(&self, demands: &[Demand<'a>], position: QueuePosition) -> bool {
        let above = (Bound::Excluded(position.priority), Bound::Unbounded);
        let mut nodes = self.nodes.iter().filter(|node| {
            let mut first = node.first.range(above);
            first.any(|(_, created)| *created <= position.created)
        });
        nodes.any(|node| node.could_take_any(demands))
    }

    /// True if some node could take pods of both.
    pub(super) fn shares_nodes(&self, some: &[Demand<'a>], others: &[Demand<'a>]) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.could_take_any(some) && node.could_take_any(others))
    }

    /// Reserves all nodes that could take one of these pods.
    pub(super) fn close(&mut self, demands: &[Demand<'a>]) {
        for node in self.nodes.iter_mut().filter(|node| !node.closed) {
            node.closed = node.could_take_any(demands);
        }
    }

    /// True if none of these pods could run on a reserved node.
    pub(super) fn is_open_to(&self, demands: &[Demand<'a>]) -> bool {
        let mut closed = self.nodes.iter().filter(|node| node.closed);
        !closed.any(|node| node.could_take_any(demands))
    }

    /// True if all demands fit in addition to the promised pods and to `beside`, wherever all of
    /// them are placed.
    ///
    /// The number of pods whose room another pod takes on its node is at most the largest ratio of
    /// their requests, rounded up. So the capacity minus this number for all other pods is left,
    /// wherever they are placed.
    pub(super) fn fits_surely(&self, demands: &[Demand<'a>], beside: &[Demand<'a>]) -> bool {
        demands.iter().enumerate().all(|(index, demand)| {
            let needs = demand.needs;
            if needs.exclusive.is_some() || !needs.unknown.is_empty() {
                return false;
            }
            let nodes: Vec<&NodeRoom<'_>> = self.nodes.iter().filter(|node| node.could_take(needs)).collect();
            let capacity = nodes
                .iter()
                .map(|node| u64::from(node.unbound.holds(&needs.requests)))
                .sum::<u64>();
            let others = demands.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.map(|(_, other)| other).chain(&self.promised).chain(beside);
            let lost = others
                .filter(|other| nodes.iter().any(|node| node.could_take(other.needs)))
                .map(|other| {
                    u64::from(other.count).saturating_mul(other.needs.requests.displaces(&needs.requests))
                })
                .fold(0, u64::saturating_add);
            capacity.saturating_sub(lost) >= u64::from(demand.count)
        })
    }

    /// Places all pods, nodes with the least room first. If that fails, the pods that were placed
    /// stay placed.
    fn place(&mut self, demands: &[Demand<'a>], placed: &mut Vec<Placed<'a>>) -> Result<(), Shortfall> {
        for (index, demand) in demands.iter().enumerate() {
            let candidates: Vec<usize> = match &demand.needs.exclusive {
                Some(exclusive) => self.domain(demand, exclusive),
                None => self.candidates(demand.needs),
            };
            let fit = self.fill(demand, &candidates, placed);
            if fit < demand.count {
                return Err(Shortfall {
                    demand: index,
                    fit,
                    lacks: self.lacking(demand.needs, &candidates),
                });
            }
        }
        Ok(())
    }

    fn candidates(&self, needs: &Needs) -> Vec<usize> {
        let nodes = self.nodes.iter().enumerate();
        nodes
            .filter(|(_, node)| node.could_take(needs))
            .map(|(index, _)| index)
            .collect()
    }

    /// Places as many pods of a demand as fit, and returns their number.
    fn fill(&mut self, demand: &Demand<'a>, candidates: &[usize], placed: &mut Vec<Placed<'a>>) -> u32 {
        let requests = &demand.needs.requests;
        let holds = |index: &usize| {
            (
                self.nodes.get(*index).map_or(0, |node| node.free.holds(requests)),
                *index,
            )
        };
        let mut open: Vec<(u32, usize)> = candidates.iter().map(holds).filter(|(n, _)| *n > 0).collect();
        open.sort_unstable();
        let mut left = demand.count;
        for (holds, index) in open {
            let count = holds.min(left);
            let Some(node) = self.nodes.get_mut(index).filter(|_| count > 0) else {
                break;
            };
            node.free.take(requests, i128::from(count));
            node.jobs.extend(&demand.needs.exclusive);
            placed.push(Placed {
                node: index,
                needs: demand.needs,
                count,
            });
            left -= count;
        }
        demand.count - left
    }

    fn give_back(&mut self, placed: Vec<Placed<'a>>) {
        // In reverse order, since Jobs are popped.
        for Placed { node, needs, count } in placed.into_iter().rev() {
            if let Some(node) = self.nodes.get_mut(node) {
                node.free.take(&needs.requests, -i128::from(count));
                if needs.exclusive.is_some() {
                    node.jobs.pop();
                }
            }
        }
    }

    /// The resource that is short on most of the nodes.
    fn lacking(&self, needs: &Needs, candidates: &[usize]) -> Option<String> {
        let mut lacks: BTreeMap<&str, usize> = BTreeMap::new();
        let nodes = candidates.iter().filter_map(|index| self.nodes.get(*index));
        for node in nodes {
            for (name, amount) in needs.requests.iter() {
                if amount > node.free.get(name) {
                    *lacks.entry(name).or_default() += 1;
                }
            }
        }
        let most = lacks
            .into_iter()
            .max_by_key(|(name, nodes)| (*nodes, std::cmp::Reverse(*name)));
        most.map(|(name, _)| name.to_owned())
    }
}

impl NodeRoom<'_> {
    /// True if the empty node could take such a pod.
    fn could_take(&self, needs: &Needs) -> bool {
        self.facts.allocatable.holds(&needs.requests) > 0 && is_eligible(needs, self.facts)
    }
    /// True if the empty node could take a pod of any of these.
    fn could_take_any(&self, demands: &[Demand<'_>]) -> bool {
        demands.iter().any(|demand| self.could_take(demand.needs))
    }
}
