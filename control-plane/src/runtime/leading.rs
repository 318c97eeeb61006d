//! What only the leader does: reconcile, coordinate restarts, and direct the node daemons.
//!
//! Promises: no part starts before the lease is held, and all parts end before the lease is given
//! up. A lost lease ends the process at once, which then starts again from the durable state.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::controllers::Controllers;
use super::{Changes, Common, Parts};
use crate::hub::{Refusals, Registry, Role};
use crate::k8s::backwards::Backwards;
use crate::k8s::namespace;
use crate::leader::{Identity, Leadership, LeaseError};
use crate::telemetry::traces::Traces;

/// A replica that waits for the lease, and leads once it holds it.
pub(super) struct Leader {
    /// This process, as the Lease names it.
    pub(super) identity: Identity,
    pub(super) common: Common,
    pub(super) traces: Traces,
    pub(super) role: Arc<Role>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) changes: Changes,
    /// The runtime of the controllers, not the thread that renews the Lease.
    pub(super) parts: Handle,
    /// The thread of the reconciler of JobSets and of the manager of restart groups.
    pub(super) api: Handle,
}

/// How long reserving an epoch may take. If it fails, the next leader learns the epoch from the
/// nodes.
const RESERVE_WITHIN: Duration = Duration::from_secs(10);

/// How long the parts may take to end after the lease was lost. Nobody leads meanwhile, and an API
/// server that did not renew the lease may let other requests wait for half a minute. A write that
/// is given up has the same effect as one that times out: the API server may still do it.
const END_WITHIN: Duration = Duration::from_secs(3);

impl Leader {
    /// Waits for the caches and the lease, then leads until the shutdown or the first failure.
    ///
    /// # Errors
    /// What failed.
    pub(crate) async fn lead(self) -> anyhow::Result<()> {
        let shutdown = self.common.shutdown.clone();
        let metrics = Arc::clone(&self.common.metrics);
        let election = self.common.settings.leader_election.clone();
        let lease = election.enabled.then_some(election.lease.as_str());
        metrics.follows(lease);
        let Some(mut leadership) = self.become_leader().await? else {
            return Ok(());
        };
        let registry = Registry::noting(leadership.epoch, Arc::clone(&self.refusals));
        let end = shutdown.child_token();
        metrics.leads(lease);
        registry.count_in(&metrics);
        let mut parts = Parts::new();
        let backwards = Backwards::default();
        self.start(&registry, &backwards, &mut parts, &end);
        let (mut went_back, mut lease_lost) = (false, false);
        let mut result = tokio::select! {
            ended = parts.join_next() => ended.map_or(Ok(()), |ended| ended?),
            lost = leadership.lost() => {
                lease_lost = true;
                went_back = matches!(lost, LeaseError::WentBack(_));
                Err(lost.into())
            }
            what = backwards.reported() => {
                went_back = true;
                Err(anyhow!("the API server went back to an older state: {what}; starting again from what it holds"))
            }
            epoch = registry.outbid() => {
                Err(anyhow!("epoch {epoch} was used before, this is {}: starting again above it", leadership.epoch))
            }
            () = shutdown.cancelled() => Ok(()),
        };
        metrics.follows(lease);
        end.cancel();
        let within = if lease_lost { END_WITHIN } else { Duration::MAX };
        match tokio::time::timeout(within, all_ended(&mut parts)).await {
            Ok(ended) => result = result.and(ended),
            Err(_) => parts.shutdown().await,
        }
        // The reports of a few nodes were no reason to step down. But leading above their epoch
        // costs the next leader nothing, and these nodes obey it if they were right. After the
        // store has gone back, nodes have seen this leader's epoch, and the next one might be below
        // it.
        let reserve = registry.other_epoch().max(went_back.then_some(leadership.epoch));
        if let Some(epoch) = reserve {
            let reserved = tokio::time::timeout(RESERVE_WITHIN, leadership.reserve_epoch(epoch)).await;
            if let Err(error) = reserved.map_err(anyhow::Error::from).and_then(|done| Ok(done?)) {
                tracing::warn!(%error, "epoch not reserved");
            }
        }
        result.and(leadership.release().await.map_err(Into::into))
    }

    /// Waits for the caches and the lease. Returns `None` if the shutdown came first.
    async fn become_leader(&self) -> anyhow::Result<Option<Leadership>> {
        let Common {
            settings,
            clients,
            stores,
            shutdown,
            ..
        } = &self.common;
        let (client, election, own) = (&clients.lease, &settings.leader_election, &self.identity);
        let hub = settings.hub.advertised;
        let prepared = async {
            stores.wait_until_ready().await;
            namespace::ensure(client, &settings.namespace).await
        };
        match shutdown.run_until_cancelled(prepared).await {
            Some(prepared) => prepared?,
            None => return Ok(None),
        }
        if election.enabled {
            return Ok(Leadership::acquire(client, election, own, hub, shutdown).await?);
        }
        let leads = Leadership::without_election(client, election, own, hub);
        Ok(shutdown.run_until_cancelled(leads).await.transpose()?)
    }

    /// Starts the controllers.
    fn start(
        self,
        registry: &Arc<Registry>,
        backwards: &Backwards,
        parts: &mut Parts,
        end: &CancellationToken,
    ) {
        // The controllers must not run on the thread that renews the Lease.
        let handle = self.parts.clone();
        let _on = handle.enter();
        let Self {
            common,
            traces,
            role,
            changes,
            api,
            ..
        } = self;
        let controllers = Controllers {
            common,
            registry: Arc::clone(registry),
            backwards: backwards.clone(),
            api,
            end: end.clone(),
        };
        controllers.start(role, traces, changes, parts);
    }
}

/// Waits for all parts. Returns the first error.
async fn all_ended(parts: &mut Parts) -> anyhow::Result<()> {
    let mut result = Ok(());
    while let Some(ended) = parts.join_next().await {
        result = result.and(ended.map_err(Into::into).flatten());
    }
    result
}
