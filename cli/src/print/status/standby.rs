//! Renders what a worker reports about its work and its standbys.

use crate::view::status::{Standbys, Starts, Worker};

/// All of it, as far as it is known.
pub(super) fn line(worker: &Worker) -> String {
    let step = worker.step.map(|step| format!("step {step}"));
    let section = worker.section.as_ref().map(|section| format!("in {section}"));
    let started = worker.starts.and_then(started);
    let standbys = worker.standbys.as_ref().map(standbys);
    let parts = [step, section, started, standbys];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// How the processes of an attempt were started. `None` if there are none.
fn started(starts: Starts) -> Option<String> {
    let Starts {
        standby,
        cold,
        ahead_ms,
    } = starts;
    let ahead = f64::from(ahead_ms) / 1000.0;
    match (standby, cold) {
        (0, 0) => None,
        (0, _) => Some("started cold".to_owned()),
        (_, 0) => Some(format!("started from standby ({ahead:.1} s ahead)")),
        _ => {
            let all = u64::from(standby) + u64::from(cold);
            Some(format!(
                "{standby} of {all} started from standby ({ahead:.1} s ahead)"
            ))
        }
    }
}

/// What waits for the next attempt.
fn standbys(standbys: &Standbys) -> String {
    let Standbys {
        wanted,
        ready,
        reason,
        ..
    } = standbys;
    let state = match (ready, wanted) {
        (_, 0) => "no standby".to_owned(),
        (1, 1) => "standby ready".to_owned(),
        (ready, wanted) if ready == wanted => format!("{ready} standbys ready"),
        (ready, wanted) => format!("{ready} of {wanted} standbys ready"),
    };
    match reason {
        None => state,
        Some(why) => format!("{state}: {why}"),
    }
}

#[cfg(test)]
mod tests;
