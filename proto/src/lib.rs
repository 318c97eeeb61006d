//! Wire types: Lockstep's own protocols and the vendored CRI and NRI interfaces.
//!
//! Generated code, except for the codec that bounds messages from node daemons, and a message that
//! drops what nobody reads. Everything here stops at a `convert` module of the crate that uses it.

#![allow(
    missing_docs,
    clippy::all,
    clippy::doc_markdown,
    unused_qualifications,
    unreachable_pub
)]

/// Version of the node protocol that this build speaks, as minimum and maximum.
pub const NODE_PROTOCOL: std::ops::RangeInclusive<u32> = 1..=3;

/// First version of the node protocol that knows worker restarts.
pub const NODE_PROTOCOL_WORKER_RESTARTS: u32 = 2;

/// First version of the node protocol in which daemons send new tokens on open streams.
pub const NODE_PROTOCOL_CREDENTIALS: u32 = 3;

/// Version of the agent protocol that this build speaks.
pub const AGENT_PROTOCOL: u32 = 1;

/// Largest frame on the agent link, in bytes.
pub const AGENT_MAX_FRAME: usize = 64 * 1024;

#[cfg(feature = "grpc")]
pub mod bounded;
#[cfg(feature = "grpc")]
mod pod_sandbox;

/// `lockstep.agent.v1`: pod agent and node daemon.
pub mod agent {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/lockstep.agent.v1.rs"));
    }
}

/// `lockstep.node.v1`: node daemon and control plane.
#[cfg(feature = "grpc")]
pub mod node {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/lockstep.node.v1.rs"));
    }
}

/// `lockstep.platform.v1`: control plane and the platforms that are built on it.
#[cfg(feature = "grpc")]
pub mod platform {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/lockstep.platform.v1.rs"));

        /// The .proto with its comments, as an encoded `google.protobuf.FileDescriptorSet`.
        pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/platform.binpb"));
    }
}

/// The container runtime interface, `runtime.v1`.
#[cfg(feature = "grpc")]
pub mod cri {
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));

        pub use crate::pod_sandbox::PodSandbox;
    }
}

/// The node resource interface, `nri.pkg.api.v1alpha1`: messages only (its transport is ttrpc).
#[cfg(feature = "grpc")]
pub mod nri {
    pub mod v1alpha1 {
        include!(concat!(env!("OUT_DIR"), "/nri.pkg.api.v1alpha1.rs"));
    }
}
