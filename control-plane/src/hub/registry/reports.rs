//! The newest report of every incarnation of a group, by the node that has sent it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use lockstep_core::restart::{Incarnation, Phase, Report, WorkerRestart};
use lockstep_mutants::mutant;

use super::Revisions;
use crate::hub::convert::Reported;

/// Containers of one worker that have ended in one pod, kept at most.
const ENDED: usize = 8;

/// What the nodes have said of one group.
#[derive(Default)]
pub(super) struct Reports {
    nodes: HashMap<String, NodeReports, Hasher>,
    /// Nodes of which the group's task has not seen something yet.
    news: Vec<String>,
}

/// The same in each process: what a seed has shown once it shows again. Names of nodes are the
/// cluster's.
type Hasher = BuildHasherDefault<DefaultHasher>;

#[derive(Default)]
struct NodeReports {
    /// Boxed, since a map has room for many and a node mostly has few.
    kept: BTreeMap<Incarnation, Box<StoredReport>>,
    /// True if the node is among those with news.
    is_news: bool,
}

/// The newest report of an incarnation.
struct StoredReport {
    revision: u64,
    report: Report,
    at: Instant,
    /// True if the group's task has not seen it yet.
    news: bool,
    /// True if it was noted that it is not believed.
    disowned: bool,
}

/// What has become of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// The first of its incarnation.
    First,
    /// In the place of an older one.
    Newer,
    /// Something newer is known.
    Stale,
}

impl Reports {
    /// Takes in what a node has reported.
    pub(super) fn take_in(&mut self, node: &str, reported: Reported, at: Instant) -> Stored {
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
        let known = of_node.kept.get_mut(&incarnation);
        // Equal is accepted: a repeated state ends an Unlinked of our own making.
        if known.as_ref().is_some_and(|known| known.revision > revision) {
            return Stored::Stale;
        }
        let kept = StoredReport {
            revision,
            report,
            at,
            news: true,
            disowned: false,
        };
        let taken = match known {
            Some(known) => {
                **known = kept;
                Stored::Newer
            }
            None => {
                of_node.kept.insert(incarnation, Box::new(kept));
                Stored::First
            }
        };
        if !std::mem::replace(&mut of_node.is_news, true) {
            self.news.push(node.to_owned());
        }
        taken
    }

    /// The node's stream has ended, or another one has begun: what it has said of this incarnation
    /// may be out of date.
    pub(super) fn unlink(&mut self, node: &str, incarnation: &Incarnation, revisions: Revisions) {
        let Some(of_node) = self.nodes.get_mut(node) else {
            return;
        };
        let Some(kept) = of_node.kept.get_mut(incarnation) else {
            return;
        };
        if revisions == Revisions::StartOver {
            kept.revision = 0;
        }
        if !matches!(kept.report.phase, Phase::Done | Phase::Lost(_)) {
            kept.report.phase = Phase::Unlinked;
            mutant!(MissUnlinked => return);
            kept.news = true;
            if !std::mem::replace(&mut of_node.is_news, true) {
                self.news.push(node.to_owned());
            }
        }
    }

    /// True if the group's task has not seen all of it yet.
    pub(super) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Shows all of it. None of it is news any more.
    pub(super) fn show_all(&mut self, mut see: impl FnMut(&Incarnation, &Report)) {
        self.news.clear();
        for of_node in self.nodes.values_mut() {
            of_node.is_news = false;
            for (incarnation, kept) in &mut of_node.kept {
                kept.news = false;
                see(incarnation, &kept.report);
            }
        }
    }

    /// Shows what is news. None of it is any more.
    pub(super) fn show_news(&mut self, mut see: impl FnMut(&Incarnation, &Report)) {
        for node in std::mem::take(&mut self.news) {
            let Some(of_node) = self.nodes.get_mut(&node) else {
                continue;
            };
            of_node.is_news = false;
            for (incarnation, kept) in of_node.kept.iter_mut().filter(|(_, kept)| kept.news) {
                kept.news = false;
                see(incarnation, &kept.report);
            }
        }
    }

    /// This report is not believed. True: that was not noted yet.
    pub(super) fn disown(&mut self, node: &str, incarnation: &Incarnation) -> bool {
        let kept = self
            .nodes
            .get_mut(node)
            .and_then(|node| node.kept.get_mut(incarnation));
        kept.is_some_and(|kept| !std::mem::replace(&mut kept.disowned, true))
    }

    /// All incarnations, with the nodes that have reported them.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&str, &Incarnation)> {
        self.nodes.iter().flat_map(|(node, of_node)| {
            of_node
                .kept
                .keys()
                .map(move |incarnation| (node.as_str(), incarnation))
        })
    }

    /// Drops the reports of pods that are not in `pods` and of which nothing was heard for
    /// `silence`. Of the containers of one worker that have ended in its pod the latest [`ENDED`]
    /// are kept. Gives what was dropped.
    pub(super) fn forget_pods<V>(
        &mut self,
        pods: &BTreeMap<String, V>,
        silence: Duration,
    ) -> Vec<(String, Incarnation)> {
        let mut dropped = Vec::new();
        let outlived = self.outlived();
        self.nodes.retain(|node, of_node| {
            of_node.kept.retain(|incarnation, kept| {
                let keep = (pods.contains_key(&incarnation.pod_uid) || kept.at.elapsed() < silence)
                    && !outlived
                        .get(node)
                        .is_some_and(|outlived| outlived.contains(incarnation));
                if !keep {
                    dropped.push((node.clone(), incarnation.clone()));
                }
                keep
            });
            !of_node.kept.is_empty()
        });
        dropped
    }

    /// Containers that have ended, but for the latest ones of each worker in its pod.
    fn outlived(&self) -> BTreeMap<String, BTreeSet<Incarnation>> {
        let mut outlived: BTreeMap<String, BTreeSet<Incarnation>> = BTreeMap::new();
        for (node, of_node) in self.nodes.iter().filter(|(_, node)| node.kept.len() > ENDED) {
            let mut ended: BTreeMap<_, Vec<_>> = BTreeMap::new();
            for (incarnation, kept) in &of_node.kept {
                // Work that is done stays so.
                if matches!(kept.report.phase, Phase::Lost(exit) if exit.code != 0) {
                    let worker = (&incarnation.pod_uid, &kept.report.identity);
                    ended
                        .entry(worker)
                        .or_default()
                        .push((kept.report.since, incarnation));
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

    /// Drops what this node has said of one incarnation. Gives whether it has said anything.
    pub(super) fn forget(&mut self, node: &str, incarnation: &Incarnation) -> bool {
        let Some(of_node) = self.nodes.get_mut(node) else {
            return false;
        };
        let was_kept = of_node.kept.remove(incarnation).is_some();
        if of_node.kept.is_empty() {
            self.nodes.remove(node);
        }
        was_kept
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

    /// The same for those whose worker was restarted without its group.
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
