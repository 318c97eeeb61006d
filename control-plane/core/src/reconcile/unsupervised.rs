//! Events about workers that could restart as processes but do not.

use lockstep_api::{InPlaceKind, annotations};

use crate::{
    jobset::in_place::{self, InPlaceMode},
    jobset::observed::Observed,
    jobset::plan::{Event, Severity},
    jobset::pod::Changed,
    jobset::status::Draft,
};

/// Reason of the event about a JobSet that restarts by container instead of by process.
pub const NOT_SUPERVISED: &str = "RestartNotSupervised";

/// Reports once, when the Jobs are first created, why the workers of an in-place JobSet do not
/// restart as processes.
pub(super) fn report_reasons(in_place: Option<&InPlaceMode>, draft: &mut Draft<'_>) {
    if let Some(in_place) = in_place
        && in_place.kind == InPlaceKind::Plain
    {
        let instead = match in_place.level {
            Some(_) => "workers are restarted by container, not as processes",
            None => "workers are not restarted in place: a failure recreates the Jobs",
        };
        let message = format!("{instead}: {}", in_place.reasons.join("; "));
        draft.event(Severity::Warning, NOT_SUPERVISED, message);
    }
}

/// Warns that pods of a Supervised group lack agents although their template allows them, and
/// suggests a remedy. The group stays Supervised, because its other pods may have agents. Jobs are
/// not recreated until a worker fails.
pub(super) fn missing_agents(observed: &Observed) -> Option<Event> {
    let Changed { job, obstacle } = observed.changed.as_ref()?;
    let by_template = in_place::mode_of_new_jobs(&observed.jobset, &observed.agents)?;
    if by_template.kind != InPlaceKind::Supervised {
        return None;
    }
    let condition = match in_place::level(&observed.jobset, &InPlaceKind::Plain) {
        Some(_) => "",
        None => ", restartPolicy: OnFailure and no container restart rules",
    };
    Some(Event {
        severity: Severity::Warning,
        reason: NOT_SUPERVISED.to_owned(),
        message: format!(
            "a failure recreates the Jobs: pods of Job {job} set {obstacle}, which their template does not: a policy or a webhook of the cluster has changed \
             them. To restart workers by container instead, create the JobSet with the annotation {}: none{condition}",
            annotations::SUPERVISE
        ),
    })
}
