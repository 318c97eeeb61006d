//! Shared by several rooms: sizes, feature gates, patterns, quantities, the syntax of names,
//! violations and retries.

pub mod extent;
pub mod features;
pub(crate) mod go_regex;
pub mod patterns;
pub mod quantity;
pub mod retry;
pub(crate) mod semantic;
pub(crate) mod syntax;
#[cfg(test)]
pub(crate) mod testing;
pub mod violation;
