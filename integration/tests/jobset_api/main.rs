//! The control plane against a real API server and a real Job controller, without nodes: pods are only ever what a test says they are.
//!
//! All tests share one API server and one control plane, which is started before its CRD is installed. Tests that kill the control
//! plane have it for themselves.

mod fixture;
mod in_place;
mod invalid;
mod lifecycle;
mod restarts;
mod scene;
mod takeover;
