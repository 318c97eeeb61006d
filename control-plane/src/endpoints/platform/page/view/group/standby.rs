//! What the page says about the standbys of a worker.

use lockstep_proto::platform::v1 as pb;

/// How the processes of an attempt were started. `None` if there are none.
pub(super) fn started(starts: pb::Starts) -> Option<String> {
    let pb::Starts {
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
pub(super) fn standbys(standbys: &pb::Standbys) -> String {
    let pb::Standbys {
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
    match reason.as_str() {
        "" => state,
        why => format!("{state}: {why}"),
    }
}

#[cfg(test)]
mod tests;
