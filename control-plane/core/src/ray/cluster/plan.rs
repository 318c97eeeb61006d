//! The observation of one RayCluster, and the plan for it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use lockstep_api::JobSet;
use lockstep_api::ray::{HeadInfo, RayCluster, RayClusterStatus};

use crate::jobset::plan::{Event, JobRef};

/// A RayCluster, the objects around it, and the time.
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
    /// Name and address of the head's pod, as last seen.
    pub head: HeadInfo,
    /// That pod. It is read only while it is not ready.
    pub head_pod: Option<Box<Pod>>,
    /// True if KubeRay's controller runs in this Kubernetes cluster.
    pub kuberay: bool,
    /// Why the API server has just refused to create an object for the cluster, as a sentence.
    pub refused: Option<String>,
    /// The current time.
    pub now: Timestamp,
}

/// The writes that bring the world closer to what a RayCluster asks for, from top to bottom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPlan {
    /// The head's Service to delete, so that a new one can replace it.
    pub delete_service: Option<JobRef>,
    /// The head's Service to create.
    pub create_service: Option<Box<Service>>,
    /// The JobSet to create.
    pub create_jobset: Option<Box<JobSet>>,
    /// The JobSet to write over the version that it was read from.
    pub update_jobset: Option<Box<JobSet>>,
    /// The JobSet to delete (foreground).
    pub delete_jobset: Option<JobRef>,
    /// The whole status to write, if it has changed.
    pub status: Option<Box<RayClusterStatus>>,
    /// Events to publish once everything is written.
    pub events: Vec<Event>,
    /// Why nothing is done; published once for each generation.
    pub notice: Option<Event>,
    /// When to reconcile again even if nothing changes.
    pub requeue_after: Option<SignedDuration>,
}
