//! What the API server has refused is tried again, ever more slowly.

mod failures;

pub(crate) use failures::Failures;
pub(crate) use lockstep_core::common::retry::delay;
