//! The marks that the controller puts on the pods of a gang: in the template of their Job or, if
//! the pods of a Job differ, in the pod webhook.
//!
//! | | pods below the minimum | optional workers |
//! |---|---|---|
//! | Gates | gate | gate |
//! | PodGroup | `schedulingGroup` | gate |

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodSchedulingGate, PodSchedulingGroup, PodSpec, PodTemplateSpec};
use lockstep_api::{Gang, GangBackend, JobSet, ReplicatedJob, annotations, labels, naming};

use super::members::{dependent, is_indexed, priority_class, topology};
use super::{Backend, gang_name};
use crate::jobset::children::{Children, job_index};
use crate::jobset::status::is_suspended;

/// The marks of one Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    gang: String,
    /// How many pods of the Job are below the minimum.
    minimum: i32,
    parallelism: i32,
    pod_group: Option<String>,
}

/// The backend that starts the gangs of a JobSet. `pod_groups` is true if the cluster serves
/// PodGroups.
///
/// A PodGroup needs three things. All its pods have the same priority. If only some pods of a Job
/// are below the minimum, the completion index must tell which. And no Job may be placed
/// exclusively: its followers are created only after the leader is scheduled, while kube-scheduler
/// would wait for all of them. In other cases gates start the gang.
#[must_use]
pub fn backend(jobset: &JobSet, gang: &Gang, pod_groups: bool) -> Backend {
    if !pod_groups || gang.backend() == GangBackend::Gates {
        return Backend::Gates;
    }
    if mixed_priorities(jobset).is_some() {
        return Backend::Gates;
    }
    let minimums = gang.minimums(&jobset.spec.replicated_jobs);
    let can = jobset.spec.replicated_jobs.iter().all(|job| {
        let minimum = minimums.get(job.name.as_str()).copied().unwrap_or(0);
        topology(jobset, job).is_none() && (minimum == job.pods() || is_indexed(job))
    });
    if can { Backend::PodGroup } else { Backend::Gates }
}

/// Two replicatedJobs of one gang whose pods have different PriorityClasses.
fn mixed_priorities(jobset: &JobSet) -> Option<(&str, &str)> {
    if dependent(jobset) {
        // Each is a gang of its own.
        return None;
    }
    let mut jobs = jobset.spec.replicated_jobs.iter();
    let first = jobs.next()?;
    let other = jobs.find(|job| priority_class(job) != priority_class(first))?;
    Some((&first.name, &other.name))
}

/// Why gates start the gangs of a JobSet that asks for PodGroups; `None`: it does not ask, or gets
/// them.
pub(crate) fn overruled(jobset: &JobSet, pod_groups: bool) -> Option<String> {
    let gang = jobset.spec.gang.as_ref()?;
    if gang.backend() != GangBackend::PodGroup || backend(jobset, gang, pod_groups) == Backend::PodGroup {
        return None;
    }
    let mut jobs = jobset.spec.replicated_jobs.iter();
    let why = if !pod_groups {
        "the API server does not serve PodGroups, or the control plane has no permission for it or no webhooks"
            .to_owned()
    } else if let Some(job) = jobs.find(|job| topology(jobset, job).is_some()) {
        format!(
            "Jobs of replicatedJob {} are placed exclusively by affinity",
            job.name
        )
    } else if let Some((one, other)) = mixed_priorities(jobset) {
        format!("replicatedJobs {one} and {other} have different PriorityClasses")
    } else {
        "pods have no completion index to tell which of them are optional workers".to_owned()
    };
    Some(format!(
        "spec.gang.backend is PodGroup, but gates start the gang: {why}"
    ))
}

impl Marks {
    /// The marks that a Job should have; `None`: its JobSet has no gang.
    pub(crate) fn of(
        jobset: &JobSet,
        replicated_job: &ReplicatedJob,
        index: i32,
        pod_groups: bool,
    ) -> Option<Self> {
        let spec = jobset.spec.gang.as_ref()?;
        let minimums = spec.minimums(&jobset.spec.replicated_jobs);
        let gang = gang_name(jobset, &replicated_job.name);
        let minimum = minimums.get(replicated_job.name.as_str()).copied().unwrap_or(0);
        let parallelism = replicated_job.parallelism();
        let before = index.saturating_mul(parallelism);
        let of_gang = jobset.spec.replicated_jobs.iter();
        let of_gang = of_gang.filter(|job| gang_name(jobset, &job.name) == gang);
        let total: i32 = of_gang
            .filter_map(|job| minimums.get(job.name.as_str()))
            .fold(0, |sum, minimum| sum.saturating_add(*minimum));
        let pod_group = (backend(jobset, spec, pod_groups) == Backend::PodGroup).then(|| {
            naming::pod_group_name(
                jobset.name(),
                gang,
                jobset.restart_attempt(),
                total,
                jobset.uid_str(),
            )
        });
        Some(Self {
            gang: gang.to_owned(),
            minimum: minimum.saturating_sub(before).clamp(0, parallelism),
            parallelism,
            pod_group,
        })
    }

    /// Marks the pods of a template.
    pub(crate) fn put(marks: Option<&Self>, template: &mut PodTemplateSpec) {
        let meta = template.metadata.get_or_insert_default();
        let target = meta.annotations.get_or_insert_default();
        // The controller sets these, never a template.
        for key in KEYS {
            target.remove(key);
        }
        let Some(marks) = marks else { return };
        // A pod can be in only one group, which must be the gang's.
        template.spec.get_or_insert_default().scheduling_group = None;
        let target = template.metadata.get_or_insert_default();
        let target = target.annotations.get_or_insert_default();
        target.extend(
            marks
                .annotations()
                .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        target.insert(annotations::GANG_MINIMUM.to_owned(), marks.minimum.to_string());
        let spec = template.spec.get_or_insert_default();
        match &marks.pod_group {
            None => gate(spec),
            Some(name) if marks.minimum == marks.parallelism => group(spec, name),
            // If the pods differ, the webhook removes the gate of those below the minimum, since it
            // knows their index. Without the webhook no pod starts by itself.
            Some(_) => gate(spec),
        }
    }

    fn annotations(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let gang = (annotations::GANG, self.gang.as_str());
        let group = self.pod_group.as_deref();
        [gang]
            .into_iter()
            .chain(group.map(|name| (annotations::GANG_POD_GROUP, name)))
    }

    /// True if a Job was created with other marks than it would get now. While it is suspended it
    /// has no pods, and can be recreated.
    pub(crate) fn differ(
        jobset: &JobSet,
        replicated_job: &ReplicatedJob,
        job: &Job,
        pod_groups: bool,
    ) -> bool {
        let index = job_index(job)
            .and_then(|index| i32::try_from(index).ok())
            .unwrap_or(0);
        let mut made = PodTemplateSpec::default();
        Self::put(
            Self::of(jobset, replicated_job, index, pod_groups).as_ref(),
            &mut made,
        );
        let has = job.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
        let has = has.and_then(|meta| meta.annotations.as_ref());
        let wanted = made.metadata.as_ref().and_then(|meta| meta.annotations.as_ref());
        KEYS.iter().any(|key| {
            let value = |annotations: Option<&std::collections::BTreeMap<String, String>>| {
                annotations.and_then(|annotations| annotations.get(*key)).cloned()
            };
            value(has) != value(wanted)
        })
    }
}

/// The annotations that belong to the controller.
const KEYS: [&str; 3] = [
    annotations::GANG,
    annotations::GANG_MINIMUM,
    annotations::GANG_POD_GROUP,
];

/// A pod that is being created, with the marks that the template of its Job could not give it;
/// `None`: no change.
///
/// If the Job controller creates its own groups (`WorkloadWithJob`, Kubernetes KEP-5547), the pod
/// is already in one, which would wait for the Job's optional workers too. The pod is taken out of
/// it.
#[must_use]
pub fn mutate(pod: &Pod) -> Option<Pod> {
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key);
    annotation(annotations::GANG)?;
    let name = annotation(annotations::GANG_POD_GROUP);
    let minimum = annotation(annotations::GANG_MINIMUM).and_then(|minimum| minimum.parse::<u32>().ok());
    if name.is_some() && minimum.is_none() {
        return None;
    }
    let index = annotation(labels::BATCH_JOB_COMPLETION_INDEX);
    let index: Option<u32> = index.and_then(|index| index.parse().ok());
    let mut changed = pod.clone();
    let spec = changed.spec.get_or_insert_default();
    let in_group = spec.scheduling_group.take();
    let in_group = in_group.and_then(|group| group.pod_group_name);
    match name {
        None => {}
        Some(name) if in_group.as_ref() == Some(name) => group(spec, name),
        Some(name) if index.zip(minimum).is_some_and(|(index, minimum)| index < minimum) => {
            ungate(spec);
            group(spec, name);
        }
        Some(_) => gate(spec),
    }
    (changed != *pod).then_some(changed)
}

/// True if a PodGroup starts the gang: for a running gang, if its Jobs have one; else if PodGroups
/// are `served`. Jobs that are created later must match those that run, or each part of the gang
/// would wait forever for the other.
pub(crate) fn goes_by_pod_group(children: &Children<'_>, gang: &str, served: bool) -> bool {
    let runs = |job: &&&Job| !is_suspended(job) && job.metadata.deletion_timestamp.is_none();
    let of_gang = |job: &&Job| marks(job, annotations::GANG).is_some_and(|name| name == gang);
    let mut running = children.active.iter().filter(runs);
    if let Some(job) = running.find(|job| of_gang(job)) {
        return has_pod_group(job);
    }
    served
}

/// True if a PodGroup starts the pods of the Job.
pub(super) fn has_pod_group(job: &Job) -> bool {
    marks(job, annotations::GANG_POD_GROUP).is_some()
}

fn marks<'a>(job: &'a Job, key: &str) -> Option<&'a String> {
    let template = job.spec.as_ref()?.template.metadata.as_ref()?;
    template.annotations.as_ref()?.get(key)
}

fn gate(spec: &mut PodSpec) {
    let gates = spec.scheduling_gates.get_or_insert_default();
    if !gates.iter().any(|gate| gate.name == labels::GANG_GATE) {
        gates.push(PodSchedulingGate {
            name: labels::GANG_GATE.to_owned(),
        });
    }
}

fn ungate(spec: &mut PodSpec) {
    let gates = spec.scheduling_gates.take().unwrap_or_default();
    let others: Vec<_> = gates
        .into_iter()
        .filter(|gate| gate.name != labels::GANG_GATE)
        .collect();
    spec.scheduling_gates = (!others.is_empty()).then_some(others);
}

fn group(spec: &mut PodSpec, name: &str) {
    spec.scheduling_group = Some(PodSchedulingGroup {
        pod_group_name: Some(name.to_owned()),
    });
}
