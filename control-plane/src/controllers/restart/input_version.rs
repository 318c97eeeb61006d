//! Tells if the API server's part of a group has to be read from the caches again. For thousands of
//! pods that takes milliseconds, and during a restart usually only the JobSet's status changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_api::JobSet;
use lockstep_core::restart::Durable;

/// Domains of the annotations that decisions depend on.
const DOMAINS: [&str; 3] = ["lockstep.dev/", "jobset.sigs.k8s.io/", "jobset.x-k8s.io/"];

/// The inputs of one observation of the API server.
pub(super) struct InputVersion {
    /// The version of the Jobs and pods.
    version: (u64, u64),
    jobset: Arc<JobSet>,
    /// The stages that have started, from the status.
    started: BTreeSet<String>,
}

impl InputVersion {
    /// The inputs at this version of the Jobs and pods. `durable` is the state in the JobSet's
    /// status.
    pub(super) fn new(version: (u64, u64), jobset: &Arc<JobSet>, durable: &Durable) -> Self {
        Self {
            version,
            jobset: Arc::clone(jobset),
            started: durable.started.clone(),
        }
    }

    /// True if another observation would be the same, apart from the durable state.
    pub(super) fn is_same(&self, now: &Self) -> bool {
        let gangs = |jobset: &JobSet| jobset.status.as_ref().map(|status| status.gangs.clone());
        let completed = |jobset: &JobSet| jobset.status.as_ref().map(|status| status.completed_jobs.clone());
        self.version == now.version
            && self.started == now.started
            && (Arc::ptr_eq(&self.jobset, &now.jobset)
                || self.jobset.spec == now.jobset.spec
                    && own(&self.jobset).eq(own(&now.jobset))
                    && self.jobset.metadata.labels == now.jobset.metadata.labels
                    && self.jobset.metadata.owner_references == now.jobset.metadata.owner_references
                    && self.jobset.restart_attempt() == now.jobset.restart_attempt()
                    && gangs(&self.jobset) == gangs(&now.jobset)
                    && completed(&self.jobset) == completed(&now.jobset))
    }
}

/// The annotations that decisions depend on: JobSet's and Lockstep's.
fn own(jobset: &JobSet) -> impl Iterator<Item = (&String, &String)> {
    let annotations = jobset.metadata.annotations.iter().flatten();
    annotations.filter(|(key, _)| DOMAINS.iter().any(|domain| key.contains(domain)))
}

#[cfg(test)]
mod tests {
    //! What an observation depends on, and what it does not.

    use serde_json::{Value, json};

    use super::super::convert::durable_of;
    use super::super::view::{View, view_of};
    use super::*;

    /// A JobSet with these fields added or replaced.
    fn jobset(change: &Value) -> Arc<JobSet> {
        let mut jobset = json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "js", "namespace": "default", "uid": "1", "resourceVersion": "1"},
            "spec": {
                "failurePolicy": {"maxRestarts": 3},
                "gang": {"minAvailable": 2},
                "replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": {
                    "parallelism": 2, "completions": 2, "completionMode": "Indexed",
                    "template": {"spec": {"containers": [{"name": "worker", "image": "i", "command": ["c"]}]}},
                }}}],
            },
            "status": {
                "restarts": 0,
                "gangs": [{"name": "js", "restartAttempt": 0, "phase": "Waiting", "minAvailable": 2}],
                "inPlaceRestart": {"phase": "InSync", "generation": 1, "released": 1, "started": []},
            },
        });
        json_patch::merge(&mut jobset, change);
        Arc::new(serde_json::from_value(jobset).unwrap())
    }

    fn basis(version: (u64, u64), jobset: &Arc<JobSet>) -> InputVersion {
        InputVersion::new(version, jobset, &durable_of(jobset.status.as_ref()))
    }

    fn view(jobset: &JobSet) -> View {
        view_of(jobset, Vec::new(), &[], &durable_of(jobset.status.as_ref()))
    }

    #[test]
    fn an_observation_is_kept_if_only_what_a_restart_writes_has_changed() {
        let changes = [
            json!({}),
            json!({"metadata": {"resourceVersion": "2", "managedFields": []}}),
            json!({"status": {"inPlaceRestart": {"phase": "Stopping", "generation": 2, "epoch": 7}}}),
            json!({"status": {"inPlaceRestart": {"phase": "InSync", "released": 2, "restarts": 1}}}),
            json!({"status": {"conditions": [{
                "type": "RestartingJobSet", "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]}}),
        ];
        for change in changes {
            let (before, after) = (jobset(&json!({})), jobset(&change));
            assert!(basis((1, 1), &before).is_same(&basis((1, 1), &after)), "{change}");
            assert_eq!(view(&before), view(&after), "{change}");
        }
    }

    #[test]
    fn an_observation_is_not_kept_if_a_new_one_would_differ() {
        let changes = [
            json!({"spec": {"suspend": true}}),
            json!({"spec": {"failurePolicy": {"maxRestarts": 4}}}),
            json!({"metadata": {"annotations": {"alpha.jobset.sigs.k8s.io/inplace-timeout": "7s"}}}),
            json!({"metadata": {"annotations": {"lockstep.dev/restart-request": "1"}}}),
            json!({"metadata": {"labels": {"a": "b"}}}),
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "2", "controller": true},
            ]}}),
            json!({"status": {"restarts": 1}}),
            json!({"status": {"gangs": [{"name": "js", "restartAttempt": 0, "phase": "Scheduled", "minAvailable": 2}]}}),
            json!({"status": {"inPlaceRestart": {"started": ["w"]}}}),
        ];
        let before = jobset(&json!({}));
        for change in changes {
            let after = jobset(&change);
            assert!(
                !basis((1, 1), &before).is_same(&basis((1, 1), &after)),
                "{change}"
            );
        }
        for version in [(2, 1), (1, 2)] {
            assert!(
                !basis((1, 1), &before).is_same(&basis(version, &before)),
                "{version:?}"
            );
        }
    }
}
