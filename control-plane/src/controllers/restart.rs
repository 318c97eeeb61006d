//! Restart groups: one task for each JobSet that restarts in place under supervision.
//!
//! A task observes the stores and the reports of the nodes, lets the pure coordinator decide, and
//! acts: it publishes to the hub, writes `status.inPlaceRestart`, and announces. Only the task
//! writes that part of the status, with one exception: the reconciler raises the generation when a
//! Job has failed, and the task follows.

mod blocked_condition;
pub(crate) mod board;
mod budget;
mod clock;
mod convert;
mod input_version;
mod manager;
mod metrics;
mod observation;
pub(crate) mod pace;
mod phases;
mod pod_deleter;
mod pod_replacer;
mod recorder;
mod restart_count_annotation;
mod status_writer;
mod task;
mod traces;
mod view;

pub use board::question::Question;
pub use board::{Board, Post, Snapshot};
pub use clock::Clock;
pub use convert::durable_from;
pub use manager::{Dependencies, Manager, is_group, taken_over};
pub use observation::{Due, Observation, Urgency};
pub use recorder::RestartRecorder;
pub use status_writer::{Change, patch};
pub use view::{View, published, view_of};

pub(crate) use convert::sentence;
pub(crate) use phases::{Phase, phases};
