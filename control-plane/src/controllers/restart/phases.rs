//! The phases of a restart, as metrics, traces and the platform API show them.

use lockstep_core::restart::{Timeline, UnixNanos};

/// One phase of a restart. It ends no earlier than it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) from: UnixNanos,
    pub(crate) to: UnixNanos,
}

/// The phases whose beginning and end are known.
pub(crate) fn phases(timeline: &Timeline) -> impl Iterator<Item = Phase> + use<> {
    let Timeline {
        failed_at: failed,
        detected_at: detected,
        pushed_at: pushed,
        written_at: written,
        stopped_at: stopped,
        parked_at: parked,
        released_at: released,
        running_at: running,
        generation: _,
        workers: _,
        replaced: _,
        from_standbys: _,
        ahead_ms: _,
    } = *timeline;
    [
        ("detect", failed, detected),
        ("push", detected, pushed),
        ("write", detected, written),
        ("stop", detected, stopped),
        ("park", stopped, parked),
        ("release", parked, released),
        ("run", released, running),
    ]
    .into_iter()
    .filter_map(|(name, from, to)| phase(name, from, to))
}

/// The whole restart, from the failure until all workers run.
pub(super) fn total(timeline: &Timeline) -> Option<Phase> {
    phase("total", timeline.failed_at, timeline.running_at)
}

/// The phase, if both times are known. It does not end before it begins, even if the clocks of two
/// machines differ.
fn phase(name: &'static str, from: UnixNanos, to: UnixNanos) -> Option<Phase> {
    let known = from != UnixNanos::default() && to != UnixNanos::default();
    known.then(|| Phase {
        name,
        from,
        to: to.max(from),
    })
}
