//! The workers of this node: what they are, what is reported of them, and what their agents are
//! sent.
//!
//! [`state`] and [`plan`] are pure. [`driver`] owns the one table and moves data between it, the
//! agents and the control plane.

pub mod driver;
pub mod epochs;
pub mod facts;
pub mod outbox;
pub mod plan;
pub mod state;
pub mod types;
