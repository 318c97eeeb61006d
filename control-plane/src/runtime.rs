//! Where everything is wired: watches, servers, and what a leader does.
//!
//! Promises: every task is owned here, told to end by the same token, and awaited; a task that fails ends the process with its error.
//!
//! ```text
//! watches ──> Stores ─┬─> Reconciler ─────────> API server
//!    │                ├─> group::Manager ─┬──> API server (status.inPlaceRestart)
//!    │                │                   └──> hub ──> node daemons
//!    └─ keys ─> all   ├─> gang::Controller ──> API server (status.gangs, gates, PodGroups)
//!                     └─> ray::Controller ───> API server (JobSets of RayClusters)
//! ```
//!
//! Watches, Reconciler, and the Manager without its groups are tasks of one thread ([`ApiThread`]), as are their connections to the API server. The Lease has
//! another one, whatever keeps the rest busy; so have the webhooks, which read what tenants send, and the platform API and the status page, which give way to all others. All else has connections of its own: what a restart writes never waits for what is reconciled.

mod leading;

use std::sync::Arc;

use kube::Client;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::hub::{self, Authenticator, ClusterKeys, ClusterReviewer, Expected, Gate, Refusals, Role};
use crate::k8s::api_thread::ApiThread;
use crate::k8s::client::{self, Rates};
use crate::k8s::crd::{Crd, JOBSET_DEFINITION};

use crate::api::platform::{self, ClusterAuthorizer, PlatformService, Replica, StatusPage};
use crate::api::webhook;
use crate::config::settings::{Hub, Settings};
use crate::controllers::placement::Placement;
use crate::controllers::restart::Board;
use crate::k8s::watch::notify;
use crate::k8s::watch::{self, Watchers};
use crate::leader::lease;
use crate::net::serve;
use crate::net::tls::HubIdentity;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;
use leading::Leader;

/// Runs the control plane until SIGTERM or SIGINT, or until a part of it fails.
///
/// # Errors
/// What failed.
pub async fn run(settings: Settings) -> anyhow::Result<()> {
    let config = client::config(settings.kubeconfig.as_deref()).await?;
    let api_server = config.cluster_url.host().map(str::to_owned);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), api_server = %config.cluster_url, "control plane starts");
    let metrics = Arc::new(Metrics::default());
    let traces = Traces::to(settings.traces.as_ref())?;
    let rates = settings.requests.map(Rates::new);
    let client = client::connect(config.clone(), rates.clone(), &metrics)?;
    let api = ApiThread::start("api")?;
    let follower = {
        let _on = api.enter();
        client::connect(config.clone(), rates.clone(), &metrics)?
    };
    let lease_thread = ApiThread::start("lease")?;
    let lease = {
        let _on = lease_thread.enter();
        client::connect(config.clone(), rates.clone(), &metrics)?
    };
    let reviews = ApiThread::start("webhooks")?;
    // What a restart writes waits for no connection that is read on that thread.
    let reviewer = {
        let _on = reviews.enter();
        client::connect(config, rates, &metrics)?
    };
    let shutdown = CancellationToken::new();

    let (reconciler, reconciler_changes) = notify::channel();
    let (groups, group_changes) = notify::channel();
    let (placement, placement_changes) = notify::channel();
    let (gangs, gang_changes) = notify::channel();
    let (ray, ray_changes) = settings.ray.as_ref().map(|_| notify::channel()).unzip();
    let watchers = Watchers {
        reconciler,
        groups,
        placement,
        gangs,
        ray,
    };
    let mut watches = JoinSet::new();
    let crd = Crd::new(client.clone(), JOBSET_DEFINITION);
    let stores = {
        let _on = api.enter();
        watch::start(&follower, &watchers, crd.settled(), &mut watches, &shutdown)
    };
    if settings.manage_crds {
        watches.spawn(crd.ensure(shutdown.clone()));
    } else {
        crd.leave_alone();
    }

    let mut parts: JoinSet<anyhow::Result<()>> = JoinSet::new();
    parts.spawn(signals(shutdown.clone()));
    let servers = serve::Awaited {
        webhooks: settings.webhooks.as_ref().map(|_| serve::Ready::default()),
        // Where nobody is told to connect here, as outside of a cluster, reconciling is all that is asked of this replica.
        hub: settings.hub.advertised.map(|_| serve::Ready::default()),
    };
    parts.spawn(serve::health(
        settings.health.clone(),
        stores.clone(),
        vec![
            ("follows the API server", api.pulse()),
            ("renews the Lease", lease_thread.pulse()),
        ],
        servers.clone(),
        shutdown.clone(),
    ));
    if let (Some(webhooks), Some(ready)) = (&settings.webhooks, servers.webhooks) {
        let webhooks = webhook::Server {
            settings: webhooks.clone(),
            tls: settings.tls.clone(),
            namespace: settings.namespace.clone(),
            features: settings.features,
            ray: settings.ray.is_some(),
            placement: Placement::new(reviewer.clone(), &stores),
            client: reviewer,
            metrics: Arc::clone(&metrics),
            ready,
        };
        parts.spawn_on(webhooks.run(shutdown.clone()), reviews.handle());
    }
    parts.spawn(serve::metrics(
        settings.metrics.clone(),
        settings.tls.clone(),
        client.clone(),
        Arc::clone(&metrics),
        shutdown.clone(),
    ));
    let identity = Arc::new(HubIdentity::new(
        client.clone(),
        settings.namespace.clone(),
        settings.hub.tls_dir.clone(),
    ));
    if settings.hub.address.is_some() || settings.platform.is_some() {
        let (kept, until) = (Arc::clone(&identity), shutdown.clone());
        watches.spawn(async move { kept.keep(until).await });
        let (told, metrics, until) = (Arc::clone(&identity), Arc::clone(&metrics), shutdown.clone());
        watches.spawn(async move { told.tell(&metrics, until).await });
    }
    let own = lease::Identity::read()?;
    let (leader_address, follow) = lease::follow(
        &client,
        &settings.leader_election,
        &own,
        settings.hub.advertised,
        shutdown.clone(),
    );
    let role = Role::new(leader_address.clone());
    let board = Board::new();
    let service = PlatformService::new(
        Arc::clone(&board),
        stores.jobsets.clone(),
        client.clone(),
        Arc::new(ClusterAuthorizer::new(client.clone(), &metrics)),
        settings.agents.clone(),
        shutdown.clone(),
    )
    .with_hub(settings.hub.address.map(|_| Arc::clone(&role)));
    let doors = ApiThread::start_behind("platform")?;
    parts.spawn_on(
        platform::run(
            settings.platform,
            Arc::clone(&identity),
            service,
            shutdown.clone(),
        ),
        doors.handle(),
    );
    if settings.hub.address.is_some() || settings.status_page.is_some() {
        watches.spawn(follow);
    }
    let leads = leader_address;
    let page = StatusPage::new(
        Arc::clone(&board),
        replica(&settings),
        Arc::new(move || leads.holder()),
        shutdown.clone(),
    );
    parts.spawn_on(page.run(settings.status_page), doors.handle());
    let gate = gate(&settings, &client, &metrics);
    let refusals = Arc::clone(&gate.refusals);
    if let Some(address) = settings.hub.address {
        parts.spawn(hub::run(
            address,
            identity,
            Arc::clone(&role),
            gate,
            servers.hub.unwrap_or_default(),
            shutdown.clone(),
        ));
    }
    let leader = Leader {
        own,
        settings,
        client,
        lease,
        parts: Handle::current(),
        api_server,
        stores,
        metrics,
        traces: traces.clone(),
        role,
        refusals,
        board,
        reconciler_changes,
        group_changes,
        placement_changes,
        gang_changes,
        ray_changes,
        follower,
        api: api.handle().clone(),
        shutdown: shutdown.clone(),
    };
    parts.spawn_on(leader.lead(), lease_thread.handle());

    let result = until_first_failure(&mut parts, &shutdown).await;
    while watches.join_next().await.is_some() {}
    traces.end().await;
    doors.end().await;
    reviews.end().await;
    lease_thread.end().await;
    api.end().await;
    tracing::info!("control plane ends");
    result
}

/// This replica, for people.
fn replica(settings: &Settings) -> Replica {
    Replica {
        name: std::env::var("POD_NAME").unwrap_or_else(|_| "this control plane".to_owned()),
        namespace: settings.namespace.clone(),
    }
}

/// How node daemons are told from others.
fn gate(settings: &Settings, client: &Client, metrics: &Metrics) -> Gate {
    let Hub {
        audience,
        service_account,
        strangers,
        ..
    } = &settings.hub;
    let reviewer = ClusterReviewer {
        client: client.clone(),
        audience: audience.clone(),
    };
    let expected = Expected::new(audience, &settings.namespace, service_account);
    Gate {
        authenticator: Authenticator::new(expected, ClusterKeys(client.clone()), reviewer),
        refusals: Arc::new(Refusals::register(metrics)),
        strangers: *strangers,
    }
}

/// Waits for all parts to end. The first that ends, in whatever way, takes the others with it.
async fn until_first_failure(
    parts: &mut JoinSet<anyhow::Result<()>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let mut result = Ok(());
    while let Some(ended) = parts.join_next().await {
        shutdown.cancel();
        let ended = ended.unwrap_or_else(|error| Err(error.into()));
        if result.is_ok() {
            result = ended;
        } else if let Err(error) = ended {
            tracing::error!(error = format!("{error:#}"), "failed while ending");
        }
    }
    result
}

async fn signals(shutdown: CancellationToken) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM"),
        _ = interrupt.recv() => tracing::info!("SIGINT"),
        () = shutdown.cancelled() => {}
    }
    Ok(())
}
