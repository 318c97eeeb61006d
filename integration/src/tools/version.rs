//! Asking a program for its version.

use std::path::Path;
use std::time::Duration;

use crate::command;

/// The major and minor version that `program` states when run with `args`. `None` when it fails,
/// states none, or takes longer than 5 s.
pub(super) async fn of(program: &Path, args: &[&str]) -> Option<[u32; 2]> {
    let asked = tokio::time::timeout(Duration::from_secs(5), command::run(program, args)).await;
    parse(&asked.ok()?.ok()?)
}

/// The first thing in `text` that looks like a version: two numbers joined by a dot.
pub(super) fn parse(text: &str) -> Option<[u32; 2]> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.')
        .find_map(|word| {
            let mut parts = word.split('.').map(str::parse);
            match (parts.next(), parts.next()) {
                (Some(Ok(major)), Some(Ok(minor))) => Some([major, minor]),
                _ => None,
            }
        })
}
