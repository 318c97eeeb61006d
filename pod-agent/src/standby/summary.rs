//! What the status says of standbys, for people.

use super::Standbys;
use super::process::State;
use super::ranks::Ranks;
use super::way::Way;
use crate::machine::{Input, Standbys as Summary};

impl Standbys {
    /// The summary to report, if it has changed.
    pub(crate) fn news(&mut self) -> Option<Input> {
        if matches!(&self.way, Way::Nothing(reason) if reason.is_empty()) {
            return None;
        }
        let mut summary = Summary {
            wanted: u32::from(self.are_possible()),
            reason: self.reason.clone(),
            ..Summary::default()
        };
        if let Some(State::Ready(ready)) = self.process.as_ref().map(|process| &process.state) {
            summary.ready = 1;
            summary.memory_kib = ready.memory_kib;
            summary.modules = ready.modules;
        }
        if let Some(ranks) = &self.ranks {
            ranks.add_to(&mut summary);
        }
        if let Some(wrapper) = self.way.wrapper()
            && summary.wanted == 0
            && summary.reason.is_empty()
        {
            summary.reason = format!("{} has not started Python by its name", wrapper.name);
        }
        if self.reported.as_ref() == Some(&summary) {
            return None;
        }
        self.reported = Some(summary.clone());
        Some(Input::Standbys(summary))
    }
}

impl Ranks {
    /// Adds these standbys to the summary.
    fn add_to(&self, summary: &mut Summary) {
        let add =
            |to: &mut u32, count: usize| *to = to.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        add(
            &mut summary.wanted,
            self.kinds.all_wanted().max(self.waiting.len()),
        );
        for waiting in &self.waiting {
            if let State::Ready(ready) = waiting.process.state {
                summary.ready += 1;
                summary.memory_kib = summary.memory_kib.saturating_add(ready.memory_kib);
                summary.modules = summary.modules.max(ready.modules);
            }
        }
        // No rank is wanted if none was alike.
        if summary.reason.is_empty() && summary.ready < summary.wanted.max(1) {
            summary.reason.clone_from(&self.reason);
        }
    }
}
