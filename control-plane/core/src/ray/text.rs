//! YAML and JSON texts in a spec.
//!
//! Promises: reading any text takes memory and time in proportion to its length, which is bounded.
//! With aliases, 100 kB of YAML can stand for gigabytes. They are refused, and the parser stops at
//! the first one, before it builds a value.

use serde_json::Value;
use serde_saphyr::budget::{Budget, BudgetBreach};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Error, Options};

#[cfg(test)]
mod tests;

/// The longest text, in bytes. It becomes an argument of a command, which Linux limits to 128 KiB.
const LONGEST: usize = 64 << 10;
/// The deepest nesting of lists and maps.
const DEEPEST: usize = 32;
/// The most values, lists and maps. Each takes about a microsecond.
const MOST_NODES: usize = 10_000;

/// Parses YAML. Anchors, aliases and merges are refused. Of a repeated key the last counts.
///
/// # Errors
/// The fault, as a sentence.
pub(super) fn yaml(text: &str) -> Result<Value, String> {
    bounded(text)?;
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| sentence(&error))
}

/// Parses JSON.
///
/// # Errors
/// The fault, as a sentence.
pub(super) fn json(text: &str) -> Result<Value, String> {
    bounded(text)?;
    // The library limits the depth to 128, and JSON has no aliases.
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The beginning of a text, for messages.
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
        // `yes` and `n` are strings, as in YAML 1.2, and `017` is octal, as in Go.
        strict_booleans: true,
        legacy_octal_numbers: true,
        // Base64 is kept as it is, and Ray does not know other tags.
        ignore_binary_tag_for_string: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// The error as a sentence for users.
fn sentence(error: &Error) -> String {
    let deep = || format!("lists and maps must be no more than {DEEPEST} deep");
    let Error::Budget { breach, .. } = error else {
        let said = error.to_string();
        // For lists in brackets the library reports its limit only in this text.
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
