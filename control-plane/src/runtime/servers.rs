//! The servers that every replica runs, whether it leads or not.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::clients::Threads;
use super::{Common, Parts};
use crate::config::settings::Hub;
use crate::controllers::placement::Placement;
use crate::endpoints::platform::{self, ClusterAuthorizer, PlatformService, Replica, StatusPage};
use crate::endpoints::webhook;
use crate::hub::{self, Authenticator, ClusterKeys, ClusterReviewer, Expected, Gate, Refusals, Role};
use crate::leader::{self, LeaderAddress};
use crate::net::serve::{self, Awaited, Ready};
use crate::net::tls::HubIdentity;

/// The servers, before they are started.
pub(super) struct Servers<'a> {
    common: &'a Common,
    threads: &'a Threads,
    /// This process, as the Lease names it.
    own: &'a leader::Identity,
    /// The certificate of the hub and of the platform API.
    certificate: Arc<HubIdentity>,
    /// The servers that have to be ready before this replica is.
    awaited: Awaited,
}

impl<'a> Servers<'a> {
    pub(super) fn new(common: &'a Common, threads: &'a Threads, own: &'a leader::Identity) -> Self {
        let settings = &common.settings;
        Self {
            common,
            threads,
            own,
            certificate: Arc::new(HubIdentity::new(
                common.clients.general.clone(),
                settings.namespace.clone(),
                settings.hub.tls_dir.clone(),
            )),
            awaited: Awaited {
                webhooks: settings.webhooks.as_ref().map(|_| Ready::default()),
                // If the hub is not advertised, as outside a cluster, this replica only has to
                // reconcile.
                hub: settings.hub.advertised.map(|_| Ready::default()),
            },
        }
    }

    /// Starts the servers. Returns the hub's role, which the leader takes, and the hub's refusals.
    pub(super) fn start(self, parts: &mut Parts, watches: &mut JoinSet<()>) -> (Arc<Role>, Arc<Refusals>) {
        self.serve_health(parts);
        self.serve_webhooks(parts);
        self.serve_metrics(parts);
        self.keep_certificate(watches);
        let leader = self.follow_leader(watches);
        let role = Role::new(leader.clone());
        self.serve_platform(&role, parts);
        self.serve_status_page(leader, parts);
        let gate = self.gate();
        let refusals = Arc::clone(&gate.refusals);
        self.serve_hub(&role, gate, parts);
        (role, refusals)
    }

    fn serve_health(&self, parts: &mut Parts) {
        let Common {
            settings,
            stores,
            shutdown,
            ..
        } = self.common;
        parts.spawn(serve::health(
            settings.health.clone(),
            stores.clone(),
            vec![
                ("follows the API server", self.threads.api.pulse()),
                ("renews the Lease", self.threads.lease.pulse()),
            ],
            self.awaited.clone(),
            shutdown.clone(),
        ));
    }

    fn serve_webhooks(&self, parts: &mut Parts) {
        let Common {
            settings,
            clients,
            stores,
            metrics,
            shutdown,
            ..
        } = self.common;
        let (Some(webhooks), Some(ready)) = (&settings.webhooks, &self.awaited.webhooks) else {
            return;
        };
        let server = webhook::Server {
            settings: webhooks.clone(),
            tls: settings.tls.clone(),
            namespace: settings.namespace.clone(),
            features: settings.features,
            ray: settings.ray.is_some(),
            placement: Placement::new(clients.reviewer.clone(), stores),
            client: clients.reviewer.clone(),
            metrics: Arc::clone(metrics),
            ready: ready.clone(),
        };
        parts.spawn_on(server.run(shutdown.clone()), self.threads.webhooks.handle());
    }

    fn serve_metrics(&self, parts: &mut Parts) {
        let Common {
            settings,
            clients,
            metrics,
            shutdown,
            ..
        } = self.common;
        parts.spawn(serve::metrics(
            settings.metrics.clone(),
            settings.tls.clone(),
            clients.general.clone(),
            Arc::clone(metrics),
            shutdown.clone(),
        ));
    }

    /// Renews the certificate of the hub and of the platform API, and exposes its expiry as a
    /// metric.
    fn keep_certificate(&self, watches: &mut JoinSet<()>) {
        let Common {
            settings,
            metrics,
            shutdown,
            ..
        } = self.common;
        if settings.hub.address.is_none() && settings.platform.is_none() {
            return;
        }
        let (certificate, until) = (Arc::clone(&self.certificate), shutdown.clone());
        watches.spawn(async move { certificate.keep(until).await });
        let (certificate, metrics, until) = (
            Arc::clone(&self.certificate),
            Arc::clone(metrics),
            shutdown.clone(),
        );
        watches.spawn(async move { certificate.report_expiry(&metrics, until).await });
    }

    fn follow_leader(&self, watches: &mut JoinSet<()>) -> LeaderAddress {
        let Common {
            settings,
            clients,
            shutdown,
            ..
        } = self.common;
        let (leader, follow) = leader::follow(
            &clients.general,
            &settings.leader_election,
            self.own,
            settings.hub.advertised,
            shutdown.clone(),
        );
        if settings.hub.address.is_some() || settings.status_page.is_some() {
            watches.spawn(follow);
        }
        leader
    }

    fn serve_platform(&self, role: &Arc<Role>, parts: &mut Parts) {
        let Common {
            settings,
            clients,
            stores,
            metrics,
            board,
            shutdown,
            ..
        } = self.common;
        let client = &clients.general;
        let service = PlatformService::new(
            Arc::clone(board),
            stores.jobsets.clone(),
            client.clone(),
            Arc::new(ClusterAuthorizer::new(client.clone(), metrics)),
            settings.agents.clone(),
            shutdown.clone(),
        )
        .with_hub(settings.hub.address.map(|_| Arc::clone(role)));
        let certificate = Arc::clone(&self.certificate);
        parts.spawn_on(
            platform::run(settings.platform, certificate, service, shutdown.clone()),
            self.threads.platform.handle(),
        );
    }

    fn serve_status_page(&self, leader: LeaderAddress, parts: &mut Parts) {
        let Common {
            settings,
            board,
            shutdown,
            ..
        } = self.common;
        let replica = Replica {
            name: std::env::var("POD_NAME").unwrap_or_else(|_| "this control plane".to_owned()),
            namespace: settings.namespace.clone(),
        };
        let page = StatusPage::new(
            Arc::clone(board),
            replica,
            Arc::new(move || leader.holder()),
            shutdown.clone(),
        );
        parts.spawn_on(page.run(settings.status_page), self.threads.platform.handle());
    }

    /// The gate that lets only node daemons in.
    fn gate(&self) -> Gate {
        let Common {
            settings,
            clients,
            metrics,
            ..
        } = self.common;
        let Hub {
            audience,
            service_account,
            unknown_connections,
            ..
        } = &settings.hub;
        let client = &clients.general;
        let reviewer = ClusterReviewer {
            client: client.clone(),
            audience: audience.clone(),
        };
        let expected = Expected::new(audience, &settings.namespace, service_account);
        Gate {
            authenticator: Authenticator::new(expected, ClusterKeys(client.clone()), reviewer),
            refusals: Arc::new(Refusals::register(metrics)),
            unknown_connections: *unknown_connections,
        }
    }

    fn serve_hub(self, role: &Arc<Role>, gate: Gate, parts: &mut Parts) {
        let Common {
            settings, shutdown, ..
        } = self.common;
        if let Some(address) = settings.hub.address {
            parts.spawn(hub::run(
                address,
                self.certificate,
                Arc::clone(role),
                gate,
                self.awaited.hub.unwrap_or_default(),
                shutdown.clone(),
            ));
        }
    }
}
