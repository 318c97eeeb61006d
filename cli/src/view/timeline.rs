//! One restart, phase by phase, from its event.

use anyhow::{Result, bail};
use jiff::Timestamp;
use serde::Serialize;

use super::history::{Entry, History, Phases};

#[cfg(test)]
mod tests;

/// A completed restart.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Timeline {
    /// Namespace of the JobSet.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// The restart attempt that it led to.
    pub(crate) generation: Option<u64>,
    /// The restart level: Process, Container, Pod or Recreate.
    pub(crate) level: Option<String>,
    /// When the worker failed.
    pub(crate) failed_at: Option<Timestamp>,
    /// Milliseconds from the failure until all workers ran.
    pub(crate) took_ms: f64,
    /// The number of restarted workers, and how many of them are in a new pod.
    pub(crate) workers: Option<u32>,
    pub(crate) replaced_pods: Option<u32>,
    /// How many of them began from a standby, and the most CPU time in ms of imports that one had
    /// done before.
    pub(crate) from_standbys: Option<u32>,
    pub(crate) ahead_ms: Option<u32>,
    /// The cause, in a sentence.
    pub(crate) cause: String,
    /// Its phases, some of which overlap.
    pub(crate) phases: Vec<Span>,
}

/// A phase, in milliseconds after the failure.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Span {
    /// Its name in the metric `lockstep_restart_phase_seconds`.
    pub(crate) phase: &'static str,
    /// What happens in it.
    pub(crate) what: &'static str,
    pub(crate) from_ms: f64,
    pub(crate) to_ms: f64,
}

impl Timeline {
    /// Length of a scale for all phases, in ms. Clocks of several machines time the phases, so one
    /// may end after the whole restart.
    pub(crate) fn scale_ms(&self) -> f64 {
        let ends = self.phases.iter().map(|span| span.to_ms);
        ends.fold(self.took_ms, f64::max)
    }
}

impl Span {
    /// Its duration in ms.
    pub(crate) fn took_ms(&self) -> f64 {
        self.to_ms - self.from_ms
    }
}

/// The completed restart to this generation, or the last one.
///
/// # Errors
/// If it is unknown.
pub(crate) fn timeline(history: &History, generation: Option<u64>) -> Result<Timeline> {
    let mut completed = history.entries.iter().rev().filter_map(of_entry);
    let name = format!("{}/{}", history.namespace, history.name);
    let found = completed.find(|(entry, ..)| generation.is_none_or(|asked| entry.generation == Some(asked)));
    let Some((entry, phases, took_ms)) = found else {
        let known: Vec<String> = history
            .entries
            .iter()
            .filter(|entry| of_entry(entry).is_some())
            .filter_map(|entry| Some(entry.generation?.to_string()))
            .collect();
        match generation {
            Some(asked) if !known.is_empty() => {
                bail!(
                    "--generation {asked}: no such restart of {name} is known; known generations: {}",
                    known.join(", ")
                )
            }
            _ => bail!(
                "no completed restart of {name} is known (the API server keeps events for an hour by default)"
            ),
        }
    };
    Ok(Timeline {
        namespace: history.namespace.clone(),
        name: history.name.clone(),
        generation: entry.generation,
        level: entry.level.clone(),
        failed_at: entry.at,
        took_ms,
        workers: entry.workers,
        replaced_pods: entry.replaced_pods,
        from_standbys: entry.from_standbys,
        ahead_ms: entry.ahead_ms,
        cause: entry.cause.clone(),
        phases: spans(phases),
    })
}

fn of_entry(entry: &Entry) -> Option<(&Entry, &Phases, f64)> {
    Some((entry, entry.phases.as_ref()?, entry.took_ms?))
}

/// The phases whose beginning and end are known, in order.
fn spans(phases: &Phases) -> Vec<Span> {
    let Phases {
        detected,
        pushed,
        written,
        stopped,
        parked,
        released,
        running,
    } = *phases;
    [
        (
            "detect",
            "until the control plane decided to restart",
            Some(0.0),
            detected,
        ),
        (
            "push",
            "until all nodes had been sent the new generation",
            detected,
            pushed,
        ),
        ("write", "until it was durable", detected, written),
        ("stop", "until the last worker had stopped", detected, stopped),
        (
            "park",
            "until the control plane knew that all were waiting",
            stopped,
            parked,
        ),
        ("release", "until they were released", parked, released),
        ("run", "until the last worker ran", released, running),
    ]
    .into_iter()
    .filter_map(|(phase, what, from, to)| {
        let from_ms = from?;
        let to_ms = to?.max(from_ms);
        Some(Span {
            phase,
            what,
            from_ms,
            to_ms,
        })
    })
    .collect()
}
