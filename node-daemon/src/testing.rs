//! What the tests of several parts stand on: a pod with one worker, an order, and a host that does
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::worker::driver::Host;
use crate::worker::facts::HostKill;
use crate::worker::types::{ContainerId, Desired, Epoch, Generation, Pod, PodUid, Standby};

/// A pod of group `g` with one container, `worker`.
pub(crate) fn pod(uid: &str) -> Pod {
    Pod {
        uid: uid.into(),
        namespace: "default".into(),
        name: "pod".into(),
        group: "g".into(),
        job: "job".into(),
        index: 0,
        supervised: ["worker".to_owned()].into(),
        started_again: false,
        standby: Standby::Nothing,
    }
}

/// An order for group `g`: all stop for this generation.
pub(crate) fn desired(epoch: u64, generation: u64) -> Desired {
    Desired {
        group: "g".into(),
        namespace: Some("default".to_owned()),
        epoch: Epoch(epoch),
        generation: Generation(generation),
        counted_restarts: generation,
        release: false,
        fresh: BTreeSet::new(),
        stale: BTreeSet::new(),
        worker_restarts: BTreeMap::new(),
        grace_ms: 1000,
        terminal_rules: vec![],
        heartbeat_timeout_ms: 0,
        ready_timeout_ms: 0,
    }
}

/// A host that does nothing.
pub(crate) struct NoHost;

impl Host for NoHost {
    fn kill(&self, _: HostKill) {}
    fn spare(&self, _: &ContainerId) {}
    fn pod_known(&self, _: &PodUid) {}
    fn pod_gone(&self, _: &PodUid) {}
}
