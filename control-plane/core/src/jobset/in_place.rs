//! The way in which the workers of a JobSet restart in place, if they do.
//!
//! A JobSet is one group of one kind, never a mixture: a single pod template that cannot be
//! supervised makes the whole group Plain. A Plain group restarts by container if the kubelet
//! restarts its containers after every failure; else only its Jobs can be recreated.
//!
//! The kind is decided when the Jobs are created, and again when all of them are recreated. A
//! control plane that is configured differently in between does not change running workers: they
//! keep their agents, or go on without.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use lockstep_api::{InPlaceKind, JobSet, ReplicatedJob, annotations::Supervise};

mod obstacle;
pub(crate) mod template;

pub use obstacle::Obstacle;
pub use template::Agents;

#[cfg(test)]
mod tests;

/// How a JobSet restarts in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlaceMode {
    /// The kind, as stated in `status.inPlaceRestart`.
    pub kind: InPlaceKind,
    /// For a Plain group: all reasons why it cannot be supervised, as sentences.
    pub reasons: Vec<String>,
    /// The level at which its restarts in place begin. `None`: it has no restart coordinator.
    pub level: Option<RestartLevel>,
}

/// A way to restart all workers, from the cheapest to the most expensive. A restart that one level
/// cannot finish moves on to a later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RestartLevel {
    /// The agents restart the worker processes.
    #[default]
    Process,
    /// The containers are killed, and the kubelet restarts them.
    Container,
    /// A lost pod is replaced, and the workers of the others wait for it.
    Pod,
    /// The child Jobs are recreated.
    Recreate,
}

impl RestartLevel {
    /// The name used in status, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "Process",
            Self::Container => "Container",
            Self::Pod => "Pod",
            Self::Recreate => "Recreate",
        }
    }

    /// The level of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Process, Self::Container, Self::Pod, Self::Recreate]
            .into_iter()
            .find(|level| level.as_str() == name)
    }
}

/// How a JobSet restarts in place. `None`: it does not. Its status takes precedence over the
/// current configuration.
#[must_use]
pub fn mode(jobset: &JobSet, agents: &Agents) -> Option<InPlaceMode> {
    let judged = mode_of_new_jobs(jobset, agents)?;
    let status = jobset.status.as_ref();
    let stated = status.and_then(|status| status.in_place_restart.as_ref()?.kind.clone());
    Some(match stated {
        Some(kind @ (InPlaceKind::Supervised | InPlaceKind::Plain))
            if kind != judged.kind && judged.kind != InPlaceKind::UpstreamAgent =>
        {
            InPlaceMode {
                level: level(jobset, &kind),
                kind,
                reasons: Vec::new(),
            }
        }
        _ => judged,
    })
}

/// Decides how a JobSet restarts in place when all its Jobs are to be created or recreated. `None`:
/// it does not.
#[must_use]
pub fn mode_of_new_jobs(jobset: &JobSet, agents: &Agents) -> Option<InPlaceMode> {
    if !jobset.in_place() {
        return None;
    }
    let templates = || templates(jobset);
    if templates().any(|(_, pod)| brings_upstream_agent(pod)) {
        return Some(InPlaceMode {
            kind: InPlaceKind::UpstreamAgent,
            reasons: Vec::new(),
            level: None,
        });
    }
    let supervise = jobset.supervise().ok().flatten();
    let mut reasons = Vec::new();
    if supervise == Some(Supervise::Nothing) {
        reasons.push("the JobSet is annotated lockstep.dev/supervise: none".to_owned());
    }
    let jobs = jobset.spec.replicated_jobs.iter();
    let unindexed = jobs.filter(|job| is_unindexed(job));
    reasons.extend(unindexed.map(|job| format!("replicatedJob {} has completionMode NonIndexed", job.name)));
    for (name, pod) in templates() {
        let obstacles = Obstacle::all(pod);
        reasons.extend(obstacles.map(|obstacle| format!("replicatedJob {name} sets {obstacle}")));
        if let Agents::ByTemplate(_) = agents {
            let workers = workers_in(supervise.as_ref(), &pod.containers);
            reasons.extend(workers.filter_map(|container| {
                let obstacle = template::obstacle(container)?;
                let container = &container.name;
                Some(format!(
                    "container {container} of replicatedJob {name} has {obstacle}"
                ))
            }));
        }
        let workers = workers_in(supervise.as_ref(), &pod.containers);
        reasons.extend(workers.filter_map(|container| {
            let path = template::taken(container)?;
            let container = &container.name;
            Some(format!(
                "container {container} of replicatedJob {name} mounts {path:?}, where the agent is mounted"
            ))
        }));
        if supervise.is_none() {
            reasons.extend(pod.containers.iter().filter_map(|container| {
                let obstacle = obstacle::of_container(container)?;
                let container = &container.name;
                Some(format!(
                    "container {container} of replicatedJob {name} has a {obstacle}"
                ))
            }));
        }
    }
    let kind = if reasons.is_empty() {
        InPlaceKind::Supervised
    } else {
        InPlaceKind::Plain
    };
    Some(InPlaceMode {
        level: level(jobset, &kind),
        kind,
        reasons,
    })
}

/// The level at which restarts in place of a JobSet of this kind begin.
pub(crate) fn level(jobset: &JobSet, kind: &InPlaceKind) -> Option<RestartLevel> {
    match kind {
        InPlaceKind::Supervised => Some(RestartLevel::Process),
        InPlaceKind::Plain => {
            let are_told_apart = !jobset.spec.replicated_jobs.iter().any(is_unindexed);
            let restartable = are_told_apart && templates(jobset).all(|(_, pod)| is_started_again(pod));
            restartable.then_some(RestartLevel::Container)
        }
        InPlaceKind::UpstreamAgent | InPlaceKind::Other(_) => None,
    }
}

/// The pods of the replicatedJobs, by name.
fn templates(jobset: &JobSet) -> impl Iterator<Item = (&str, &PodSpec)> {
    jobset.spec.replicated_jobs.iter().filter_map(|job| {
        let pod = job.template.spec.as_ref()?.template.spec.as_ref()?;
        Some((job.name.as_str(), pod))
    })
}

/// True if pods of the Job have no completion index. Unset means Indexed in a JobSet.
fn is_unindexed(job: &ReplicatedJob) -> bool {
    let spec = job.template.spec.as_ref();
    spec.and_then(|spec| spec.completion_mode.as_deref()) == Some("NonIndexed")
}

/// True if the kubelet restarts every container that is killed, and none that has succeeded.
pub(crate) fn is_started_again(pod: &PodSpec) -> bool {
    const ON_FAILURE: &str = "OnFailure";
    let on_failure =
        |policy: Option<&str>| policy.is_none_or(|policy| policy.is_empty() || policy == ON_FAILURE);
    on_failure(pod.restart_policy.as_deref())
        && pod.containers.iter().all(|container| {
            on_failure(container.restart_policy.as_deref())
                && container.restart_policy_rules.iter().flatten().next().is_none()
        })
}

/// The containers of a pod template that are workers: the regular ones that the JobSet lists, or
/// all regular ones. A JobSet that refuses supervision has workers too.
#[must_use]
pub fn workers<'t>(jobset: &JobSet, template: &'t PodTemplateSpec) -> Vec<&'t str> {
    let supervise = jobset.supervise().ok().flatten();
    let pods = template.spec.iter();
    pods.flat_map(|pod| workers_in(supervise.as_ref(), &pod.containers))
        .map(|container| container.name.as_str())
        .collect()
}

fn workers_in<'t>(
    supervise: Option<&Supervise>,
    containers: &'t [Container],
) -> impl Iterator<Item = &'t Container> {
    let is_worker = move |container: &&Container| match supervise {
        None | Some(Supervise::Nothing) => true,
        Some(Supervise::Containers(listed)) => listed.contains(&container.name),
    };
    containers.iter().filter(is_worker)
}

/// True if the pod carries upstream's in-place restart agent (KEP-467): as its main container, or
/// as a sidecar whose exit restarts all containers.
///
/// The agent needs the names of its JobSet and its pod. Its purpose shows in the command that it
/// runs, its probe, its exit code, or its own rule that restarts all containers. Such a rule
/// without the names, or on another container, is the user's own and no sign of the agent.
fn brings_upstream_agent(pod: &PodSpec) -> bool {
    let containers = || pod.init_containers.iter().flatten().chain(&pod.containers);
    containers().any(|container| {
        let has_env = |name: &str| {
            let mut variables = container.env.iter().flatten();
            variables.any(|variable| variable.name == name)
        };
        let is_told = || UPSTREAM_PURPOSE.into_iter().any(has_env);
        UPSTREAM_IDENTITY.into_iter().all(has_env) && (restarts_all_containers(container) || is_told())
    })
}

/// True if upstream's agent is recognized by environment variables of this name.
#[must_use]
pub fn identifies_upstream_agent(variable: &str) -> bool {
    UPSTREAM_IDENTITY.contains(&variable) || UPSTREAM_PURPOSE.contains(&variable)
}

/// Environment variables without which upstream's agent exits at once.
const UPSTREAM_IDENTITY: [&str; 2] = ["JOBSET_NAME", "POD_NAME"];
/// Optional environment variables of upstream's agent, which show its purpose.
const UPSTREAM_PURPOSE: [&str; 4] = [
    "WORKER_COMMAND",
    "STARTUP_PROBE_PATH",
    "STARTUP_PROBE_PORT",
    "IN_PLACE_RESTART_EXIT_CODE",
];

/// True if an exit of the container may restart all containers of its pod (KEP-5532).
fn restarts_all_containers(container: &Container) -> bool {
    let mut rules = container.restart_policy_rules.iter().flatten();
    rules.any(|rule| rule.action == "RestartAllContainers")
}
