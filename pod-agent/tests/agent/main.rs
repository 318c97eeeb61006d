//! The real binary as PID 1 of a PID namespace of its own, against a daemon played by the test.
//! Needs root.
#![cfg(test)]

mod exits;
mod footprint;
mod hand_over;
mod heartbeat;
mod leftovers;
mod link;
mod ranks;
mod recorded;
mod restart;
mod rig;
mod signals;
mod standby;
mod tree;
