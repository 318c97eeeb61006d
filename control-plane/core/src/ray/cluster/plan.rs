//! What the control plane sees of one RayCluster, and what it does about it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster, RayClusterStatus};

use crate::jobset::plan::{Event, JobRef};

/// A RayCluster, what stands around it, and the time.
#[derive(Clone, Debug)]
pub struct ObservedCluster {
    /// The cluster itself.
    pub cluster: Arc<RayCluster>,
    /// The JobSet of its name, whatever its owner.
    pub jobset: Option<Arc<JobSet>>,
    /// Jobs of that JobSet.
    pub jobs: Vec<Arc<Job>>,
    /// The Service of its head's name, whatever its owner.
    pub service: Option<Arc<Service>>,
    /// Name and address of the head's pod as it was seen last.
    pub head: HeadInfo,
    /// That pod, where it was asked for: while it is not ready.
    pub head_pod: Option<Box<Pod>>,
    /// True if KubeRay's controller runs in this Kubernetes cluster.
    pub kuberay: bool,
    /// What the API server has just said of something that it does not let be created for the
    /// cluster, as a sentence.
    pub refused: Option<String>,
    /// The present.
    pub now: Timestamp,
}

/// The writes that bring the world closer to what a RayCluster asks for, from top to bottom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPlan {
    /// The head's Service to delete: another one takes its place.
    pub delete_service: Option<JobRef>,
    /// The head's Service to create.
    pub create_service: Option<Box<Service>>,
    /// The JobSet to create.
    pub create_jobset: Option<Box<JobSet>>,
    /// The JobSet to put in the place of the version that it was made from.
    pub update_jobset: Option<Box<JobSet>>,
    /// The JobSet to delete (foreground).
    pub delete_jobset: Option<JobRef>,
    /// The whole status to write, if it differs from the present one.
    pub status: Option<Box<RayClusterStatus>>,
    /// To publish once all is written.
    pub events: Vec<Event>,
    /// Why nothing is done: to be told once for each generation.
    pub notice: Option<Event>,
    /// When to look again although nothing may have changed.
    pub requeue_after: Option<SignedDuration>,
}
