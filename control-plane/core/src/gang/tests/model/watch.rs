//! The invariants of gangs.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use lockstep_api::GangPhase;

use super::Model;
use crate::gang::Part;

/// How long lost writes may delay the correct state, in seconds.
const SLACK: i64 = 15;

impl Model {
    /// Checks the invariants.
    pub(super) fn watch(&mut self) {
        let mut looked_at = BTreeSet::new();
        let mut held = BTreeSet::new();
        for jobset in self.world().jobsets {
            for gang in &jobset.gangs {
                let key = (jobset.name.clone(), gang.name.clone());
                looked_at.insert(key.clone());
                let phase = self.phase(&jobset.name, &gang.name);
                let minimum: u32 = gang.parts.iter().map(|part| part.minimum).sum();
                let mut bound = 0;
                let mut ended = 0;
                for part in &gang.parts {
                    self.no_more_than_asked(part);
                    for pod in &part.pods {
                        let ordinal = pod.job_index * part.parallelism + pod.index.unwrap();
                        let is_optional = ordinal >= part.minimum;
                        if pod.is_terminal() {
                            ended += u32::from(!is_optional);
                            continue;
                        }
                        bound += u32::from(pod.node.is_some() && !is_optional);
                        if phase == Some(GangPhase::Scheduled) && pod.gated && !is_optional {
                            held.insert(pod.uid.clone());
                        }
                        assert!(
                            phase == Some(GangPhase::Scheduled) || !is_optional || pod.gated,
                            "optional worker {} may go before its gang is bound: {}",
                            pod.name,
                            self.describe()
                        );
                    }
                }
                if bound + ended >= minimum {
                    self.bound_at.entry(key.clone()).or_insert(self.now);
                }
                let partial = bound > 0 && bound < minimum && phase != Some(GangPhase::Scheduled);
                if !partial {
                    self.partial_since.remove(&key);
                    continue;
                }
                let since = *self.partial_since.entry(key).or_insert(self.now);
                // The time-out, the delay by lost writes, and the time until the pods are gone.
                let longest = gang.timeout + SignedDuration::from_secs(SLACK);
                assert!(
                    self.now.duration_since(since) <= longest,
                    "part of a gang holds nodes: {}",
                    self.describe()
                );
            }
        }
        self.partial_since.retain(|key, _| looked_at.contains(key));
        self.held_since.retain(|uid, _| held.contains(uid));
        for uid in held {
            let since = *self.held_since.entry(uid).or_insert(self.now);
            assert!(
                self.now.duration_since(since) <= SignedDuration::from_secs(SLACK),
                "a pod that should run has a gate: {}",
                self.describe()
            );
        }
    }

    /// No two bound pods of a replicatedJob do the same work.
    fn no_more_than_asked(&self, part: &Part) {
        let bound_pods = part
            .pods
            .iter()
            .filter(|pod| pod.node.is_some() && !pod.is_terminal());
        let mut bound: Vec<(u32, u32)> = bound_pods
            .map(|pod| (pod.job_index, pod.index.unwrap()))
            .collect();
        let count = u32::try_from(bound.len()).unwrap();
        assert!(
            count <= part.replicas * part.parallelism,
            "more pods of {} are bound than were asked for: {}",
            part.name,
            self.describe()
        );
        bound.sort_unstable();
        assert!(
            bound.windows(2).all(|pair| pair[0] != pair[1]),
            "two pods of {} do the same work: {}",
            part.name,
            self.describe()
        );
    }
}
