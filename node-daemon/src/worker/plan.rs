//! From what the control plane wants of a group to what one agent is told. Pure.

use super::types::{Desired, ExitCodes, Incarnation, Target, WorkerRestart};

/// The target of the worker `(job, container)` at this incarnation.
#[must_use]
pub fn target(desired: &Desired, job: &str, container: &str, incarnation: &Incarnation) -> Target {
    let terminal = desired
        .terminal
        .iter()
        .filter(|rule| rule.container.as_deref().is_none_or(|name| name == container))
        .filter(|rule| rule.job.as_deref().is_none_or(|name| name == job))
        .map(|rule| ExitCodes {
            negated: rule.negated,
            codes: rule.codes.clone(),
        })
        .collect();
    let of_group = WorkerRestart {
        generation: desired.generation,
        release: desired.release,
    };
    let restart = desired.worker_restarts.get(incarnation).copied();
    // What is not above the group's generation is a thing of the past.
    let restart = restart.filter(|restart| restart.generation > desired.generation);
    let WorkerRestart { generation, release } = restart.unwrap_or(of_group);
    Target {
        epoch: desired.epoch,
        generation,
        counter: desired.counter,
        release,
        start_fresh: desired.fresh.contains(incarnation),
        grace_ms: desired.grace_ms,
        terminal,
        heartbeat_timeout_ms: desired.heartbeat_timeout_ms,
        ready_timeout_ms: desired.ready_timeout_ms,
    }
}

#[cfg(test)]
mod tests;
