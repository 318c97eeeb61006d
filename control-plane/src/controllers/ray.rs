//! The front-end for Ray: RayCronJobs start RayJobs, RayJobs become RayClusters, and RayClusters
//! become JobSets, which the rest of the control plane runs.
//!
//! Decisions are made in [`lockstep_core::ray`].
//!
//! Promises: decisions about one object are made one at a time, on the state that the watches show.
//! Every write names the version or the UID that it is based on. Failures are retried with growing
//! pauses. Objects of other controllers are left unchanged.
//!
//! ```text
//!  watches (RayClusters, head Services) ─┐
//!  Stores (JobSets, their Jobs, pods) ───┴─> plan ──> Service, JobSet, status
//!
//!  watches (RayJobs, RayClusters, submitters) ─┐
//!  dashboards ─────────────────────────────────┴─> plan ──> RayCluster, submitter, status
//!
//!  watches (RayCronJobs, RayJobs) ─┐
//!  the clock ──────────────────────┴─> plan ──> RayJobs, status
//! ```

mod apply;
mod belonging;
mod caches;
mod cluster;
mod cron;
mod dashboard;
mod head_address;
mod job;
pub(crate) mod kuberay;
mod packed;
mod question_pace;
mod retry_state;
mod turns;
mod watch;

use std::sync::Arc;

use futures::future::join_all;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::settings::RequestRate;
use crate::k8s::apply::events::{self, Queue};
use crate::k8s::client::{Rates, limited};
use crate::k8s::crd::{Crd, RAY_DEFINITIONS};
use crate::k8s::watch::Stores;
use crate::k8s::watch::notify::Notified;
use caches::{Caches, Watches};
use dashboard::Dashboards;
use head_address::Heads;
use kuberay::KubeRay;
use packed::LargeTurns;
use question_pace::QuestionPace;
use retry_state::RetryState;
use turns::Turns;

/// `reportingController` of the events.
const CONTROLLER: &str = "lockstep-ray";
/// The request rate of all of Ray's controllers together. Without a limit, three hundred jobs that
/// begin in the same minute would keep the API server so busy that restarts wait. The Job
/// controller has a limit, too: 20 a second.
const REQUESTS: RequestRate = RequestRate {
    per_second: 40.0,
    burst: 100,
};
/// Objects of each kind that are reconciled at the same time.
const CONCURRENCY: u16 = 16;
/// RayJobs that are reconciled at the same time. Most of them wait for dashboards, and a dashboard
/// that does not answer must not delay the others.
const CONCURRENT_JOBS: u16 = 128;
/// How many of these may wait for dashboards.
const CONCURRENT_QUESTIONS: usize = 96;

/// Reconciles Ray's resources.
pub(crate) struct Controller {
    pub(crate) client: Client,
    pub(crate) stores: Stores,
    pub(crate) manage_crds: bool,
    /// See [`crate::config::settings::Ray::dashboard_proxy`].
    pub(crate) dashboard_proxy: Option<String>,
    /// The host of the API server. No dashboard may have its address.
    pub(crate) api_server: Option<String>,
}

impl Controller {
    /// Reconciles until `shutdown` is cancelled, then finishes work in progress. `jobsets` names
    /// JobSets that have changed.
    pub(crate) async fn run(self, jobsets: Notified<ObjectRef<JobSet>>, shutdown: CancellationToken) {
        if self.manage_crds {
            self.ensure_crds(&shutdown).await;
        }
        let client = limited(self.client.clone(), Rates::together(REQUESTS, shutdown.clone()));
        let (events, publisher) = events::queue_as(client.clone(), CONTROLLER);
        let watches = Watches {
            client: &client,
            rooms: self.stores.budgets(),
            events: &events,
            shutdown: &shutdown,
        };
        let mut tasks = JoinSet::new();
        let (caches, changes) = watches.start(&mut tasks);
        let reconcilers = self.reconcilers(&client, &caches, events);
        // No decision is made before all objects are listed.
        if shutdown.run_until_cancelled(caches.known()).await.is_none() {
            tracing::debug!("shutting down before Ray's resources are listed");
        }
        tokio::join!(
            reconcilers
                .clusters
                .run(changes.clusters, jobsets, shutdown.clone()),
            reconcilers.jobs.run(changes.jobs, shutdown.clone()),
            reconcilers.crons.run(changes.crons, shutdown),
            publisher.run(),
        );
        while tasks.join_next().await.is_some() {}
    }

    async fn ensure_crds(&self, shutdown: &CancellationToken) {
        let ensured = RAY_DEFINITIONS.map(|definition| {
            let crd = Crd::new(self.client.clone(), definition);
            crd.ensure(shutdown.clone())
        });
        join_all(ensured).await;
    }

    fn reconcilers(self, client: &Client, caches: &Caches, events: Queue) -> Reconcilers {
        let kuberay = Arc::new(KubeRay::new(self.client));
        let large = LargeTurns::default();
        Reconcilers {
            crons: cron::Reconciler {
                client: client.clone(),
                crons: caches.crons.clone(),
                jobs: caches.jobs.clone(),
                kuberay: Arc::clone(&kuberay),
                large: large.clone(),
                at_work: Turns::new(CONCURRENCY.into()),
                retry_state: RetryState::new(events.clone()),
            },
            jobs: job::Reconciler {
                client: client.clone(),
                stores: self.stores.clone(),
                jobs: caches.jobs.clone(),
                clusters: caches.clusters.clone(),
                submitters: caches.submitters.clone(),
                dashboards: Dashboards {
                    proxy: self.dashboard_proxy,
                },
                questions: Turns::new(CONCURRENT_QUESTIONS),
                at_work: Turns::new(CONCURRENT_JOBS.into()),
                large: large.clone(),
                heads: Heads::new(client.clone(), self.api_server.as_deref()),
                pace: QuestionPace::default(),
                kuberay: Arc::clone(&kuberay),
                since: jiff::Timestamp::now(),
                retry_state: RetryState::new(events.clone()),
            },
            clusters: cluster::Reconciler {
                client: client.clone(),
                stores: self.stores,
                clusters: caches.clusters.clone(),
                services: caches.services.clone(),
                kuberay,
                large,
                at_work: Turns::new(CONCURRENCY.into()),
                retry_state: RetryState::new(events),
            },
        }
    }
}

/// The reconcilers, one for each kind.
struct Reconcilers {
    clusters: cluster::Reconciler,
    jobs: job::Reconciler,
    crons: cron::Reconciler,
}
