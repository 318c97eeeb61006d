//! Kubernetes: the API server with its objects, and the controllers that act on them.

pub(crate) mod api_server;
pub(crate) mod controllers;
pub(crate) mod gangs;
mod optional;
pub(crate) mod pod_groups;
