//! Decisions of the control plane: data in, data out. No I/O, no clock, no async, no logging.

pub mod restart;
