//! The newest report of every incarnation of a group, by the node that has sent it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use lockstep_core::restart::{Incarnation, Phase, Report, WorkerRestart};
use lockstep_mutants::mutant;

use super::Revisions;
use crate::hub::convert::Reported;

/// Most ended containers of one worker in one pod that are kept.
const ENDED: usize = 8;

/// The reports on one group.
#[derive(Default)]
pub(super) struct Reports {
    nodes: HashMap<String, NodeReports, Hasher>,
    /// Nodes with a report that the group's task has not seen yet.
    unseen: Vec<String>,
}

/// The same in each process, so that a seed reproduces a run. The keys are names of nodes, which no
/// tenant chooses.
type Hasher = BuildHasherDefault<DefaultHasher>;

#[derive(Default)]
struct NodeReports {
    /// Boxed, since a map allocates for many and a node mostly has few.
    reports: BTreeMap<Incarnation, Box<StoredReport>>,
    /// True if the node is in [`Reports::unseen`].
    is_unseen: bool,
}

/// The newest report of an incarnation.
struct StoredReport {
    revision: u64,
    report: Report,
    at: Instant,
    /// True if the group's task has not seen it yet.
    is_unseen: bool,
    /// True if the group's task does not believe it.
    refused: bool,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// The first of its incarnation.
    First,
    /// Newer than the one that was stored.
    Newer,
    /// Older than the one that is stored, and dropped.
    Stale,
}

impl Reports {
    /// Stores a report of a node.
    pub(super) fn store(&mut self, node: &str, reported: Reported, at: Instant) -> Stored {
        let Reported {
            incarnation,
            report,
            revision,
            ..
        } = reported;
        let of_node = match self.nodes.get_mut(node) {
            Some(of_node) => of_node,
            None => self.nodes.entry(node.to_owned()).or_default(),
        };
        let known = of_node.reports.get_mut(&incarnation);
        // An equal revision is accepted: a repeated state ends an Unlinked that was set here.
        if known.as_ref().is_some_and(|known| known.revision > revision) {
            return Stored::Stale;
        }
        let stored = StoredReport {
            revision,
            report,
            at,
            is_unseen: true,
            refused: false,
        };
        let outcome = match known {
            Some(known) => {
                **known = stored;
                Stored::Newer
            }
            None => {
                of_node.reports.insert(incarnation, Box::new(stored));
                Stored::First
            }
        };
        if !std::mem::replace(&mut of_node.is_unseen, true) {
            self.unseen.push(node.to_owned());
        }
        outcome
    }

    /// The node's stream has ended, or another one has begun: its report of this incarnation may be
    /// out of date.
    pub(super) fn unlink(&mut self, node: &str, incarnation: &Incarnation, revisions: Revisions) {
        let Some(of_node) = self.nodes.get_mut(node) else {
            return;
        };
        let Some(stored) = of_node.reports.get_mut(incarnation) else {
            return;
        };
        if revisions == Revisions::StartOver {
            stored.revision = 0;
        }
        if !matches!(stored.report.phase, Phase::Done | Phase::Lost(_)) {
            stored.report.phase = Phase::Unlinked;
            mutant!(MissUnlinked => return);
            stored.is_unseen = true;
            if !std::mem::replace(&mut of_node.is_unseen, true) {
                self.unseen.push(node.to_owned());
            }
        }
    }

    /// True if the group's task has not seen all reports yet.
    pub(super) fn has_unseen(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// Shows all reports, which count as seen then.
    pub(super) fn show_all(&mut self, mut see: impl FnMut(&Incarnation, &Report)) {
        self.unseen.clear();
        for of_node in self.nodes.values_mut() {
            of_node.is_unseen = false;
            for (incarnation, stored) in &mut of_node.reports {
                stored.is_unseen = false;
                see(incarnation, &stored.report);
            }
        }
    }

    /// Shows the unseen reports, which count as seen then.
    pub(super) fn show_unseen(&mut self, mut see: impl FnMut(&Incarnation, &Report)) {
        for node in std::mem::take(&mut self.unseen) {
            let Some(of_node) = self.nodes.get_mut(&node) else {
                continue;
            };
            of_node.is_unseen = false;
            let all = of_node.reports.iter_mut();
            for (incarnation, stored) in all.filter(|(_, stored)| stored.is_unseen) {
                stored.is_unseen = false;
                see(incarnation, &stored.report);
            }
        }
    }

    /// Marks a report as refused. True if it was not marked before.
    pub(super) fn refuse(&mut self, node: &str, incarnation: &Incarnation) -> bool {
        let stored = self
            .nodes
            .get_mut(node)
            .and_then(|node| node.reports.get_mut(incarnation));
        stored.is_some_and(|stored| !std::mem::replace(&mut stored.refused, true))
    }

    /// All incarnations, with the nodes that have reported them.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, &Incarnation)> {
        self.nodes.iter().flat_map(|(node, of_node)| {
            of_node
                .reports
                .keys()
                .map(move |incarnation| (node.as_str(), incarnation))
        })
    }

    /// Drops the reports of pods that are not in `pods` and have sent nothing for `silence`. Of the
    /// ended containers of one worker in one pod the latest [`ENDED`] are kept. Returns what was
    /// dropped.
    pub(super) fn drop_gone_pods<V>(
        &mut self,
        pods: &BTreeMap<String, V>,
        silence: Duration,
    ) -> Vec<(String, Incarnation)> {
        let mut dropped = Vec::new();
        let outlived = self.outlived();
        self.nodes.retain(|node, of_node| {
            of_node.reports.retain(|incarnation, stored| {
                let keep = (pods.contains_key(&incarnation.pod_uid) || stored.at.elapsed() < silence)
                    && !outlived
                        .get(node)
                        .is_some_and(|outlived| outlived.contains(incarnation));
                if !keep {
                    dropped.push((node.clone(), incarnation.clone()));
                }
                keep
            });
            !of_node.reports.is_empty()
        });
        dropped
    }

    /// Ended containers, except the latest ones of each worker in its pod.
    fn outlived(&self) -> BTreeMap<String, BTreeSet<Incarnation>> {
        let mut outlived: BTreeMap<String, BTreeSet<Incarnation>> = BTreeMap::new();
        for (node, of_node) in self.nodes.iter().filter(|(_, node)| node.reports.len() > ENDED) {
            let mut ended: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (incarnation, stored) in &of_node.reports {
                // A worker that has completed stays known.
                if matches!(stored.report.phase, Phase::Lost(exit) if exit.code != 0) {
                    let worker = (&incarnation.pod_uid, &stored.report.identity);
                    ended
                        .entry(worker)
                        .or_default()
                        .push((stored.report.since, incarnation));
                }
            }
            for mut of_worker in ended.into_values().filter(|ended| ended.len() > ENDED) {
                of_worker.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
                let beyond = of_worker
                    .drain(ENDED..)
                    .map(|(_, incarnation)| incarnation.clone());
                outlived.entry(node.clone()).or_default().extend(beyond);
            }
        }
        outlived
    }

    /// Drops this node's report of one incarnation. Returns true if there was one.
    pub(super) fn forget(&mut self, node: &str, incarnation: &Incarnation) -> bool {
        let Some(of_node) = self.nodes.get_mut(node) else {
            return false;
        };
        let was_stored = of_node.reports.remove(incarnation).is_some();
        if of_node.reports.is_empty() {
            self.nodes.remove(node);
        }
        was_stored
    }

    /// Incarnations, by the nodes that have reported them.
    pub(super) fn by_node(&self, named: &BTreeSet<Incarnation>) -> BTreeMap<String, Vec<Incarnation>> {
        let mut nodes: BTreeMap<String, Vec<Incarnation>> = BTreeMap::new();
        if named.is_empty() {
            return nodes;
        }
        for (node, incarnation) in self
            .keys()
            .filter(|(_, incarnation)| named.contains(*incarnation))
        {
            let of_node = nodes.entry(node.to_owned()).or_default();
            of_node.push(incarnation.clone());
        }
        nodes
    }

    /// The same for incarnations that are restarted without their group.
    pub(super) fn worker_restarts_by_node(
        &self,
        worker_restarts: &BTreeMap<Incarnation, WorkerRestart>,
    ) -> BTreeMap<String, Vec<(Incarnation, WorkerRestart)>> {
        let mut nodes: BTreeMap<String, Vec<(Incarnation, WorkerRestart)>> = BTreeMap::new();
        if worker_restarts.is_empty() {
            return nodes;
        }
        for (node, incarnation) in self.keys() {
            if let Some(restart) = worker_restarts.get(incarnation) {
                let of_node = nodes.entry(node.to_owned()).or_default();
                of_node.push((incarnation.clone(), *restart));
            }
        }
        nodes
    }
}
