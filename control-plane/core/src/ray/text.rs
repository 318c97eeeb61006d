//! YAML and JSON that a spec states as text.
//!
//! Promises: reading it, whatever it says, takes memory and time in proportion to its length, which
//! is bounded. An alias in YAML stands for as much as its author likes, so that 100 kB can stand
//! for gigabytes: there are none here, and the reader that meets the first stops at it, before a
//! value is made.

use serde_json::Value;
use serde_saphyr::budget::{Budget, BudgetBreach};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Options};

#[cfg(test)]
mod tests;

/// The longest text, in bytes. It becomes a word of a command, of which Linux takes 128 KiB.
const LONGEST: usize = 64 << 10;
/// Lists and maps in each other.
const DEEPEST: usize = 32;
/// Values, lists and maps. Each took a microsecond here.
const MOST_NODES: usize = 10_000;

/// Reads YAML. Anchors, aliases and merges are refused; of a key that is stated twice the last
/// counts.
///
/// # Errors
/// What is wrong with it.
pub(super) fn yaml(text: &str) -> Result<Value, String> {
    bounded(text)?;
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| sentence(&error))
}

/// Reads JSON.
///
/// # Errors
/// What is wrong with it.
pub(super) fn json(text: &str) -> Result<Value, String> {
    bounded(text)?;
    // It goes 128 deep by itself, and has no way to say a thing twice.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The beginning of a text, to be shown.
pub(super) fn beginning(text: &str) -> String {
    lockstep_api::beginning(text, 512)
}

fn bounded(text: &str) -> Result<(), String> {
    if text.len() > LONGEST {
        return Err(format!(
            "must be no more than {LONGEST} bytes, and has {}",
            text.len()
        ));
    }
    Ok(())
}

fn options() -> Options {
    let budget: Option<Budget> = serde_saphyr::budget! {
        max_anchors: 0,
        max_aliases: 0,
        max_merge_keys: 0,
        max_documents: 1,
        max_depth: DEEPEST,
        flow_nesting_limit: DEEPEST,
        max_nodes: MOST_NODES,
        max_events: 4 * MOST_NODES,
        max_total_scalar_bytes: LONGEST,
    };
    serde_saphyr::options! {
        budget: budget,
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        merge_keys: MergeKeyPolicy::Error,
        // `yes` and `n` are words, as in YAML 1.2, and `017` is what it is in Go.
        strict_booleans: true,
        legacy_octal_numbers: true,
        // What is in base64 stays so, and other tags mean nothing to Ray.
        ignore_binary_tag_for_string: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// What is wrong, for people.
fn sentence(error: &Error) -> String {
    let deep = || format!("lists and maps must be no more than {DEEPEST} deep");
    let Error::Budget { breach, .. } = error else {
        let said = error.to_string();
        // Of lists in brackets the library has no other word for its limit.
        return match said.contains("recursion limit") {
            true => deep(),
            false => beginning(&said),
        };
    };
    match breach {
        BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. } => {
            "anchors and aliases are not supported: write each value out".to_owned()
        }
        BudgetBreach::Depth { .. } => deep(),
        BudgetBreach::Documents { .. } => "must be one document".to_owned(),
        _ => format!("must be no more than {MOST_NODES} values"),
    }
}
