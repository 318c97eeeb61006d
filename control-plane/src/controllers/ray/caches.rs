//! The caches of Ray's resources, and the keys of changed objects.

use futures::future;
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::{Api, Client};
use lockstep_api::ray::{RayCluster, RayCronJob, RayJob, keys};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::belonging::{Belonging, HeadService, Submitter};
use super::packed::Packed;
use super::watch;
use crate::k8s::apply::events::Queue;
use crate::k8s::watch::namespace_budget::NamespaceBudgets;
use crate::k8s::watch::notify::{self, Notified, Notifier};

/// The caches, one for each kind.
#[derive(Clone)]
pub(super) struct Caches {
    pub(super) clusters: Store<Packed<RayCluster>>,
    pub(super) services: Store<Belonging<HeadService>>,
    pub(super) jobs: Store<Packed<RayJob>>,
    pub(super) crons: Store<Packed<RayCronJob>>,
    pub(super) submitters: Store<Belonging<Submitter>>,
}

/// The keys of the objects that each controller has to reconcile again.
pub(super) struct Changes {
    pub(super) clusters: Notified<ObjectRef<Packed<RayCluster>>>,
    pub(super) jobs: Notified<ObjectRef<Packed<RayJob>>>,
    pub(super) crons: Notified<ObjectRef<Packed<RayCronJob>>>,
}

/// The other ends of [`Changes`].
struct Notifiers {
    clusters: Notifier<ObjectRef<Packed<RayCluster>>>,
    jobs: Notifier<ObjectRef<Packed<RayJob>>>,
    crons: Notifier<ObjectRef<Packed<RayCronJob>>>,
}

/// The inputs of the watches.
pub(super) struct Watches<'a> {
    pub(super) client: &'a Client,
    /// The memory limits of the caches, by namespace.
    pub(super) rooms: &'a NamespaceBudgets,
    /// The queue of events about objects that cannot be read.
    pub(super) events: &'a Queue,
    pub(super) shutdown: &'a CancellationToken,
}

impl Watches<'_> {
    /// Starts all watches as tasks of `tasks`. They end with `shutdown`.
    pub(super) fn start(&self, tasks: &mut JoinSet<()>) -> (Caches, Changes) {
        let (clusters, cluster_changes) = notify::channel();
        let (jobs, job_changes) = notify::channel();
        let (crons, cron_changes) = notify::channel();
        let notifiers = Notifiers {
            clusters,
            jobs,
            crons,
        };
        let caches = Caches {
            clusters: self.clusters(&notifiers, tasks),
            services: self.services(&notifiers, tasks),
            jobs: self.jobs(&notifiers, tasks),
            crons: self.crons(&notifiers, tasks),
            submitters: self.submitters(&notifiers, tasks),
        };
        let changes = Changes {
            clusters: cluster_changes,
            jobs: job_changes,
            crons: cron_changes,
        };
        (caches, changes)
    }

    fn clusters(&self, notifiers: &Notifiers, tasks: &mut JoinSet<()>) -> Store<Packed<RayCluster>> {
        let (store, writer) = reflector::store();
        let (clusters, jobs) = (notifiers.clusters.clone(), notifiers.jobs.clone());
        let api = Api::all(self.client.clone());
        tasks.spawn(watch::follow(
            "RayCluster",
            watch::readable::<RayCluster>(api, self.rooms.written.clone(), self.events.clone()),
            writer,
            move |cluster| {
                clusters.add(ObjectRef::from_obj(cluster));
                jobs.extend(watch::originator(cluster));
            },
            self.shutdown.clone(),
        ));
        store
    }

    fn services(&self, notifiers: &Notifiers, tasks: &mut JoinSet<()>) -> Store<Belonging<HeadService>> {
        let (store, writer) = reflector::store();
        let clusters = notifiers.clusters.clone();
        let api = Api::all(self.client.clone());
        tasks.spawn(watch::follow(
            "Service",
            watch::labelled::<HeadService>("Service", api, self.rooms, keys::CLUSTER),
            writer,
            move |service| clusters.extend(service.owner()),
            self.shutdown.clone(),
        ));
        store
    }

    fn jobs(&self, notifiers: &Notifiers, tasks: &mut JoinSet<()>) -> Store<Packed<RayJob>> {
        let (store, writer) = reflector::store();
        let (jobs, crons) = (notifiers.jobs.clone(), notifiers.crons.clone());
        let api = Api::all(self.client.clone());
        tasks.spawn(watch::follow(
            "RayJob",
            watch::readable::<RayJob>(api, self.rooms.written.clone(), self.events.clone()),
            writer,
            move |job| {
                jobs.add(ObjectRef::from_obj(job));
                crons.extend(watch::cron_of(job));
            },
            self.shutdown.clone(),
        ));
        store
    }

    fn crons(&self, notifiers: &Notifiers, tasks: &mut JoinSet<()>) -> Store<Packed<RayCronJob>> {
        let (store, writer) = reflector::store();
        let crons = notifiers.crons.clone();
        let api = Api::all(self.client.clone());
        tasks.spawn(watch::follow(
            "RayCronJob",
            watch::readable::<RayCronJob>(api, self.rooms.written.clone(), self.events.clone()),
            writer,
            move |cron| crons.add(ObjectRef::from_obj(cron)),
            self.shutdown.clone(),
        ));
        store
    }

    fn submitters(&self, notifiers: &Notifiers, tasks: &mut JoinSet<()>) -> Store<Belonging<Submitter>> {
        let (store, writer) = reflector::store();
        let jobs = notifiers.jobs.clone();
        let api = Api::all(self.client.clone());
        tasks.spawn(watch::follow(
            "Job",
            watch::labelled::<Submitter>("Job", api, self.rooms, keys::ORIGINATED_FROM_NAME),
            writer,
            move |submitter| jobs.extend(submitter.owner()),
            self.shutdown.clone(),
        ));
        store
    }
}

impl Caches {
    /// Resolves once all objects are listed that decisions on RayClusters and RayJobs depend on.
    pub(super) async fn known(&self) {
        // A watch that has ended lists nothing more, and this process is about to end.
        let _ = future::join3(
            self.clusters.wait_until_ready(),
            self.submitters.wait_until_ready(),
            self.services.wait_until_ready(),
        )
        .await;
    }
}
