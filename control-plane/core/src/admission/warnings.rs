//! Warnings about annotations and fields that have no effect, or a harmful one. They never refuse
//! an object.
//!
//! Promises: there is no warning about annotations that only the control plane sets on JobSets, nor
//! about those unlike any of ours. The warnings are few, and short enough to be shown in full.

use std::collections::{BTreeMap, HashSet};

use lockstep_api::annotations::RestartScope;
use lockstep_api::{InPlaceKind, JobSet, annotations, ray::keys as ray};

use crate::common::features::Features;
use crate::common::syntax::qualified_name;
use crate::common::violation::path;
use crate::jobset::in_place;
use crate::jobset::target::{self, NoWorkers};

#[cfg(test)]
mod tests;

/// The API server may truncate longer warnings.
const LONGEST: usize = 256;
/// More warnings would not help.
const MOST: usize = 10;
/// The most wrong letters of a misspelt name.
const FAR: usize = 3;

const OURS: &str = "lockstep.dev";
const ALPHA: &str = "alpha.jobset.sigs.k8s.io";
const JOBSET: &str = "jobset.sigs.k8s.io";

/// The object on which an annotation is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnnotatedObject {
    JobSet,
    JobTemplate,
    PodTemplate,
}

/// The JobSets for which an annotation has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// All.
    Any,
    /// Those that restart in place.
    InPlace,
    /// Those whose workers have agents.
    Agents,
    /// Those whose workers have agents, with heartbeats in the same place.
    Heartbeats,
    /// Those that ask for exclusive placement in the same place.
    Exclusive,
}

/// The annotations that users set, the objects they belong on, and what they need.
const USER_ANNOTATIONS: [(&str, &[AnnotatedObject], For); 13] = [
    (
        annotations::IN_PLACE_TIMEOUT,
        &[AnnotatedObject::JobSet],
        For::InPlace,
    ),
    (
        annotations::RESTART_GRACE,
        &[AnnotatedObject::JobSet],
        For::Agents,
    ),
    (annotations::SUPERVISE, &[AnnotatedObject::JobSet], For::InPlace),
    (annotations::STANDBY, &JOBSET_OR_JOB, For::Agents),
    (annotations::MAX_BACKOFF, &[AnnotatedObject::JobSet], For::InPlace),
    (
        annotations::ESCALATE_AFTER,
        &[AnnotatedObject::JobSet],
        For::InPlace,
    ),
    (
        annotations::RESTART_REQUEST,
        &[AnnotatedObject::JobSet],
        For::InPlace,
    ),
    (
        annotations::RESTART_WORKERS,
        &[AnnotatedObject::JobSet],
        For::Agents,
    ),
    (
        annotations::HEARTBEAT_TIMEOUT,
        &[AnnotatedObject::JobSet],
        For::Agents,
    ),
    (
        annotations::READY_TIMEOUT,
        &[AnnotatedObject::JobSet],
        For::Heartbeats,
    ),
    (
        annotations::RESTART_SCOPE,
        &[AnnotatedObject::JobTemplate],
        For::Agents,
    ),
    (annotations::EXCLUSIVE_TOPOLOGY, &EVERYWHERE, For::Any),
    (annotations::NODE_SELECTOR_STRATEGY, &EVERYWHERE, For::Exclusive),
];
const JOBSET_OR_JOB: [AnnotatedObject; 2] = [AnnotatedObject::JobSet, AnnotatedObject::JobTemplate];
const EVERYWHERE: [AnnotatedObject; 3] = [
    AnnotatedObject::JobSet,
    AnnotatedObject::JobTemplate,
    AnnotatedObject::PodTemplate,
];

/// What the control plane sets on Jobs and pods, overriding their templates.
const OF_CHILDREN: [&str; 6] = [
    annotations::IN_PLACE,
    annotations::STOP_WITHOUT_AGENT,
    annotations::GANG,
    annotations::GANG_MINIMUM,
    annotations::GANG_POD_GROUP,
    ray::JOB_ID,
];
/// What the control plane sets on JobSets.
const OF_JOBSETS: [&str; 3] = [
    annotations::IN_PLACE_RESTARTS,
    ray::TEMPLATE_DIGEST,
    ray::SETTINGS_DIGEST,
];

/// Warnings for the user who creates this JobSet.
#[must_use]
pub fn create_warnings(jobset: &JobSet, features: &Features) -> Vec<String> {
    few(all(jobset, features))
}

/// Warnings for the user who changes this JobSet, without those that the old object has too.
#[must_use]
pub fn update_warnings(old: &JobSet, new: &JobSet, features: &Features) -> Vec<String> {
    let before: HashSet<String> = all(old, features).into_iter().collect();
    few(all(new, features)
        .into_iter()
        .filter(|warning| !before.contains(warning.as_str()))
        .collect())
}

fn few(mut warnings: Vec<String>) -> Vec<String> {
    if warnings.len() > MOST {
        let left_out = warnings.len() - (MOST - 1);
        warnings.truncate(MOST - 1);
        warnings.push(format!("and {left_out} more warnings"));
    }
    for warning in &mut warnings {
        if warning.len() > LONGEST {
            warning.truncate(warning.floor_char_boundary(LONGEST - 3));
            warning.push_str("...");
        }
    }
    warnings
}

fn all(jobset: &JobSet, features: &Features) -> Vec<String> {
    let judge = Judge::new(jobset, features);
    let mut warnings = Vec::new();
    if judge.no_agents.is_none() {
        warnings.extend(long_grace(jobset));
        warnings.extend(request_in_vain(jobset));
    }
    if jobset.max_restarts() < 0 {
        warnings.push("spec.failurePolicy.maxRestarts: it is negative, which counts as 0".to_owned());
    }
    if jobset.spec.active_deadline_seconds.is_some() && !features.active_deadline {
        warnings.push(
            "spec.activeDeadlineSeconds: no effect, since the feature gate JobSetActiveDeadlineSeconds is off"
                .to_owned(),
        );
    }
    judge.of(
        AnnotatedObject::JobSet,
        "metadata.annotations",
        jobset.metadata.annotations.as_ref(),
        &mut warnings,
    );
    for (index, job) in jobset.spec.replicated_jobs.iter().enumerate() {
        let template = &job.template;
        let of_job = template
            .metadata
            .as_ref()
            .and_then(|meta| meta.annotations.as_ref());
        let field = path(index, ".template.metadata.annotations");
        judge.of(AnnotatedObject::JobTemplate, &field, of_job, &mut warnings);
        let pod = template
            .spec
            .as_ref()
            .and_then(|spec| spec.template.metadata.as_ref());
        let of_pod = pod.and_then(|meta| meta.annotations.as_ref());
        let field = path(index, ".template.spec.template.metadata.annotations");
        judge.of(AnnotatedObject::PodTemplate, &field, of_pod, &mut warnings);
    }
    warnings
}

/// The state of a JobSet on which the effect of annotations depends.
struct Judge {
    /// Why nothing restarts in place.
    not_in_place: Option<String>,
    /// Why the workers have no agents.
    no_agents: Option<String>,
    /// True if it asks for restarts in place.
    is_in_place: bool,
}

impl Judge {
    fn new(jobset: &JobSet, features: &Features) -> Self {
        let always = |why: &str| Self {
            not_in_place: Some(why.to_owned()),
            no_agents: Some(why.to_owned()),
            is_in_place: false,
        };
        if !features.in_place_restart {
            return always("the feature gate InPlaceRestart is off");
        }
        // Further obstacles, if pod templates bring the agents, are reported by an event.
        let Some(group) = in_place::mode(jobset, &in_place::Agents::ByNode) else {
            return always("spec.failurePolicy.restartStrategy is not InPlaceRestart");
        };
        let no_agents = match group.kind {
            InPlaceKind::UpstreamAgent => Some("the pods bring upstream's in-place agent".to_owned()),
            _ => group.reasons.into_iter().next(),
        };
        Self {
            not_in_place: no_agents.clone().filter(|_| group.level.is_none()),
            no_agents,
            is_in_place: true,
        }
    }

    fn of(
        &self,
        place: AnnotatedObject,
        field: &str,
        stated: Option<&BTreeMap<String, String>>,
        warnings: &mut Vec<String>,
    ) {
        let has = |key: &str| stated.is_some_and(|stated| stated.contains_key(key));
        for (key, value) in stated.into_iter().flatten() {
            let domains = key == annotations::EXCLUSIVE_TOPOLOGY && !has(annotations::NODE_SELECTOR_STRATEGY);
            let what = if domains && !qualified_name(value).is_empty() {
                // Upstream accepts it.
                Some("is not a valid node label key, so no pod can be created".to_owned())
            } else if key == annotations::SUPERVISE
                && value == annotations::SUPERVISE_NONE
                && self.is_in_place
            {
                // It is the reason why there are no agents.
                None
            } else {
                self.without_effect(key, place, has)
            };
            if let Some(what) = what {
                warnings.push(format!("{field}[{key}]: {what}"));
            }
        }
    }

    /// Why an annotation has no effect in this place.
    fn without_effect(
        &self,
        key: &str,
        place: AnnotatedObject,
        has: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let Some((_, places, needs)) = USER_ANNOTATIONS.iter().find(|(known, ..)| *known == key) else {
            return unknown(key);
        };
        if !places.contains(&place) {
            let right = if places.contains(&AnnotatedObject::JobSet) {
                "metadata.annotations of the JobSet"
            } else {
                "template.metadata.annotations of a replicatedJob"
            };
            return Some(format!("has no effect here: it belongs in {right}"));
        }
        let because = match needs {
            For::Any => None,
            For::InPlace => self.not_in_place.as_deref(),
            For::Agents => self.no_agents.as_deref(),
            For::Heartbeats => self.no_agents.as_deref().or_else(|| {
                let is_missing = !has(annotations::HEARTBEAT_TIMEOUT);
                is_missing.then_some("heartbeat-timeout is not set beside it")
            }),
            For::Exclusive => {
                let is_missing = !has(annotations::EXCLUSIVE_TOPOLOGY);
                is_missing.then_some("exclusive-topology is not set beside it")
            }
        };
        because.map(|because| format!("has no effect: {because}"))
    }
}

/// The warning about a grace that does not fit into the time for a restart.
fn long_grace(jobset: &JobSet) -> Option<String> {
    let grace = jobset.restart_grace().ok()??;
    let timeout = jobset.in_place_timeout().ok()?;
    (grace >= timeout).then(|| {
        format!(
            "metadata.annotations[{}]: it is not below {} ({timeout:?}), so a worker that uses it up turns \
             the restart into a recreation",
            annotations::RESTART_GRACE,
            annotations::IN_PLACE_TIMEOUT,
        )
    })
}

/// The warning about a request to restart single workers that restarts none.
fn request_in_vain(jobset: &JobSet) -> Option<String> {
    let request = jobset.worker_restart_request().ok()??;
    let why = match target::find(&request.target, jobset) {
        Err(NoWorkers { what, .. }) => format!("the JobSet has no {what}"),
        Ok(job) if job.restart_scope() != Ok(RestartScope::Worker) => {
            format!(
                "the {} of replicatedJob {} is not worker, so its workers restart with all others",
                annotations::RESTART_SCOPE,
                job.name
            )
        }
        Ok(_) => return None,
    };
    let key = annotations::RESTART_WORKERS;
    Some(format!(
        "metadata.annotations[{key}]: {request} has no effect: {why}"
    ))
}

/// The warning about an annotation that no feature reads.
fn unknown(key: &str) -> Option<String> {
    if OF_JOBSETS.contains(&key) {
        return None;
    }
    if OF_CHILDREN.contains(&key) {
        return Some("has no effect: only the control plane sets it, on Jobs and pods".to_owned());
    }
    let (prefix, name) = key.split_once('/')?;
    // Upstream may have annotations that we do not know: under its prefixes only names similar to
    // known ones are reported.
    let (letters, is_ours) = match prefix {
        OURS => (FAR, true),
        ALPHA => (FAR, name.starts_with("inplace")),
        JOBSET => (0, false),
        _ => return None,
    };
    let distance = |known: &str| {
        let (_, known) = known.split_once('/')?;
        Some(strsim::osa_distance(&name.to_lowercase(), known))
    };
    let meant = USER_ANNOTATIONS
        .iter()
        .filter_map(|(known, ..)| Some((distance(known).filter(|distance| *distance <= letters)?, *known)))
        .min();
    match meant {
        Some((_, meant)) => Some(format!("unknown annotation: did you mean {meant}?")),
        None if is_ours => Some("unknown annotation: it has no effect".to_owned()),
        None => None,
    }
}
