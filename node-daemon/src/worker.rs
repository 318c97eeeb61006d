//! The workers of this node: their states, the reports about them, and the targets of their agents.
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
