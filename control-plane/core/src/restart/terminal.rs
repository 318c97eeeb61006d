//! What a Job does when its pods end, besides starting new ones.

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyRule};

use super::{TerminalAction, TerminalRule};

/// How agents and workers end when their pod is deleted: by SIGTERM, and by SIGKILL once the grace
/// is over.
const OF_DELETED: [i32; 2] = [128 + 15, 128 + 9];

/// A rule about exit codes, as far as restarts are concerned.
pub(super) fn rule(job: &str, rule: &PodFailurePolicyRule) -> Option<TerminalRule> {
    let codes = rule.on_exit_codes.as_ref()?;
    let action = match rule.action.as_str() {
        "FailJob" => TerminalAction::FailJob,
        "FailIndex" => TerminalAction::FailIndex,
        _ => TerminalAction::Replace,
    };
    Some(TerminalRule {
        job: job.to_owned(),
        container: codes.container_name.clone(),
        negated: codes.operator == "NotIn",
        codes: codes.values.clone(),
        action,
    })
}

/// True if the Job takes the deletion of a pod for a failure: it counts failures by index, or a
/// rule of its podFailurePolicy fits. It is not known which container ends first, nor which rule
/// fits first.
pub(super) fn keeps_pods(spec: &JobSpec) -> bool {
    let rules = spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    let mut rules = rules.filter_map(|of| rule("", of));
    spec.backoff_limit_per_index.is_some()
        || rules.any(|rule| {
            let fits = |code| rule.codes.contains(code) != rule.negated;
            rule.action != TerminalAction::Replace && OF_DELETED.iter().any(fits)
        })
}
