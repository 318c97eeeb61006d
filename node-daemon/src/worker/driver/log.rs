//! The driver's log: one line per decision and per observed change.

use tracing::{info, warn};

use super::super::facts::{Effects, HostKill, Input};
use super::super::types::{ContainerId, StaleOrder, WorkerState};
use super::Driver;
use super::handle::Arrival;
use super::log_limit::LogLimit;

/// Longest text of an agent in a line of the log, in bytes. The control plane gets all of it.
const LONGEST: usize = 200;

impl Driver {
    /// Logs the effects of a fact, within each pod's limit.
    pub(super) fn log(&mut self, effects: &Effects) {
        for (id, _, target) in &effects.targets {
            if let Some(left_out) = self.next_line(id) {
                info!(
                    container = %id,
                    epoch = target.epoch.0,
                    generation = target.generation.0,
                    release = target.release,
                    start_fresh = target.start_fresh,
                    left_out,
                    "target"
                );
            }
        }
        log_reports(&effects.reports, &mut self.lines);
        for HostKill { container, .. } in &effects.kills {
            if let Some(left_out) = self.next_line(container) {
                warn!(%container, left_out, "the agent may not kill its processes: killing them from the host");
            }
        }
        log_stale(&effects.stale);
        for pod in &effects.pods_gone {
            info!(%pod, "pod gone");
        }
    }

    /// Logs that an agent has registered. An unknown pod is not logged: the agent's first State
    /// says more.
    pub(super) fn log_arrival(&mut self, arrival: &Arrival) {
        let Input::Registered {
            id, pod, name, pid, ..
        } = &arrival.registered
        else {
            return;
        };
        let Some(namespace) = self.table.namespace_of(pod) else {
            return;
        };
        if let Some(left_out) = self.lines.next(namespace, pod) {
            let version = &arrival.version;
            info!(container = %id, name, pid, version, left_out, "agent registered");
        }
    }

    pub(super) fn next_line(&mut self, id: &ContainerId) -> Option<u64> {
        let pod = self.table.pod_of(id)?;
        self.lines.next(&pod.namespace, &pod.uid)
    }
}

pub(super) fn log_reports(reports: &[WorkerState], lines: &mut LogLimit) {
    for state in reports {
        let Some(left_out) = lines.next(&state.namespace, &state.incarnation.pod) else {
            continue;
        };
        info!(
            group = %state.group,
            pod = %state.pod_name,
            container = %state.incarnation.container,
            phase = state.phase.name(),
            heartbeat = ?state.heartbeat,
            generation = state.generation.0,
            exit_code = state.phase.exit().map(|exit| exit.code),
            detail = beginning(&state.detail),
            standbys = state.standbys.as_ref().map(|standbys| standbys.ready),
            started_from_standby = state.starts.map(|starts| starts.standby),
            started_cold = state.starts.map(|starts| starts.cold),
            left_out,
            "worker"
        );
    }
}

/// The beginning of a text: [`LogLimit`] counts lines, and so each has to be short.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST)]
}

pub(super) fn log_stale(stale: &[StaleOrder]) {
    for StaleOrder {
        group,
        epoch,
        highest,
    } in stale
    {
        warn!(%group, epoch = epoch.0, highest = highest.0, "ignored desired state from a former leader");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_agents_are_cut() {
        assert_eq!(beginning("short"), "short");
        // Each of these has two bytes, and seven in the log.
        let long = "\u{300}".repeat(512);
        assert_eq!(beginning(&long), "\u{300}".repeat(100));
    }
}
