//! The controllers, as a leader starts them.

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::jobset::observed::Setting;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{Changes, Common, Parts};
use crate::controllers::restart::{self, Manager, RestartRecorder};
use crate::controllers::{gang, jobset, placement, ray};
use crate::hub::{Registry, Role};
use crate::k8s::backwards::Backwards;
use crate::k8s::watch::members::JobRef;
use crate::k8s::watch::notify::Notified;
use crate::telemetry::traces::Traces;

/// What the controllers share.
pub(super) struct Controllers {
    pub(super) common: Common,
    /// The node daemons of this leader's term.
    pub(super) registry: Arc<Registry>,
    /// Takes reports of an API server that has gone back to an older state.
    pub(super) backwards: Backwards,
    /// The thread of the reconciler of JobSets and of the manager of restart groups.
    pub(super) api: Handle,
    /// The end of this leader's term.
    pub(super) end: CancellationToken,
}

impl Controllers {
    /// Starts all controllers as `parts`.
    pub(super) fn start(self, role: Arc<Role>, traces: Traces, changes: Changes, parts: &mut Parts) {
        let Changes {
            jobsets,
            groups,
            placement,
            gangs,
            ray,
        } = changes;
        self.serve_daemons(role, parts);
        if self.common.settings.features.in_place_restart && self.has_daemons() {
            self.start_restarts(traces, groups, parts);
        } else {
            self.common.board.set_leading();
        }
        self.start_placement(placement, parts);
        let pod_groups = self.start_gangs(gangs, parts);
        if let Some(changes) = ray {
            self.start_ray(changes, parts);
        }
        self.start_reconciler(pod_groups, jobsets, parts);
    }

    fn has_daemons(&self) -> bool {
        self.common.settings.hub.address.is_some()
    }

    /// Makes the hub serve node daemons.
    fn serve_daemons(&self, role: Arc<Role>, parts: &mut Parts) {
        if !self.has_daemons() {
            tracing::warn!(
                "no --hub-bind-address: node daemons cannot connect, so they cannot restart workers in place"
            );
            return;
        }
        let (registry, end) = (Arc::clone(&self.registry), self.end.clone());
        parts.spawn(async move {
            role.lead(registry, end).await;
            Ok(())
        });
    }

    fn start_restarts(&self, traces: Traces, changes: Notified<ObjectRef<JobSet>>, parts: &mut Parts) {
        let Common {
            settings,
            clients,
            stores,
            metrics,
            board,
            ..
        } = &self.common;
        let instance = std::env::var("POD_NAME").unwrap_or_else(|_| "lockstep-control-plane".to_owned());
        let (recorder, write_events) = RestartRecorder::new(
            clients.general.clone(),
            instance,
            metrics,
            traces,
            self.end.clone(),
        );
        parts.spawn(succeed(write_events));
        let dependencies = restart::Dependencies {
            client: clients.general.clone(),
            stores: stores.clone(),
            registry: Arc::clone(&self.registry),
            recorder,
            agents: settings.agents.clone(),
            counts_attempts: settings.features.execution_attempts,
            replaces_pods: settings.replace_lost_pods,
            backwards: self.backwards.clone(),
            board: Arc::clone(board),
        };
        let manager = Manager::new(dependencies, self.end.clone());
        let taken_over = restart::taken_over(stores.clone(), settings.agents.clone(), Arc::clone(board));
        parts.spawn_on(succeed(manager.run(changes)), &self.api);
        let (board, end) = (Arc::clone(board), self.end.clone());
        parts.spawn(async move {
            if end.run_until_cancelled(taken_over).await.is_some() {
                board.set_leading();
                end.cancelled().await;
            }
            Ok(())
        });
    }

    fn start_placement(&self, changes: Notified<JobRef>, parts: &mut Parts) {
        let Common {
            clients,
            stores,
            metrics,
            ..
        } = &self.common;
        let rules = placement::Placement::new(clients.general.clone(), stores);
        let controller = placement::Controller::new(rules, Arc::clone(metrics));
        parts.spawn(succeed(controller.run(changes, self.end.clone())));
    }

    /// Starts the gang controller. Returns its knowledge of PodGroups.
    fn start_gangs(&self, changes: Notified<ObjectRef<JobSet>>, parts: &mut Parts) -> gang::PodGroups {
        let Common {
            clients,
            stores,
            metrics,
            ..
        } = &self.common;
        let pod_groups = gang::PodGroups::unknown();
        if self.asks_for_pod_groups() {
            let follow = pod_groups.clone().follow(clients.general.clone());
            let end = self.end.clone();
            parts.spawn(async move {
                end.run_until_cancelled(follow).await;
                Ok(())
            });
        }
        let controller = gang::Controller::new(
            clients.general.clone(),
            stores.clone(),
            pod_groups.clone(),
            Arc::clone(metrics),
        );
        parts.spawn(succeed(controller.run(changes, self.end.clone())));
        pod_groups
    }

    /// True if gangs may use PodGroups. Pods of one Job on both sides of the minimum need the pod
    /// webhook.
    fn asks_for_pod_groups(&self) -> bool {
        self.common.settings.webhooks.is_some()
    }

    fn start_ray(&self, changes: Notified<ObjectRef<JobSet>>, parts: &mut Parts) {
        let Common {
            settings,
            api_server,
            clients,
            stores,
            ..
        } = &self.common;
        let controller = ray::Controller {
            client: clients.general.clone(),
            stores: stores.clone(),
            manage_crds: settings.manage_crds,
            api_server: api_server.clone(),
            dashboard_proxy: settings.ray.clone().and_then(|ray| ray.dashboard_proxy),
        };
        parts.spawn(succeed(controller.run(changes, self.end.clone())));
    }

    fn start_reconciler(
        self,
        pod_groups: gang::PodGroups,
        changes: Notified<ObjectRef<JobSet>>,
        parts: &mut Parts,
    ) {
        let asks = self.asks_for_pod_groups();
        let has_daemons = self.has_daemons();
        let Self {
            common,
            registry,
            api,
            end,
            ..
        } = self;
        let Common {
            settings,
            clients,
            stores,
            metrics,
            ..
        } = common;
        let reconcile = async move {
            // Restarts do not wait for the answer.
            if asks && end.run_until_cancelled(pod_groups.known()).await.is_none() {
                return Ok(());
            }
            let dependencies = jobset::Dependencies {
                setting: Setting {
                    features: settings.features,
                    has_daemons,
                    agents: settings.agents,
                },
                pod_groups,
                registry,
            };
            jobset::run(clients.follower, stores, metrics, dependencies, changes, end).await;
            Ok(())
        };
        parts.spawn_on(reconcile, &api);
    }
}

/// A part that cannot fail.
async fn succeed(part: impl Future<Output = ()>) -> anyhow::Result<()> {
    part.await;
    Ok(())
}
