//! What only one replica does: reconcile, coordinate restarts, tell node daemons what to do.
//!
//! Promises: nothing of it starts before the lease is held, and all of it has ended before the lease is given up. A lease that is lost ends
//! the process: the next start begins from what is durable.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::jobset::observed::Setting;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::settings::Settings;
use crate::controllers::gang;
use crate::controllers::jobset;
use crate::controllers::placement::{Controller, Placement};
use crate::controllers::ray;
use crate::controllers::restart::Board;
use crate::controllers::restart::{self, Manager, Means, RestartRecorder};
use crate::hub::{Refusals, Registry, Role};
use crate::k8s::backwards::Backwards;
use crate::k8s::namespace;
use crate::k8s::watch::Stores;
use crate::k8s::watch::members::JobRef;
use crate::k8s::watch::notify::Notified;
use crate::leader::{Identity, Leadership, LeaseError};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

/// What a leader works with.
pub(crate) struct Leader {
    /// This process, as the Lease names it.
    pub(crate) own: Identity,
    pub(crate) settings: Settings,
    pub(crate) client: Client,
    /// What the Lease is read and written with. It waits for nothing else.
    pub(crate) lease: Client,
    /// Where what a leader does runs: not where the Lease is renewed.
    pub(crate) parts: Handle,
    /// Host of the API server.
    pub(crate) api_server: Option<String>,
    pub(crate) stores: Stores,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) traces: Traces,
    pub(crate) role: Arc<Role>,
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) board: Arc<Board>,
    pub(crate) reconciler_changes: Notified<ObjectRef<JobSet>>,
    pub(crate) group_changes: Notified<ObjectRef<JobSet>>,
    pub(crate) placement_changes: Notified<JobRef>,
    pub(crate) gang_changes: Notified<ObjectRef<JobSet>>,
    /// Where Ray's resources are looked after.
    pub(crate) ray_changes: Option<Notified<ObjectRef<JobSet>>>,
    /// Where looks at JobSets run, and what they ask the API server with.
    pub(crate) api: Handle,
    pub(crate) follower: Client,
    pub(crate) shutdown: CancellationToken,
}

/// How long it may take to write an epoch down. Without that the next leader hears of it again.
const OUTLIVE: Duration = Duration::from_secs(10);

impl Leader {
    /// Waits for the caches and the lease, then leads until the shutdown or the first failure.
    ///
    /// # Errors
    /// What failed.
    pub(crate) async fn lead(self) -> anyhow::Result<()> {
        let shutdown = self.shutdown.clone();
        let metrics = Arc::clone(&self.metrics);
        let election = self.settings.leader_election.clone();
        let lease = election.enabled.then_some(election.lease.as_str());
        metrics.leads(false, lease);
        let Some(mut leadership) = self.become_leader().await? else {
            return Ok(());
        };
        let registry = Registry::noting(leadership.epoch, Arc::clone(&self.refusals));
        let end = shutdown.child_token();
        metrics.leads(true, lease);
        registry.count_in(&metrics);
        let mut parts: JoinSet<anyhow::Result<()>> = JoinSet::new();
        let backwards = Backwards::default();
        self.start(&registry, &backwards, &mut parts, &end);
        let mut went_back = false;
        let mut result = tokio::select! {
            ended = parts.join_next() => ended.map_or(Ok(()), |ended| ended?),
            lost = leadership.lost() => {
                went_back = matches!(lost, LeaseError::WentBack(_));
                Err(lost.into())
            }
            what = backwards.told() => {
                went_back = true;
                Err(anyhow!("the API server went back to an older state: {what}; starting again from what it holds"))
            }
            epoch = registry.outbid() => {
                Err(anyhow!("epoch {epoch} was used before, this is {}: starting again above it", leadership.epoch))
            }
            () = shutdown.cancelled() => Ok(()),
        };
        metrics.leads(false, lease);
        end.cancel();
        while let Some(ended) = parts.join_next().await {
            result = result.and(ended.map_err(Into::into).flatten());
        }
        // What a few nodes have said was no reason to go. It costs nothing that the next leader is above it, so that those obey if it was true.
        // After the store has gone back nodes have seen this one's epoch, and the next may be below it.
        let outlived = registry.rival().max(went_back.then_some(leadership.epoch));
        if let Some(epoch) = outlived {
            let outlive = tokio::time::timeout(OUTLIVE, leadership.outlive(epoch)).await;
            if let Err(error) = outlive.map_err(anyhow::Error::from).and_then(|done| Ok(done?)) {
                tracing::warn!(%error, "the epoch was not written down");
            }
        }
        result.and(leadership.release().await.map_err(Into::into))
    }

    /// Nothing where the shutdown comes first.
    async fn become_leader(&self) -> anyhow::Result<Option<Leadership>> {
        let (client, election, own) = (&self.lease, &self.settings.leader_election, &self.own);
        let hub = self.settings.hub.advertised;
        let prepared = async {
            self.stores.wait_until_ready().await;
            namespace::ensure(client, &self.settings.namespace).await
        };
        match self.shutdown.run_until_cancelled(prepared).await {
            Some(prepared) => prepared?,
            None => return Ok(None),
        }
        if election.enabled {
            return Ok(Leadership::acquire(client, election, own, hub, &self.shutdown).await?);
        }
        let leads = Leadership::without_election(client, election, own, hub);
        Ok(self.shutdown.run_until_cancelled(leads).await.transpose()?)
    }

    fn start(
        self,
        registry: &Arc<Registry>,
        backwards: &Backwards,
        parts: &mut JoinSet<anyhow::Result<()>>,
        end: &CancellationToken,
    ) {
        // Not on the thread that renews the Lease.
        let apart = self.parts.clone();
        let _on = apart.enter();
        let has_daemons = self.settings.hub.address.is_some();
        if has_daemons {
            let (role, registry, end) = (Arc::clone(&self.role), Arc::clone(registry), end.clone());
            parts.spawn(async move {
                role.lead(registry, end).await;
                Ok(())
            });
        } else {
            tracing::warn!(
                "no --hub-bind-address: node daemons cannot connect, workers cannot start in place"
            );
        }
        if self.settings.features.in_place_restart && has_daemons {
            let instance = std::env::var("POD_NAME").unwrap_or_else(|_| "lockstep-control-plane".to_owned());
            let (announcer, write_events) = RestartRecorder::new(
                self.client.clone(),
                instance,
                &self.metrics,
                self.traces.clone(),
                end.clone(),
            );
            parts.spawn(async move {
                write_events.await;
                Ok(())
            });
            let manager = Manager::new(
                self.client.clone(),
                self.stores.clone(),
                Arc::clone(registry),
                announcer,
                Means {
                    agents: self.settings.agents.clone(),
                    replaces_pods: self.settings.replace_lost_pods,
                    backwards: backwards.clone(),
                },
                Arc::clone(&self.board),
                end.clone(),
            );
            let groups = manager.run(self.group_changes);
            let (agents, board) = (self.settings.agents.clone(), Arc::clone(&self.board));
            let taken_over = restart::taken_over(self.stores.clone(), agents, Arc::clone(&board));
            let groups = async move {
                groups.await;
                Ok(())
            };
            parts.spawn_on(groups, &self.api);
            let end = end.clone();
            parts.spawn(async move {
                if end.run_until_cancelled(taken_over).await.is_some() {
                    board.lead();
                    end.cancelled().await;
                }
                Ok(())
            });
        } else {
            self.board.lead();
        }
        let placement = Placement::new(self.client.clone(), &self.stores);
        let placement = Controller::new(placement, Arc::clone(&self.metrics));
        let placement = placement.run(self.placement_changes, end.clone());
        parts.spawn(async move {
            placement.await;
            Ok(())
        });
        // Pods of one Job on both sides of the minimum need the webhook for pods.
        let pod_groups = gang::PodGroups::unknown();
        let asks = self.settings.webhooks.is_some();
        if asks {
            let follow = pod_groups.clone().follow(self.client.clone());
            let end = end.clone();
            parts.spawn(async move {
                end.run_until_cancelled(follow).await;
                Ok(())
            });
        }
        let gangs = gang::Controller::new(
            self.client.clone(),
            self.stores.clone(),
            pod_groups.clone(),
            Arc::clone(&self.metrics),
        );
        let gangs = gangs.run(self.gang_changes, end.clone());
        parts.spawn(async move {
            gangs.await;
            Ok(())
        });
        if let Some(changes) = self.ray_changes {
            let ray = ray::Controller {
                client: self.client.clone(),
                stores: self.stores.clone(),
                manage_crds: self.settings.manage_crds,
                api_server: self.api_server.clone(),
                dashboard_proxy: self.settings.ray.clone().and_then(|ray| ray.dashboard_proxy),
            };
            let ray = ray.run(changes, end.clone());
            parts.spawn(async move {
                ray.await;
                Ok(())
            });
        }
        let (registry, end, api) = (Arc::clone(registry), end.clone(), self.api.clone());
        let reconcile = async move {
            // Restarts do not wait for the answer.
            if asks && end.run_until_cancelled(pod_groups.known()).await.is_none() {
                return Ok(());
            }
            let means = jobset::Means {
                setting: Setting {
                    features: self.settings.features,
                    has_daemons,
                    agents: self.settings.agents,
                },
                pod_groups,
                registry,
            };
            let changes = self.reconciler_changes;
            jobset::run(self.follower, self.stores, self.metrics, means, changes, end).await;
            Ok(())
        };
        parts.spawn_on(reconcile, &api);
    }
}
