//! What is of Kubernetes: the API server, its controllers, and what they decide on.

pub(crate) mod api_server;
pub(crate) mod controllers;
pub(crate) mod gangs;
mod optional;
pub(crate) mod pod_groups;
