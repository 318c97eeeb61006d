//! Writes for gangs: `status.gangs`, the gates of pods, and PodGroups.

use std::sync::Arc;

use futures::{StreamExt, stream};
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::ObjectRef;
use lockstep_api::{GangStatus, JobSet, labels};
use lockstep_core::gang::{Announcement, GangEvent, GroupPolicy, PodGroupRef, PodRef, Write};
use lockstep_core::jobset::plan;
use serde_json::{Value, json};
use thiserror::Error;

use super::PodGroups;
use super::groups;
use super::lean_objects::SeenPod;
use super::metrics::GangMetrics;
use super::watch::Watched;
use crate::k8s::apply::events::{self, Queue};
use crate::k8s::apply::{error_message, is_status};
use crate::k8s::watch::Stores;
use crate::k8s::watch::lean::Lean;
use crate::telemetry::metrics::Metrics;

/// Pods of one gang that are written at the same time.
const AT_ONCE: usize = 50;

/// Why a write failed.
#[derive(Debug, Error)]
pub(super) enum GangWriteError {
    /// Another client wrote in between. A new decision is due.
    #[error("the JobSet has changed")]
    Conflict,
    /// The API server has dropped fields that it does not know.
    #[error("the API server drops status.gangs: install Lockstep's CustomResourceDefinition of JobSets")]
    Pruned,
    /// The API server did not answer, or refused the request.
    #[error("{what}: {}", error_message(error))]
    Api {
        /// The object to write.
        what: String,
        /// The API server's error.
        error: kube::Error,
    },
}

/// Writes to the API server.
pub(super) struct Writer {
    pub(super) client: Client,
    pub(super) stores: Stores,
    pub(super) watched: Watched,
    pub(super) pod_groups: PodGroups,
    pub(super) metrics: Arc<Metrics>,
    pub(super) gangs: GangMetrics,
    pub(super) queue: Queue,
}

impl Writer {
    /// Writes `status.gangs` on top of exactly `known`, then publishes events.
    ///
    /// # Errors
    /// [`GangWriteError`]. After a conflict `Stores` holds the current JobSet.
    pub(super) async fn write(&self, known: &JobSet, write: Write) -> Result<(), GangWriteError> {
        let api: Api<Lean<JobSet>> = Api::namespaced(self.client.clone(), known.ns());
        let what = || format!("status of JobSet {}/{}", known.ns(), known.name());
        let failed = |error| GangWriteError::Api { what: what(), error };
        self.metrics.wrote("JobSet", "status");
        let patch = status_patch(known, &write.gangs);
        let patched = api
            .patch_status(known.name(), &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        match patched {
            Ok(Lean(jobset)) => {
                self.stores.wrote_jobset(&jobset);
                let gangs = jobset.status.as_ref().map_or(0, |status| status.gangs.len());
                if gangs < write.gangs.len() {
                    return Err(GangWriteError::Pruned);
                }
                for announcement in &write.announcements {
                    self.announce(&jobset, announcement);
                }
                Ok(())
            }
            Err(error) if is_status(&error, 404) => Ok(()),
            Err(error) if is_status(&error, 409) => {
                if let Some(Lean(now)) = api.get_opt(known.name()).await.map_err(failed)? {
                    self.stores.wrote_jobset(&now);
                }
                Err(GangWriteError::Conflict)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Removes the gate from pods, wave by wave.
    ///
    /// # Errors
    /// The error of the first pod that keeps its gate. The other pods of its wave were tried, those
    /// of later waves were not.
    pub(super) async fn ungate(
        &self,
        jobset: &ObjectRef<JobSet>,
        waves: Vec<Vec<PodRef>>,
    ) -> Result<(), GangWriteError> {
        for wave in waves {
            self.ungate_wave(jobset, wave).await?;
        }
        Ok(())
    }

    async fn ungate_wave(&self, jobset: &ObjectRef<JobSet>, pods: Vec<PodRef>) -> Result<(), GangWriteError> {
        let namespace = jobset.namespace.as_deref().unwrap_or_default();
        let api: Api<SeenPod> = Api::namespaced(self.client.clone(), namespace);
        let api = &api;
        let mut all = stream::iter(pods)
            .map(|pod| async move {
                self.metrics.wrote("Pod", "patch");
                let patch = Patch::Strategic(gate_patch(&pod));
                (api.patch(&pod.name, &PatchParams::default(), &patch).await, pod)
            })
            .buffered(AT_ONCE);
        let mut result = Ok(());
        while let Some((patched, pod)) = all.next().await {
            match patched {
                Ok(seen) => self.watched.with(|cluster| cluster.wrote_pod(&seen)),
                // The pod is gone, and another one may have its name.
                Err(error) if is_status(&error, 404) || is_status(&error, 409) => {}
                Err(error) => {
                    let what = format!("gate of pod {namespace}/{}", pod.name);
                    result = result.and(Err(GangWriteError::Api { what, error }));
                }
            }
        }
        result
    }

    /// Deletes an earlier PodGroup.
    ///
    /// # Errors
    /// What the API server returns, except that it does not exist.
    pub(super) async fn discard(&self, jobset: &JobSet, name: &str) -> Result<(), GangWriteError> {
        let discarded = groups::discard(
            &self.client,
            &self.metrics,
            self.pod_groups.version(),
            jobset,
            name,
        )
        .await;
        discarded.map_err(|error| GangWriteError::Api {
            what: format!("PodGroup {}/{name}", jobset.ns()),
            error,
        })
    }

    /// Creates the PodGroup of a gang. Returns its policy, if it is known.
    ///
    /// # Errors
    /// What the API server returns, except that it exists already. If it seems not to serve
    /// PodGroups, [`PodGroups`] asks it again.
    pub(super) async fn make(
        &self,
        jobset: &JobSet,
        group: &PodGroupRef,
    ) -> Result<Option<GroupPolicy>, GangWriteError> {
        let made = groups::create(
            &self.client,
            &self.metrics,
            self.pod_groups.version(),
            jobset,
            group,
        )
        .await;
        if made.as_ref().is_err_and(|error| is_status(error, 404)) {
            self.pod_groups.doubt();
        }
        made.map_err(|error| GangWriteError::Api {
            what: format!("PodGroup {}/{}", jobset.ns(), group.name),
            error,
        })
    }

    fn announce(&self, jobset: &JobSet, announcement: &Announcement) {
        let Announcement {
            gang,
            backend,
            event,
            message,
        } = announcement;
        match event {
            GangEvent::Scheduled(took) => self.gangs.bound((*took).try_into().unwrap_or_default()),
            GangEvent::TimedOut => self.gangs.timed_out(),
            GangEvent::Waiting
            | GangEvent::Scheduling
            | GangEvent::NotUnderstood
            | GangEvent::Ungrouped
            | GangEvent::GroupLost => {}
        }
        let (reason, severity) = event.reason();
        tracing::info!(
            namespace = jobset.ns(),
            jobset = jobset.name(),
            gang,
            ?backend,
            reason,
            message
        );
        let event = plan::Event {
            severity,
            reason: reason.to_owned(),
            message: announcement.message_for(jobset),
        };
        self.queue.add(events::regarding(jobset), event);
    }
}

/// The merge patch of a JobSet's status. A list is replaced as a whole.
fn status_patch(known: &JobSet, gangs: &[GangStatus]) -> Value {
    json!({
        "metadata": {"uid": known.metadata.uid, "resourceVersion": known.metadata.resource_version},
        "status": {"gangs": gangs},
    })
}

/// The strategic merge patch of a pod. Gates are merged by name, so the patch changes nothing if
/// the gate is already gone.
fn gate_patch(pod: &PodRef) -> Value {
    json!({
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": labels::GANG_GATE}]},
    })
}
