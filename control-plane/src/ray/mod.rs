//! The front-end for Ray: RayClusters become JobSets, which the rest of the control plane runs.
//!
//! What is decided stands in [`lockstep_core::ray`].
//!
//! Promises: decisions about one object are made one at a time, on what the watches show; every write names the version or the object that
//! was decided about; what failed is tried again, ever more slowly; nothing is done about objects of other controllers.
//!
//! ```text
//!  watches (RayClusters, head Services) ─┐
//!  Stores (JobSets, their Jobs, pods) ───┴─> plan ──> Service, JobSet, status
//! ```

mod apply;
mod cluster;
mod failures;
mod kuberay;
mod watch;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Service;
use kube::runtime::reflector::{self, ObjectRef};
use kube::{Api, Client};
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, keys};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::apply::events;
use crate::crd::{Crd, RAY_DEFINITIONS};
use crate::watch::Stores;
use crate::watch::notify::{self, Notified};

/// `reportingController` of the events.
const CONTROLLER: &str = "lockstep-ray";

/// Brings Ray's resources closer to what they ask for.
pub(crate) struct Controller {
    pub(crate) client: Client,
    pub(crate) stores: Stores,
    pub(crate) manage_crds: bool,
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
        let (changed, changes) = notify::channel();
        let (clusters, writer) = reflector::store();
        let mut watches = JoinSet::new();
        let recorder = events::recorder_as(self.client.clone(), CONTROLLER);
        let notifier = changed.clone();
        watches.spawn(watch::follow(
            "RayCluster",
            watch::readable::<RayCluster>(Api::all(self.client.clone()), recorder),
            writer,
            move |cluster| notifier.add(ObjectRef::from_obj(cluster)),
            shutdown.clone(),
        ));
        let (services, writer) = reflector::store();
        watches.spawn(watch::follow(
            "Service",
            watch::labelled::<Service>(Api::all(self.client.clone()), keys::CLUSTER),
            writer,
            move |service| changed.extend(watch::cluster_of(service)),
            shutdown.clone(),
        ));
        let (news, publisher) = events::queue_as(self.client.clone(), CONTROLLER);
        let reconciler = cluster::Reconciler::new(self.client, self.stores, clusters, services, news);
        tokio::join!(reconciler.run(changes, jobsets, shutdown), publisher.run());
        while watches.join_next().await.is_some() {}
    }
}
