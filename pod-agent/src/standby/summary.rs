//! What the status says of standbys, for people.

use super::Standbys;
use super::process::State;
use super::way::Way;
use crate::target::{Input, Standbys as Summary};

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
