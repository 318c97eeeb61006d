//! The patterns of a failure policy (`onJobFailureMessagePatterns`), compiled within a budget.
//!
//! Promises: the patterns of any JobSet take at most [`MEMORY`] of programs, about 80 ms to
//! compile, and [`STEPS`] of matching in one decision, which is usually 50 ms and at worst half a
//! second. Patterns beyond the budget match nothing, and neither do invalid ones. The webhook
//! refuses both, but an object may be older than the webhook.

use std::collections::BTreeMap;

use lockstep_api::{FailurePolicyRule, JobSet};
use thiserror::Error;

use crate::common::go_regex::{Regex, Unfit};
use crate::common::violation::Violation;

#[cfg(test)]
mod tests;

/// The most patterns in all rules of a JobSet: twenty rules of five patterns. Kubernetes has five
/// reasons of Job failures.
pub(crate) const MOST: usize = 100;
/// The longest pattern, in bytes. Kubernetes' messages about failed Jobs are shorter.
pub(crate) const LONGEST: usize = 1024;
/// Bytes of all patterns together: 160 each.
const TEXT: usize = 16 << 10;
/// Memory of the program of one pattern, in bytes. `exit code (1|4[0-9])$` takes 900, `.{0,200}`
/// 60,000, and `\pL` 16,000.
const MEMORY_OF_ONE: usize = 128 << 10;
/// Memory of all programs together, in bytes. A program that exceeds its limit counts with the
/// whole limit.
pub(crate) const MEMORY: usize = 512 << 10;
/// Characters in all classes to be expanded: four times all of Unicode, or 136 named classes. Each
/// took 7 ns.
const REACH: u32 = 4 * 0x11_0000;
/// Steps of matching in one decision: the bytes of each message times the states of the program.
/// For ten patterns of twenty states, this allows 1,600 Jobs with different messages of 100 bytes.
/// Equal messages are matched once.
pub(crate) const STEPS: u64 = 32_000_000;

/// Why a pattern matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Refused {
    #[error("exceeds the limit of {MOST} patterns per JobSet")]
    Number,
    #[error("is longer than {LONGEST} bytes")]
    Length,
    #[error("exceeds the limit of {TEXT} bytes for all patterns of a JobSet")]
    Text,
    #[error("{0}")]
    Unfit(#[from] Unfit),
}

/// The patterns of a JobSet's failure policy, compiled.
#[derive(Debug, Default)]
pub struct Patterns {
    /// The patterns that can match, by rule.
    rules: Vec<Vec<Regex>>,
    /// The first pattern that cannot match.
    refused: Option<Violation>,
}

impl Patterns {
    /// Compiles the patterns of a JobSet. Takes up to about 80 ms.
    #[must_use]
    pub fn of(jobset: &JobSet) -> Self {
        let mut budget = Budget::default();
        let mut refused = None;
        let rules = rules(jobset).iter().enumerate();
        let rules = rules.map(|(rule, stated)| {
            let patterns = stated.on_job_failure_message_patterns.iter().enumerate();
            let compiled = patterns.filter_map(|(index, pattern)| {
                let compiled = budget.compile(pattern);
                if let Err(why) = compiled {
                    refused.get_or_insert_with(|| violation(rule, index, pattern, why));
                }
                compiled.ok()
            });
            compiled.collect()
        });
        let rules = rules.collect();
        Self { rules, refused }
    }

    /// True if a JobSet has any.
    #[must_use]
    pub fn are_stated(jobset: &JobSet) -> bool {
        rules(jobset)
            .iter()
            .any(|rule| !rule.on_job_failure_message_patterns.is_empty())
    }

    /// The first pattern that cannot match, and why.
    pub(crate) fn refused(&self) -> Option<&Violation> {
        self.refused.as_ref()
    }

    /// The index of the first message that matches a pattern of a rule. Subtracts its steps from
    /// `steps`; without steps left, nothing matches.
    pub(crate) fn first(&self, rule: usize, messages: &[&str], steps: &mut u64) -> Option<usize> {
        let mut first = None;
        for pattern in self.rules.get(rule).into_iter().flatten() {
            let mut scratch = pattern.scratch();
            let mut known = BTreeMap::new();
            let mut is_match = |message: &str| {
                let bytes = u64::try_from(message.len()).unwrap_or(u64::MAX).saturating_add(1);
                let each = u64::try_from(pattern.steps()).unwrap_or(u64::MAX);
                let Some(left) = steps.checked_sub(bytes.saturating_mul(each)) else {
                    return false;
                };
                *steps = left;
                pattern.is_match(&mut scratch, message)
            };
            // Messages after the first match do not matter.
            let sought = &messages[..first.unwrap_or(messages.len())];
            let found = sought.iter().position(|message| {
                *known
                    .entry(*message)
                    .or_insert_with_key(|message| is_match(message))
            });
            first = found.or(first);
        }
        first
    }
}

/// The first pattern of a JobSet that cannot match. Stops there.
pub(crate) fn validate(jobset: &JobSet) -> Option<Violation> {
    let mut budget = Budget::default();
    let rules = rules(jobset).iter().enumerate();
    let mut patterns = rules.flat_map(|(rule, stated)| {
        let patterns = stated.on_job_failure_message_patterns.iter().enumerate();
        patterns.map(move |(index, pattern)| (rule, index, pattern))
    });
    patterns.find_map(|(rule, index, pattern)| {
        let why = budget.compile(pattern).err()?;
        Some(violation(rule, index, pattern, why))
    })
}

fn rules(jobset: &JobSet) -> &[FailurePolicyRule] {
    let policy = jobset.spec.failure_policy.as_ref();
    policy.map_or(&[], |policy| &policy.rules)
}

fn violation(rule: usize, index: usize, pattern: &str, why: Refused) -> Violation {
    /// The most bytes of a pattern that are shown.
    const SHOWN: usize = 128;
    let mut shown = pattern[..pattern.floor_char_boundary(SHOWN)].to_owned();
    if shown.len() < pattern.len() {
        shown.push_str("...");
    }
    let field = format!("spec.failurePolicy.rules[{rule}].onJobFailureMessagePatterns[{index}]");
    Violation::with_value(field, shown, why.to_string())
}

/// The remaining budget for the patterns of one JobSet.
struct Budget {
    number: usize,
    text: usize,
    memory: usize,
    reach: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            number: MOST,
            text: TEXT,
            memory: MEMORY,
            reach: REACH,
        }
    }
}

impl Budget {
    fn compile(&mut self, pattern: &str) -> Result<Regex, Refused> {
        self.number = self.number.checked_sub(1).ok_or(Refused::Number)?;
        if pattern.len() > LONGEST {
            return Err(Refused::Length);
        }
        self.text = self.text.checked_sub(pattern.len()).ok_or(Refused::Text)?;
        let most = self.memory.min(MEMORY_OF_ONE);
        let compiled = Regex::new(pattern, most, &mut self.reach);
        let taken = match &compiled {
            Ok(regex) => regex.memory(),
            // Finding out has used that much.
            Err(Unfit::Memory) => most,
            Err(Unfit::Syntax | Unfit::Reach) => 0,
        };
        self.memory = self.memory.saturating_sub(taken);
        Ok(compiled?)
    }
}
