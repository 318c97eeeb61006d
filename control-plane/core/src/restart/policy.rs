//! Limits and codes from the JobSet and its Jobs.

use super::Identity;

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
    /// Longest wait before a group that fails again and again is released, milliseconds; 0: it
    /// never waits.
    pub max_backoff_ms: u64,
    /// Exit codes that Kubernetes has to see.
    pub terminal: Vec<TerminalRule>,
    /// True if the control plane replaces lost pods itself, and does not wait for the Job
    /// controller.
    pub replaces_pods: bool,
    /// Annotation `escalate-after`.
    pub escalate_after: Option<EscalateAfter>,
}

/// When the pod of a worker is deleted because the worker fails too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EscalateAfter {
    /// The failure that is one too many.
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
            terminal: Vec::new(),
            replaces_pods: true,
            escalate_after: None,
        }
    }
}

/// One onExitCodes rule of a child Job's podFailurePolicy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TerminalRule {
    /// Child Job that the rule belongs to.
    pub job: String,
    /// Container that it is limited to.
    pub container: Option<String>,
    /// True if the rule matches every code except these.
    pub negated: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
    /// What Kubernetes does about it.
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

impl Policy {
    /// What Kubernetes does about `code` in this worker, if a rule names it. The first rule that
    /// matches wins, as in the Job controller.
    #[must_use]
    pub fn terminal_action(&self, identity: &Identity, code: i32) -> Option<TerminalAction> {
        self.terminal
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
