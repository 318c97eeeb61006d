//! Limits and codes from the JobSet and its Jobs.

use std::time::Duration;

use k8s_openapi::api::batch::v1::{JobSpec, PodFailurePolicyRule};
use lockstep_api::JobSet;

use super::Identity;

/// Longest default grace between SIGTERM and SIGKILL at a restart, milliseconds.
const MAX_DEFAULT_GRACE_MS: u64 = 5_000;
/// Kubernetes' default of terminationGracePeriodSeconds.
const DEFAULT_TERMINATION_GRACE_SECONDS: i64 = 30;
/// Exit codes of agents and workers whose pod is deleted: by SIGTERM, and by SIGKILL after the
/// grace period.
const OF_DELETED: [i32; 2] = [128 + 15, 128 + 9];

/// Limits and codes from the JobSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `failurePolicy.maxRestarts`.
    pub max_restarts: u32,
    /// Annotation `inplace-timeout`: bounds first failure to all running, milliseconds.
    pub timeout_ms: u64,
    /// How long a new leader waits for the daemons of a group before it decides without them,
    /// milliseconds.
    pub recovery_ms: u64,
    /// Longest delay before a repeatedly failing group is released, milliseconds; 0: there is no
    /// delay.
    pub max_backoff_ms: u64,
    /// Which exit codes are terminal, so that Kubernetes must see them.
    pub terminal_rules: Vec<TerminalRule>,
    /// True if the control plane replaces lost pods itself, without waiting for the Job controller.
    pub replaces_pods: bool,
    /// Annotation `escalate-after`.
    pub escalate_after: Option<EscalateAfter>,
}

/// When the pod of a worker is deleted because the worker fails too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EscalateAfter {
    /// The number of failures that is one too many.
    pub failures: u32,
    /// Within which time, milliseconds.
    pub within_ms: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_restarts: 0,
            timeout_ms: 60_000,
            recovery_ms: 15_000,
            max_backoff_ms: 60_000,
            terminal_rules: Vec::new(),
            replaces_pods: true,
            escalate_after: None,
        }
    }
}

/// One onExitCodes rule of a child Job's podFailurePolicy: which exit codes are terminal, and for
/// which workers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TerminalRule {
    /// The child Job that the rule belongs to.
    pub job: String,
    /// The container that it is limited to.
    pub container: Option<String>,
    /// True if the rule matches every code except these.
    pub negated: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
    /// The action of Kubernetes.
    pub action: TerminalAction,
}

/// Action of a podFailurePolicy rule, as far as restarts are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TerminalAction {
    /// FailJob: the JobSet's own failure policy decides.
    FailJob,
    /// FailIndex: the worker leaves the group.
    FailIndex,
    /// Ignore or Count: the pod is lost and replaced.
    Replace,
}

impl TerminalRule {
    /// A rule about exit codes of a Job's podFailurePolicy, as far as restarts are concerned.
    pub(super) fn of(job: &str, rule: &PodFailurePolicyRule) -> Option<Self> {
        let codes = rule.on_exit_codes.as_ref()?;
        let action = match rule.action.as_str() {
            "FailJob" => TerminalAction::FailJob,
            "FailIndex" => TerminalAction::FailIndex,
            _ => TerminalAction::Replace,
        };
        Some(Self {
            job: job.to_owned(),
            container: codes.container_name.clone(),
            negated: codes.operator == "NotIn",
            codes: codes.values.clone(),
            action,
        })
    }
}

impl Policy {
    /// The action of Kubernetes for exit code `code` of this worker, if a rule matches it. The
    /// first match wins, as in the Job controller.
    #[must_use]
    pub fn terminal_action(&self, identity: &Identity, code: i32) -> Option<TerminalAction> {
        self.terminal_rules
            .iter()
            .find(|rule| {
                *rule.job == *identity.job
                    && rule
                        .container
                        .as_ref()
                        .is_none_or(|container| **container == *identity.container)
                    && code != 0
                    && rule.codes.contains(&code) != rule.negated
            })
            .map(|rule| rule.action)
    }
}

/// True if the Job counts the deletion of a pod as a failure: it counts failures by index, or a
/// rule of its podFailurePolicy matches. It is not known which container ends first, nor which rule
/// matches first.
pub(super) fn keeps_pods(spec: &JobSpec) -> bool {
    let rules = spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    let mut rules = rules.filter_map(|rule| TerminalRule::of("", rule));
    spec.backoff_limit_per_index.is_some()
        || rules.any(|rule| {
            let fits = |code| rule.codes.contains(code) != rule.negated;
            rule.action != TerminalAction::Replace && OF_DELETED.iter().any(fits)
        })
}

/// Time between SIGTERM and SIGKILL at a restart, milliseconds: the JobSet's setting, else the
/// pods' own grace period, at most 5 s.
#[must_use]
pub fn grace_ms(jobset: &JobSet) -> u64 {
    if let Ok(Some(grace)) = jobset.restart_grace() {
        return u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    }
    let shortest = jobset
        .spec
        .replicated_jobs
        .iter()
        .filter_map(|job| job.template.spec.as_ref()?.template.spec.as_ref())
        .map(|pod| {
            pod.termination_grace_period_seconds
                .unwrap_or(DEFAULT_TERMINATION_GRACE_SECONDS)
        })
        .min()
        .unwrap_or(DEFAULT_TERMINATION_GRACE_SECONDS);
    u64::try_from(shortest)
        .unwrap_or(0)
        .saturating_mul(1000)
        .min(MAX_DEFAULT_GRACE_MS)
}

/// Longest time between two heartbeats of a worker, milliseconds; 0: there is no limit.
#[must_use]
pub fn heartbeat_timeout_ms(jobset: &JobSet) -> u32 {
    wire_ms(jobset.heartbeat_timeout().ok().flatten())
}

/// How long a started worker may take until its first heartbeat, milliseconds; 0: there is no
/// limit.
#[must_use]
pub fn ready_timeout_ms(jobset: &JobSet) -> u32 {
    wire_ms(jobset.ready_timeout().ok().flatten())
}

fn wire_ms(asked: Option<Duration>) -> u32 {
    asked.map_or(0, |timeout| {
        // Less than a millisecond is not zero.
        u32::try_from(timeout.as_millis().max(1)).unwrap_or(u32::MAX)
    })
}
