//! What workers say of their work in their heartbeats.
//!
//! It is for people and for metrics. No decision depends on it. Any process of a pod may claim to
//! be its agent, and a node may claim anything of its pods. So the daemon and the control plane
//! both bound what they read.

use crate::beginning;

/// Highest step. Every client can read it: JSON numbers are exact up to 2^53.
pub const HIGHEST_STEP: u64 = 1 << 53;
/// Longest name of a section, in bytes. A longer one is cut off.
pub const LONGEST_SECTION: usize = 64;
/// Longest text of an error, in bytes. A longer one is cut off.
pub const LONGEST_ERROR: usize = 256;

/// What a worker says of its work in one attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last step that it has done. `None`: it has named none.
    pub step: Option<u64>,
    /// What it is doing, for people. Empty if it has not said.
    pub section: String,
    /// Why it is about to fail, for people. Empty if it has not said.
    pub error: String,
}

impl Progress {
    /// True if the worker has said nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.step.is_none() && self.section.is_empty() && self.error.is_empty()
    }

    /// This, with each part cut to what an agent can mean.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            step: self.step.filter(|step| *step <= HIGHEST_STEP),
            section: beginning(self.section, LONGEST_SECTION),
            error: beginning(self.error, LONGEST_ERROR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_beyond_what_an_agent_can_mean_are_cut() {
        let claimed = Progress {
            step: Some(HIGHEST_STEP + 1),
            section: "load\u{1b}[2J".repeat(100),
            error: "x\n".repeat(1000),
        };
        let bounded = claimed.bounded();
        assert_eq!(bounded.step, None);
        assert!(bounded.section.len() <= LONGEST_SECTION);
        assert!(!bounded.section.contains(char::is_control));
        assert_eq!(bounded.error, "x".repeat(LONGEST_ERROR / 2));
        let usual = Progress {
            step: Some(HIGHEST_STEP),
            section: "load".to_owned(),
            error: "ValueError: no".to_owned(),
        };
        assert_eq!(usual.clone().bounded(), usual);
        assert!(!usual.is_empty() && Progress::default().is_empty());
    }
}
