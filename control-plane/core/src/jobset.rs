//! JobSets: their Jobs, Service and volumes, the order in which they start, and how they end.
//!
//! [`reconcile::plan`] decides about a JobSet as a whole.

pub(crate) mod active;
pub(crate) mod children;
pub mod completed;
pub(crate) mod elastic;
pub(crate) mod execution_policy;
pub(crate) mod failure_policy;
pub(crate) mod gate;
pub mod in_place;
pub mod jobs;
pub mod limits;
pub mod network;
pub mod observed;
pub mod owner;
pub mod placement;
pub mod plan;
pub mod pod;
pub(crate) mod resume;
pub mod stages;
pub(crate) mod startup;
pub(crate) mod status;
pub(crate) mod success_policy;
pub mod target;
pub mod upstream_agent;
pub(crate) mod volume_claims;
