//! Wires everything: watches, servers, and the leader's controllers.
//!
//! Promises: every task is owned here, ends by the same token, and is awaited. A task that fails
//! ends the process with its error.
//!
//! ```text
//! watches ──> Stores ─┬─> jobset::Reconciler ──> API server
//!    │                ├─> restart::Manager ─┬──> API server (status.inPlaceRestart)
//!    │                │                     └──> hub ──> node daemons
//!    └─ keys ─> all   ├─> gang::Controller ────> API server (status.gangs, gates, PodGroups)
//!                     └─> ray::Controller ─────> API server (JobSets of RayClusters)
//! ```

mod clients;
mod controllers;
mod leading;
mod servers;

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::settings::Settings;
use crate::controllers::restart::Board;
use crate::k8s::client;
use crate::k8s::crd::{Crd, JOBSET_DEFINITION};
use crate::k8s::watch::members::JobRef;
use crate::k8s::watch::notify::{self, Notified};
use crate::k8s::watch::{self, Stores, Watchers};
use crate::leader;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;
use clients::{Clients, Threads};
use leading::Leader;
use servers::Servers;

/// Tasks of which each ends the process when it ends.
type Parts = JoinSet<anyhow::Result<()>>;

/// What servers and controllers share.
struct Common {
    settings: Settings,
    /// Host of the API server.
    api_server: Option<String>,
    clients: Clients,
    stores: Stores,
    metrics: Arc<Metrics>,
    board: Arc<Board>,
    shutdown: CancellationToken,
}

/// The keys of changed objects, for each controller.
struct Changes {
    jobsets: Notified<ObjectRef<JobSet>>,
    groups: Notified<ObjectRef<JobSet>>,
    placement: Notified<JobRef>,
    gangs: Notified<ObjectRef<JobSet>>,
    /// `None` if the controller for Ray is switched off.
    ray: Option<Notified<ObjectRef<JobSet>>>,
}

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
    let threads = Threads::start()?;
    let clients = Clients::connect(&config, settings.requests, &threads, &metrics)?;
    let identity = leader::Identity::read()?;
    let shutdown = CancellationToken::new();

    let (watchers, changes) = changes(settings.ray.is_some());
    let mut watches = JoinSet::new();
    let stores = start_watches(&settings, &clients, &threads, &watchers, &mut watches, &shutdown);
    let common = Common {
        settings,
        api_server,
        clients,
        stores,
        metrics,
        board: Board::new(),
        shutdown: shutdown.clone(),
    };
    let mut parts = Parts::new();
    parts.spawn(signals(shutdown.clone()));
    let servers = Servers::new(&common, &threads, &identity);
    let (role, refusals) = servers.start(&mut parts, &mut watches);
    let leader = Leader {
        identity,
        common,
        traces: traces.clone(),
        role,
        refusals,
        changes,
        parts: Handle::current(),
        api: threads.api.handle().clone(),
    };
    parts.spawn_on(leader.lead(), threads.lease.handle());

    let result = until_first_failure(&mut parts, &shutdown).await;
    while watches.join_next().await.is_some() {}
    traces.end().await;
    threads.end().await;
    tracing::info!("control plane ends");
    result
}

/// The queues from the watches to the controllers.
fn changes(with_ray: bool) -> (Watchers, Changes) {
    let (reconciler, jobset_changes) = notify::channel();
    let (groups, group_changes) = notify::channel();
    let (placement, placement_changes) = notify::channel();
    let (gangs, gang_changes) = notify::channel();
    let (ray, ray_changes) = with_ray.then(notify::channel).unzip();
    let watchers = Watchers {
        reconciler,
        groups,
        placement,
        gangs,
        ray,
    };
    let changes = Changes {
        jobsets: jobset_changes,
        groups: group_changes,
        placement: placement_changes,
        gangs: gang_changes,
        ray: ray_changes,
    };
    (watchers, changes)
}

/// Starts the watches, and, if the settings ask for it, installs the CustomResourceDefinition.
fn start_watches(
    settings: &Settings,
    clients: &Clients,
    threads: &Threads,
    watchers: &Watchers,
    watches: &mut JoinSet<()>,
    shutdown: &CancellationToken,
) -> Stores {
    let crd = Crd::new(clients.general.clone(), JOBSET_DEFINITION);
    let stores = {
        let _on = threads.api.enter();
        watch::start(&clients.follower, watchers, crd.settled(), watches, shutdown)
    };
    if settings.manage_crds {
        watches.spawn(crd.ensure(shutdown.clone()));
    } else {
        crd.leave_alone();
    }
    stores
}

/// Waits for all parts to end. The first one that ends, with or without an error, ends the others.
async fn until_first_failure(parts: &mut Parts, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let mut result = Ok(());
    while let Some(ended) = parts.join_next().await {
        shutdown.cancel();
        let ended = ended.unwrap_or_else(|error| Err(error.into()));
        if result.is_ok() {
            result = ended;
        } else if let Err(error) = ended {
            tracing::error!(error = format!("{error:#}"), "failed during the shutdown");
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
