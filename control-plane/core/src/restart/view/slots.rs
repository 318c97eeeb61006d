//! The workers of a group, in order and with fast look-up.

use std::collections::BTreeMap;

use super::super::Identity;
use super::Slot;

/// A map from workers to their slots. A Job's workers are adjacent, and each pod has the same
/// number of containers, so a worker's index leads to its position.
pub(in super::super) struct Slots<'a> {
    entries: Vec<(&'a Identity, Slot<'a>)>,
    /// The position of each Job's first worker.
    jobs: BTreeMap<&'a str, usize>,
}

impl<'a> Slots<'a> {
    /// Creates the map from sorted workers.
    pub(super) fn new(entries: Vec<(&'a Identity, Slot<'a>)>) -> Self {
        let mut jobs = BTreeMap::new();
        let mut last = None;
        for (at, (identity, _)) in entries.iter().enumerate() {
            let job = &*identity.job;
            if last != Some(job) {
                jobs.insert(job, at);
                last = Some(job);
            }
        }
        Self { entries, jobs }
    }

    /// The position of this worker.
    fn position(&self, wanted: &Identity) -> Option<usize> {
        let start = *self.jobs.get(&*wanted.job)?;
        let index = usize::try_from(wanted.index).ok()?;
        // Usually each pod has one worker.
        let guess = start.checked_add(index)?;
        let is_there = |at: &usize| self.entries.get(*at).is_some_and(|(found, _)| *found == wanted);
        Some(guess).filter(is_there).or_else(|| {
            let found = self.entries.binary_search_by(|(found, _)| (*found).cmp(wanted));
            found.ok()
        })
    }

    pub(in super::super) fn get(&self, identity: &Identity) -> Option<&Slot<'a>> {
        self.get_key_value(identity).map(|(_, slot)| slot)
    }

    pub(in super::super) fn get_key_value(&self, identity: &Identity) -> Option<(&'a Identity, &Slot<'a>)> {
        let (identity, slot) = self.entries.get(self.position(identity)?)?;
        Some((identity, slot))
    }

    pub(super) fn get_mut(&mut self, identity: &Identity) -> Option<&mut Slot<'a>> {
        let at = self.position(identity)?;
        self.entries.get_mut(at).map(|(_, slot)| slot)
    }

    /// The workers that share the pod of this one.
    pub(in super::super) fn of_pod(
        &self,
        identity: &Identity,
    ) -> impl Iterator<Item = (&'a Identity, &Slot<'a>)> {
        let place = (identity.job.clone(), identity.index);
        let before = (&*identity.job, identity.index);
        let from = self
            .entries
            .partition_point(|(found, _)| (&*found.job, found.index) < before);
        let entries = self.entries.get(from..).unwrap_or_default().iter();
        entries
            .take_while(move |(found, _)| found.job == place.0 && found.index == place.1)
            .map(|(identity, slot)| (*identity, slot))
    }

    pub(in super::super) fn contains_key(&self, identity: &Identity) -> bool {
        self.position(identity).is_some()
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&'a Identity, &Slot<'a>)> {
        self.entries.iter().map(|(identity, slot)| (*identity, slot))
    }

    pub(in super::super) fn iter_mut(&mut self) -> impl Iterator<Item = (&'a Identity, &mut Slot<'a>)> {
        self.entries.iter_mut().map(|(identity, slot)| (*identity, slot))
    }

    pub(in super::super) fn values(&self) -> impl Iterator<Item = &Slot<'a>> {
        self.entries.iter().map(|(_, slot)| slot)
    }
}
