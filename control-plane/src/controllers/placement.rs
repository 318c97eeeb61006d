//! Exclusive placement of pods: the pod webhook's answers, and the controller that evicts misplaced
//! pods.
//!
//! Decisions are made in [`lockstep_core::jobset::placement`]. Pods without exclusive placement
//! cause no request.

mod controller;
mod domains;
mod evict;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use lockstep_api::labels;
use lockstep_core::jobset::placement::{self, LeaderSearch, Member, Refusal};
use lockstep_process::turns::Turns;
use thiserror::Error;
use tokio::time::timeout;

use crate::k8s::client::pages;
use crate::k8s::watch::Stores;
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::members::{JobRef, MembersByJob};

pub use controller::Controller;
pub use domains::DomainError;

use domains::Domains;

#[cfg(test)]
mod tests;

/// Why a pod is refused. The user sees the text.
#[derive(Debug, Error)]
pub enum PlacementError {
    /// It may not be created, or not yet.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The domain of its leader is not known.
    #[error(transparent)]
    Domain(#[from] Arc<DomainError>),
    /// The search for its leader failed.
    #[error("looking for the leader pod: {0}")]
    Api(#[from] kube::Error),
    /// The search took too long.
    #[error("looking for the leader pod: not found within {} s; try again", LOOK_WITHIN.as_secs())]
    Late,
}

/// Places pods. Clones share their caches.
#[derive(Clone)]
pub struct Placement {
    client: Client,
    members: Arc<MembersByJob>,
    domains: Domains,
    turns: Arc<Turns>,
}

/// Pods in a page, and the most pages that are read: pods beyond them are not the leader.
const PAGE: u32 = 100;
const PAGES: usize = 50;
/// Reviews that ask the API server for a leader at the same time, in all and for one namespace.
const AT_ONCE: u32 = 8;
const OF_ONE: u32 = 2;
/// How long such a search may take, including the wait for a turn.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

impl Placement {
    /// Placement by the watch of pods or, if that lags, by the API server.
    #[must_use]
    pub fn new(client: Client, stores: &Stores) -> Self {
        Self {
            domains: Domains::new(client.clone()),
            client,
            members: stores.members(),
            turns: Arc::new(Turns::new(AT_ONCE, OF_ONE)),
        }
    }

    /// Placement by the API server only.
    #[cfg(test)]
    pub(crate) fn without_watch(client: Client) -> Self {
        Self {
            domains: Domains::new(client.clone()),
            client,
            members: Arc::default(),
            turns: Arc::new(Turns::new(AT_ONCE, OF_ONE)),
        }
    }

    /// What the mutating webhook makes of a pod that is being created. Returns `None` if the pod
    /// stays as it is.
    ///
    /// A follower whose leader has no node yet stays as it is: [`Placement::validate`] refuses it.
    ///
    /// # Errors
    /// The leader is scheduled but its domain is unknown, or the API server does not answer.
    pub async fn mutate(&self, pod: &Pod) -> Result<Option<Pod>, PlacementError> {
        let domain = match LeaderSearch::of_follower(pod) {
            Ok(Some(search)) => self.domain(namespace(pod), &search).await?,
            Ok(None) | Err(_) => None,
        };
        Ok(placement::mutate(pod, domain.as_deref()))
    }

    /// Checks that the pod may be created now.
    ///
    /// # Errors
    /// The pod may not be created, or the API server does not answer.
    pub async fn validate(&self, pod: &Pod) -> Result<(), PlacementError> {
        let Some(search) = placement::admission(pod)? else {
            return Ok(());
        };
        match self.leader(namespace(pod), &search).await?.node {
            Some(_) => Ok(()),
            None => Err(Refusal::NotScheduled.into()),
        }
    }

    /// The domain of the leader, if it has one yet.
    async fn domain(
        &self,
        namespace: &str,
        search: &LeaderSearch<'_>,
    ) -> Result<Option<Arc<str>>, PlacementError> {
        let leader = match self.leader(namespace, search).await {
            Ok(leader) => leader,
            Err(PlacementError::Refused(reason)) => {
                tracing::debug!(namespace, jobset = search.jobset, %reason, "no leader to follow yet");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let Some(node) = leader.node else { return Ok(None) };
        Ok(Some(self.domains.of(&node, search.topology).await?))
    }

    async fn leader(&self, namespace: &str, search: &LeaderSearch<'_>) -> Result<Member, PlacementError> {
        let mut candidates = self.seen(namespace, search);
        if candidates.is_empty() {
            let found = timeout(LOOK_WITHIN, self.find_members(namespace, search)).await;
            candidates = found.map_err(|_| PlacementError::Late)??;
        }
        Ok(search.choose(&candidates)?.clone())
    }

    /// Waits for a turn, checks the watch again, then asks the API server.
    async fn find_members(
        &self,
        namespace: &str,
        search: &LeaderSearch<'_>,
    ) -> Result<Vec<Member>, kube::Error> {
        let _turn = self.turns.take(namespace, 1).await;
        let candidates = self.seen(namespace, search);
        if candidates.is_empty() {
            self.ask(namespace, search).await
        } else {
            Ok(candidates)
        }
    }

    /// The leaders that the watch shows.
    fn seen(&self, namespace: &str, search: &LeaderSearch<'_>) -> Vec<Member> {
        let of = |job| self.members.leaders(&JobRef::new(namespace, job));
        search.job.map(of).unwrap_or_default()
    }

    /// Asks for the leaders of Jobs of this name. A leader is created just before its followers, so
    /// the watch may not show it yet.
    async fn ask(&self, namespace: &str, search: &LeaderSearch<'_>) -> Result<Vec<Member>, kube::Error> {
        let mut selector = vec![
            (labels::JOBSET_NAME, search.jobset),
            (labels::REPLICATED_JOB_NAME, search.replicated_job),
            (labels::JOB_INDEX, search.job_index),
        ];
        // The label keeps the other pods out of the answer.
        if search.labelled {
            selector.push((labels::BATCH_JOB_COMPLETION_INDEX, "0"));
        }
        let selector: Vec<String> = selector
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let selector = selector.join(",");
        let pods: Api<Lean<Pod>> = Api::namespaced(self.client.clone(), namespace);
        let mut page = ListParams::default().labels(&selector).limit(PAGE);
        let mut members = Vec::new();
        for _ in 0..PAGES {
            let found = pods.list(&page).await?;
            members.extend(found.items.iter().filter_map(|Lean(pod)| Member::of(pod)));
            match pages::after(page, &found.metadata) {
                Some(next) => page = next,
                None => break,
            }
        }
        Ok(members)
    }
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}
