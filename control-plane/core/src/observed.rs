//! What the control plane sees of one JobSet when it decides.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{batch::v1::Job, core::v1::Service},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use lockstep_api::JobSet;

/// A JobSet, what stands around it, and the time.
///
/// `jobs` and `services` are everything in the JobSet's namespace that carries its name in the label
/// `jobset.sigs.k8s.io/jobset-name`, whoever owns it: names that others hold are not free.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The JobSet itself.
    pub jobset: Arc<JobSet>,
    /// Jobs that carry the JobSet's name. [`Observed::new`] sorts them by name.
    pub jobs: Vec<Arc<Job>>,
    /// Services that carry the JobSet's name.
    pub services: Vec<Arc<Service>>,
    /// The present.
    pub now: Timestamp,
}

impl Observed {
    /// Puts an observation together, in an order that does not depend on the caches it came from.
    #[must_use]
    pub fn new(
        jobset: Arc<JobSet>,
        mut jobs: Vec<Arc<Job>>,
        services: Vec<Arc<Service>>,
        now: Timestamp,
    ) -> Self {
        jobs.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Self {
            jobset,
            jobs,
            services,
            now,
        }
    }
}

/// The owner that controls an object, if any.
#[must_use]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references
        .iter()
        .flatten()
        .find(|owner| owner.controller == Some(true))
}

/// Whether the object is controlled by the JobSet with this UID.
#[must_use]
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}
