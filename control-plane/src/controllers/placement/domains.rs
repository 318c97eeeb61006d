//! Which topology domain a node is in.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt};
use moka::future::Cache;
use thiserror::Error;

/// Answers that are remembered.
const REMEMBERED: u64 = 1024;
/// How long an answer is valid. Nodes hardly ever move between racks, but can be recreated under
/// the same name.
const BELIEVED: Duration = Duration::from_secs(10);

/// Why the domain of a node is not known.
#[derive(Debug, Error)]
pub enum DomainError {
    /// The node has no such label.
    #[error("node does not have topology label: {0}")]
    NoLabel(String),
    /// There is no such node, at least for now.
    #[error("nodes {0:?} not found")]
    NoNode(String),
    /// The API server did not answer, or refused the request.
    #[error("node {node}: {error}")]
    Api {
        /// The node.
        node: String,
        /// The API server's error.
        error: kube::Error,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    node: String,
    topology: String,
}

/// Reads the labels of nodes, and caches them for a while, because all followers of a leader come
/// at once.
#[derive(Clone)]
pub(super) struct Domains {
    nodes: Api<Node>,
    known: Cache<Key, Arc<str>>,
}

impl Domains {
    pub(super) fn new(client: Client) -> Self {
        Self {
            nodes: Api::all(client),
            known: Cache::builder()
                .max_capacity(REMEMBERED)
                .time_to_live(BELIEVED)
                .build(),
        }
    }

    /// The value of the node's label `topology`. Concurrent calls share one request.
    pub(super) async fn of(&self, node: &str, topology: &str) -> Result<Arc<str>, Arc<DomainError>> {
        let key = key(node, topology);
        self.known.try_get_with(key, self.ask(node, topology)).await
    }

    /// The current value of the label, not a cached one.
    pub(super) async fn now(&self, node: &str, topology: &str) -> Result<Arc<str>, Arc<DomainError>> {
        self.known.invalidate(&key(node, topology)).await;
        self.of(node, topology).await
    }

    async fn ask(&self, node: &str, topology: &str) -> Result<Arc<str>, DomainError> {
        let found = self
            .nodes
            .get_metadata_opt(node)
            .await
            .map_err(|error| DomainError::Api {
                node: node.to_owned(),
                error,
            })?;
        let found = found.ok_or_else(|| DomainError::NoNode(node.to_owned()))?;
        let domain = found
            .labels()
            .get(topology)
            .map(|domain| Arc::from(domain.as_str()));
        domain.ok_or_else(|| DomainError::NoLabel(topology.to_owned()))
    }
}

fn key(node: &str, topology: &str) -> Key {
    Key {
        node: node.to_owned(),
        topology: topology.to_owned(),
    }
}
