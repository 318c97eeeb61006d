//! The front-end for Ray: RayCronJobs start RayJobs, RayJobs become RayClusters, and RayClusters JobSets, which the rest of the control plane runs.
//!
//! What is decided stands in [`lockstep_core::ray`].
//!
//! Promises: decisions about one object are made one at a time, on what the watches show; every write names the version or the object that
//! was decided about; what failed is tried again, ever more slowly; nothing is done about objects of other controllers.
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
mod cluster;
mod cron;
mod dashboard;
mod head;
mod job;
pub(crate) mod kuberay;
mod packed;
mod retry_state;
mod turns;
mod watch;

use std::sync::Arc;

use futures::future::join_all;
use kube::runtime::reflector::{self, ObjectRef};
use kube::{Api, Client};
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayCronJob, RayJob, keys};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::settings::RequestRate;
use crate::k8s::apply::events;
use crate::k8s::client::{Rates, limited};
use crate::k8s::crd::{Crd, RAY_DEFINITIONS};
use crate::k8s::watch::Stores;
use crate::k8s::watch::notify::{self, Notified};
use belonging::{HeadService, Submitter};
use dashboard::Dashboards;
use head::Heads;
use kuberay::KubeRay;
use packed::LargeTurns;
use retry_state::Ledger;
use turns::Turns;

/// `reportingController` of the events.
const CONTROLLER: &str = "lockstep-ray";
/// Requests of all of Ray's controllers. The Job controller keeps to 20 a second, too: three hundred jobs that begin at the same minute would else keep an API
/// server so busy that restarts wait for it.
const REQUESTS: RequestRate = RequestRate {
    per_second: 40.0,
    burst: 100,
};
/// Objects of each kind that are worked on at the same time.
const CONCURRENCY: u16 = 16;
/// RayJobs that are worked on at the same time: most of that is waiting for dashboards, and those that do not answer are not to hold up the rest.
const CONCURRENT_JOBS: u16 = 128;
/// Of these, those that ask dashboards.
const CONCURRENT_QUESTIONS: usize = 96;

/// Brings Ray's resources closer to what they ask for.
pub(crate) struct Controller {
    pub(crate) client: Client,
    pub(crate) stores: Stores,
    pub(crate) manage_crds: bool,
    /// See [`crate::config::settings::Ray::dashboard_proxy`].
    pub(crate) dashboard_proxy: Option<String>,
    /// Host of the API server, at which no dashboard is.
    pub(crate) api_server: Option<String>,
}

impl Controller {
    /// Works until `shutdown` is cancelled, then finishes what is under way. `jobsets` are those that have changed.
    pub(crate) async fn run(self, jobsets: Notified<ObjectRef<JobSet>>, shutdown: CancellationToken) {
        if self.manage_crds {
            let ensured = RAY_DEFINITIONS.map(|definition| {
                let crd = Crd::new(self.client.clone(), definition);
                crd.ensure(shutdown.clone())
            });
            join_all(ensured).await;
        }
        let client = &limited(self.client.clone(), Rates::together(REQUESTS, shutdown.clone()));
        let budgets = self.stores.budgets();
        let mut watches = JoinSet::new();
        let (news, publisher) = events::queue_as(client.clone(), CONTROLLER);
        let (changed, changes) = notify::channel();
        let (job_changed, job_changes) = notify::channel();
        let (cron_changed, cron_changes) = notify::channel();

        let (clusters, writer) = reflector::store();
        let (of_clusters, of_jobs) = (changed.clone(), job_changed.clone());
        watches.spawn(watch::follow(
            "RayCluster",
            watch::readable::<RayCluster>(Api::all(client.clone()), budgets.written.clone(), news.clone()),
            writer,
            move |cluster| {
                of_clusters.add(ObjectRef::from_obj(cluster));
                of_jobs.extend(watch::originator(cluster));
            },
            shutdown.clone(),
        ));
        let (services, writer) = reflector::store();
        watches.spawn(watch::follow(
            "Service",
            watch::labelled::<HeadService>("Service", Api::all(client.clone()), budgets, keys::CLUSTER),
            writer,
            move |service| changed.extend(service.owner()),
            shutdown.clone(),
        ));
        let (jobs, writer) = reflector::store();
        let (notifier, of_crons) = (job_changed.clone(), cron_changed.clone());
        watches.spawn(watch::follow(
            "RayJob",
            watch::readable::<RayJob>(Api::all(client.clone()), budgets.written.clone(), news.clone()),
            writer,
            move |job| {
                notifier.add(ObjectRef::from_obj(job));
                of_crons.extend(watch::cron_of(job));
            },
            shutdown.clone(),
        ));
        let (crons, writer) = reflector::store();
        watches.spawn(watch::follow(
            "RayCronJob",
            watch::readable::<RayCronJob>(Api::all(client.clone()), budgets.written.clone(), news.clone()),
            writer,
            move |cron| cron_changed.add(ObjectRef::from_obj(cron)),
            shutdown.clone(),
        ));
        let (submitters, writer) = reflector::store();
        watches.spawn(watch::follow(
            "Job",
            watch::labelled::<Submitter>(
                "Job",
                Api::all(client.clone()),
                budgets,
                keys::ORIGINATED_FROM_NAME,
            ),
            writer,
            move |submitter| job_changed.extend(submitter.owner()),
            shutdown.clone(),
        ));

        let (known_clusters, known_submitters, known_services) =
            (clusters.clone(), submitters.clone(), services.clone());
        let kuberay = Arc::new(KubeRay::new(self.client.clone()));
        let large = LargeTurns::default();
        let of_crons = cron::Reconciler {
            client: client.clone(),
            crons,
            jobs: jobs.clone(),
            kuberay: Arc::clone(&kuberay),
            large: large.clone(),
            at_work: Turns::new(CONCURRENCY.into()),
            retry_state: Ledger::new(news.clone()),
        };
        let of_jobs = job::Reconciler {
            client: client.clone(),
            stores: self.stores.clone(),
            jobs,
            clusters: clusters.clone(),
            submitters,
            dashboards: Dashboards {
                proxy: self.dashboard_proxy,
            },
            questions: Turns::new(CONCURRENT_QUESTIONS),
            at_work: Turns::new(CONCURRENT_JOBS.into()),
            large: large.clone(),
            heads: Heads::new(client.clone(), self.api_server.as_deref()),
            kuberay: Arc::clone(&kuberay),
            since: jiff::Timestamp::now(),
            retry_state: Ledger::new(news.clone()),
        };
        let of_clusters = cluster::Reconciler {
            client: client.clone(),
            stores: self.stores,
            clusters,
            services,
            kuberay,
            large,
            at_work: Turns::new(CONCURRENCY.into()),
            retry_state: Ledger::new(news),
        };
        // Nothing is decided on what is not known yet.
        let known = async {
            tokio::join!(
                known_clusters.wait_until_ready(),
                known_submitters.wait_until_ready(),
                known_services.wait_until_ready(),
            )
        };
        if shutdown.run_until_cancelled(known).await.is_none() {
            tracing::debug!("ends before Ray's resources are known");
        }
        tokio::join!(
            of_clusters.run(changes, jobsets, shutdown.clone()),
            of_jobs.run(job_changes, shutdown.clone()),
            of_crons.run(cron_changes, shutdown),
            publisher.run(),
        );
        while watches.join_next().await.is_some() {}
    }
}
