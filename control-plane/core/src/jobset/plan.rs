//! What to do for one JobSet: plain, comparable data in the order of execution.

use jiff::SignedDuration;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, ResourceRequirements, Service, Toleration},
};
use lockstep_api::{JobSetStatus, TerminalState};
use serde::Serialize;
use std::collections::BTreeMap;

/// The writes that bring the cluster closer to what a JobSet asks for. An empty plan means that
/// there is nothing to do.
///
/// The fields are executed from top to bottom. A failed step ends the plan, and the status is not
/// written, so that the next reconciliation decides again. Events are published only once the
/// status is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Jobs to delete, with their dependents (foreground).
    pub delete_jobs: Vec<JobRef>,
    /// The headless Service to create.
    pub create_service: Option<Box<Service>>,
    /// Persistent volume claims to create.
    pub create_claims: Vec<PersistentVolumeClaim>,
    /// Jobs to create.
    pub create_jobs: Vec<Job>,
    /// Changes to running Jobs.
    pub change_jobs: Vec<JobChange>,
    /// True if the JobSet's TTL has expired: delete it (foreground).
    pub delete_jobset: bool,
    /// The whole status to write, if it differs from the current one.
    pub status: Option<Box<JobSetStatus>>,
    /// Set if this status finishes the JobSet. The metrics count it once it is written.
    pub finished: Option<TerminalState>,
    /// To publish once the status is written.
    pub events: Vec<Event>,
    /// What is wrong with the JobSet although it can run. Every plan repeats it; it is published
    /// once.
    pub complaints: Vec<Event>,
    /// When to reconcile again even if nothing changes.
    pub requeue_after: Option<SignedDuration>,
}

impl Plan {
    /// True if carrying the plan out would write anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            delete_jobs,
            create_service,
            create_claims,
            create_jobs,
            change_jobs,
            delete_jobset,
            status,
            finished: _,
            events: _,
            complaints: _,
            requeue_after: _,
        } = self;
        delete_jobs.is_empty()
            && create_service.is_none()
            && create_claims.is_empty()
            && create_jobs.is_empty()
            && change_jobs.is_empty()
            && !delete_jobset
            && status.is_none()
    }
}

/// One Job, and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobRef {
    /// Name, in the JobSet's namespace.
    pub name: String,
    /// UID, a precondition of every write.
    pub uid: String,
}

impl JobRef {
    /// Names a Job.
    #[must_use]
    pub fn of(job: &Job) -> Self {
        Self {
            name: job.metadata.name.clone().unwrap_or_default(),
            uid: job.metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// A change to a Job that exists.
#[derive(Clone, Debug, PartialEq)]
pub struct JobChange {
    /// The Job.
    pub job: JobRef,
    /// What to change.
    pub change: Change,
}

/// What can change in a Job that exists.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Stop the Job's pods.
    Suspend,
    /// Start the Job's pods, from an updated template.
    Resume(Box<Resume>),
    /// Run this many pods, and expect as many completions.
    Scale(i32),
}

/// The part of a Job's pod template that may have changed while its JobSet was suspended
/// (KEP-2926, KEP-1150), merged with what the Job has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Resume {
    /// Name of the replicatedJob.
    pub replicated_job: String,
    /// The resourceVersion of the Job that was merged. The write fails if the Job has changed
    /// since.
    pub resource_version: Option<String>,
    /// True if the Job has run before: `status.startTime` must be cleared first, since the template
    /// is immutable until then.
    pub clear_start_time: bool,
    /// Labels of the pod template.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod template.
    pub annotations: BTreeMap<String, String>,
    /// Node selector of the pods.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of the pods.
    pub tolerations: Vec<Toleration>,
    /// Names of the pods' scheduling gates.
    pub scheduling_gates: Vec<String>,
    /// The execution attempt to mark the Job and its pods with (KEP-1282).
    pub execution_attempt: Option<i32>,
    /// Resources that the containers should have (KEP-1150). Empty if they cannot have changed.
    pub resources: Vec<ContainerResources>,
}

/// The resources of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ContainerResources {
    /// Name of the container.
    pub container: String,
    /// True if it is an init container.
    pub is_init: bool,
    /// Requests and limits. The Job keeps its claims.
    pub resources: ResourceRequirements,
}

/// An event about the JobSet; its action is always `Reconciling`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Normal or Warning.
    pub severity: Severity,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For information.
    Normal,
    /// A person should look at it.
    Warning,
}
