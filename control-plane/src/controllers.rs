//! The leader's controllers: JobSets, restarts in place, gangs, placement and Ray.

pub(crate) mod gang;
pub mod jobset;
pub mod placement;
pub(crate) mod ray;
pub mod restart;
