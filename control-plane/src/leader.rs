//! Which replica leads, and under which epoch.

pub mod lease;
