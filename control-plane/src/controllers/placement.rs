//! Exclusive placement of pods: what the pod webhook answers, and the controller that puts right what went wrong.
//!
//! What is decided stands in [`lockstep_core::jobset::placement`]. Pods that do not ask for it cost no request.

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
use thiserror::Error;
use tokio::time::timeout;

use crate::k8s::client::pages;
use crate::k8s::turns::Turns;
use crate::k8s::watch::Stores;
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::members::{JobRef, MembersByJob};

pub use controller::Controller;
pub use domains::DomainError;

use domains::Domains;

#[cfg(test)]
mod tests;

/// Why a pod is not let through. The text is what the user sees.
#[derive(Debug, Error)]
pub enum PlacementError {
    /// It may not be created, or not yet.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It cannot be told where its leader is.
    #[error(transparent)]
    Domain(#[from] Arc<DomainError>),
    /// Its leader could not be looked for.
    #[error("looking for the leader pod: {0}")]
    Api(#[from] kube::Error),
    /// The look took too long.
    #[error("looking for the leader pod: not found within {} s; try again", LOOK_WITHIN.as_secs())]
    Late,
}

/// Places pods. Cheap to clone; all clones share what they know.
#[derive(Clone)]
pub struct Placement {
    client: Client,
    members: Arc<MembersByJob>,
    domains: Domains,
    turns: Arc<Turns>,
}

/// Pods that are asked for at once, and how often for more: whatever else bears the labels of one Job is no leader of it.
const PAGE: u32 = 100;
const PAGES: usize = 50;
/// Reviews that look for a leader at the API server at the same time, and those of one namespace.
const AT_ONCE: u32 = 8;
const OF_ONE: u32 = 2;
/// How long such a look may take, with the wait for a turn.
const LOOK_WITHIN: Duration = Duration::from_secs(5);

impl Placement {
    /// Placement by what the watch of pods shows and, where that lags, by what the API server says.
    #[must_use]
    pub fn new(client: Client, stores: &Stores) -> Self {
        Self {
            domains: Domains::new(client.clone()),
            client,
            members: stores.members(),
            turns: Arc::new(Turns::new(AT_ONCE, OF_ONE)),
        }
    }

    /// Placement by what the API server says alone.
    #[cfg(test)]
    pub(crate) fn without_watch(client: Client) -> Self {
        Self {
            domains: Domains::new(client.clone()),
            client,
            members: Arc::default(),
            turns: Arc::new(Turns::new(AT_ONCE, OF_ONE)),
        }
    }

    /// What the mutating webhook changes in a pod that is being created; `None`: nothing.
    ///
    /// A follower whose leader has no place yet is left as it is: [`Placement::validate`] refuses it.
    ///
    /// # Errors
    /// The leader is scheduled, but its domain cannot be told; or the API server does not answer.
    pub async fn mutate(&self, pod: &Pod) -> Result<Option<Pod>, PlacementError> {
        let domain = match LeaderSearch::of_follower(pod) {
            Ok(Some(search)) => self.domain(namespace(pod), &search).await?,
            Ok(None) | Err(_) => None,
        };
        Ok(placement::mutate(pod, domain.as_deref()))
    }

    /// Whether the pod may be created now.
    ///
    /// # Errors
    /// It may not; or the API server does not answer.
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
            let look = timeout(LOOK_WITHIN, self.look(namespace, search)).await;
            candidates = look.map_err(|_| PlacementError::Late)??;
        }
        Ok(search.choose(&candidates)?.clone())
    }

    /// The leaders that the API server shows, or the watch once there is a turn to ask.
    async fn look(&self, namespace: &str, search: &LeaderSearch<'_>) -> Result<Vec<Member>, kube::Error> {
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

    /// The leaders of Jobs of this name. A leader is created just before its followers, so the watch may not show it yet.
    async fn ask(&self, namespace: &str, search: &LeaderSearch<'_>) -> Result<Vec<Member>, kube::Error> {
        let mut selector = vec![
            (labels::JOBSET_NAME, search.jobset),
            (labels::REPLICATED_JOB_NAME, search.replicated_job),
            (labels::JOB_INDEX, search.job_index),
        ];
        // Not to be sent all the others.
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
