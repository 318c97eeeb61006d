//! Takes in listings: all that exists at a moment, and so what no longer exists.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Effects, ListedContainer, LiveContainer};
use super::super::types::{ContainerId, Ended, Exit, Pod, PodUid, SandboxId, UnixNanos};
use super::pods::PodSource;
use super::{Table, Worker};

impl Table {
    pub(super) fn on_synchronized(
        &mut self,
        pods: Vec<(SandboxId, Pod)>,
        containers: Vec<LiveContainer>,
        now: UnixNanos,
        effects: &mut Effects,
    ) {
        let mut sandboxes: BTreeMap<PodUid, BTreeSet<SandboxId>> = BTreeMap::new();
        for (sandbox, pod) in pods {
            sandboxes
                .entry(pod.uid.clone())
                .or_default()
                .insert(sandbox.clone());
            self.add_pod(sandbox, pod, PodSource::Listing, effects);
        }
        let gone: BTreeSet<PodUid> = self
            .pods
            .keys()
            .chain(self.workers.values().map(|worker| &worker.pod))
            .filter(|uid| !sandboxes.contains_key(uid))
            .cloned()
            .collect();
        for uid in gone {
            self.drop_pod(&uid, effects);
        }
        for (uid, known) in sandboxes {
            if let Some(entry) = self.pods.get_mut(&uid) {
                entry.sandboxes = known;
            }
        }
        let mark = self.tick;
        let mut present = BTreeSet::new();
        for LiveContainer {
            pod,
            id,
            name,
            without_agent,
        } in containers
        {
            let worker = self.worker_or_insert(&id, &pod, &name);
            worker.seen.get_or_insert(mark);
            worker.without_agent = without_agent && worker.link.is_none() && worker.last.is_none();
            present.insert(id);
        }
        self.lose_absent(mark, &present, now, effects);
        self.stop_without_agents(effects);
    }

    /// Marks containers without their agent. The listing that they are in follows.
    pub(super) fn on_found_without_agents(&mut self, containers: Vec<LiveContainer>) {
        for LiveContainer {
            pod,
            id,
            name,
            without_agent,
        } in containers
        {
            if self.is_of_another(&id, &pod) {
                continue;
            }
            let worker = self.worker_or_insert(&id, &pod, &name);
            worker.without_agent |= without_agent && worker.link.is_none() && worker.last.is_none();
        }
    }

    pub(super) fn on_listed(
        &mut self,
        mark: u64,
        pods: Vec<(SandboxId, Pod)>,
        containers: Vec<ListedContainer>,
        now: UnixNanos,
        effects: &mut Effects,
    ) {
        let mut uids = BTreeSet::new();
        for (sandbox, pod) in pods {
            uids.insert(pod.uid.clone());
            self.add_pod(sandbox, pod, PodSource::Listing, effects);
        }
        let gone: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, entry)| entry.listed.is_some_and(|tick| tick <= mark) && !uids.contains(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in gone {
            self.drop_pod(&uid, effects);
        }
        let tick = self.tick;
        let mut present = BTreeSet::new();
        let live: BTreeSet<(PodUid, String)> = containers
            .iter()
            .filter(|listed| listed.ended.is_none() && !self.is_without_agent(&listed.id))
            .map(|listed| (listed.pod.clone(), listed.name.clone()))
            .collect();
        for listed in containers {
            let is_known = |worker: &Worker| {
                worker.last.is_some() || worker.lost.is_some() || worker.released_without_agent().is_some()
            };
            if listed.ended.is_some()
                && !self.workers.get(&listed.id).is_some_and(is_known)
                && live.contains(&(listed.pod.clone(), listed.name.clone()))
            {
                // It ended and was replaced before this daemon knew of it. Its end no longer
                // matters: the agent of the current container reports more.
                present.insert(listed.id);
                continue;
            }
            let worker = self.worker_or_insert(&listed.id, &listed.pod, &listed.name);
            worker.seen.get_or_insert(tick);
            if let Some(ended) = listed.ended {
                self.lose(&listed.id, ended, "", effects);
                self.prune(&listed.pod, &listed.name, effects);
            }
            present.insert(listed.id);
        }
        self.lose_absent(mark, &present, now, effects);
        self.stop_without_agents(effects);
    }

    /// Containers that were known before `mark` and no longer exist have ended unseen.
    fn lose_absent(
        &mut self,
        mark: u64,
        present: &BTreeSet<ContainerId>,
        now: UnixNanos,
        effects: &mut Effects,
    ) {
        let absent: Vec<ContainerId> = self
            .workers
            .iter()
            .filter(|(id, worker)| worker.seen.is_some_and(|tick| tick <= mark) && !present.contains(*id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in absent {
            self.lose(
                &id,
                Ended {
                    exit: Exit::UNKNOWN,
                    at: now,
                },
                "the container is gone and its exit code is not known",
                effects,
            );
        }
    }
}
