//! Which gangs may start now.

use jiff::Timestamp;

use super::{Decisions, World};

/// Decides about all gangs at once.
#[must_use]
pub fn decide(world: &World, now: Timestamp) -> Decisions {
    let _ = (world, now);
    Decisions::default()
}
