//! The demo: what it creates, what it needs, and what a restart left in place.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::check::{Crd, Fetched, holder};
use super::pods;
use super::status::View;

#[cfg(test)]
mod tests;

/// Command of a worker. Its work is a process that sleeps for an hour, and whose ID is in a file.
/// The worker exits when that process does, with its exit code.
const WORK: &str =
    "echo \"attempt ${LOCKSTEP_RESTART_ATTEMPT:-0}\"; sleep 3600 & echo $! > /demo/work; wait $!; exit $?";
/// Command that kills the work of a worker, run in its container.
pub(crate) const KILL: [&str; 3] = [
    "/bin/sh",
    "-c",
    "for look in 1 2 3 4 5 6 7 8 9 10; do [ -s /demo/work ] && break; sleep 0.5; done; kill -9 \"$(cat /demo/work)\"",
];
/// Name of the container.
pub(crate) const CONTAINER: &str = "worker";

/// The parts of the installation that the demo needs.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) now: Timestamp,
    /// Namespace in which Lockstep should be installed.
    pub(crate) namespace: String,
    pub(crate) jobset_crd: Fetched<Option<Crd>>,
    pub(crate) lease: Fetched<Option<Lease>>,
    pub(crate) daemons: Fetched<Vec<Pod>>,
}

/// Why the demo cannot run on this cluster, and what to do. A part that cannot be read is ignored.
pub(crate) fn refusal(seen: &Installed) -> Option<String> {
    let namespace = &seen.namespace;
    let install = "install it (helm install lockstep charts/lockstep --namespace lockstep-system), or name its namespace with --system-namespace";
    match &seen.jobset_crd {
        Ok(None) => {
            return Some(format!(
                "Lockstep is not installed: this cluster has no CRD of JobSets. Please {install}"
            ));
        }
        Ok(Some(crd)) if !crd.keeps_in_place => {
            return Some(
                "the CRD of JobSets is not Lockstep's, so nothing restarts in place: docs/migrate.md says how to migrate"
                    .to_owned(),
            );
        }
        _ => {}
    }
    match &seen.lease {
        Ok(None) => {
            return Some(format!(
                "Lockstep is not installed in namespace {namespace}: no control plane has ever led there. Please {install}"
            ));
        }
        Ok(Some(lease)) if !leads(lease, seen.now) => {
            return Some(format!(
                "no control plane leads in namespace {namespace}, so nothing would restart: `kubectl lockstep check` says why"
            ));
        }
        _ => {}
    }
    match &seen.daemons {
        Ok(daemons) if !daemons.iter().any(pods::is_ready) => Some(format!(
            "no node daemon in namespace {namespace} is ready, so nothing restarts in place: `kubectl lockstep nodes` shows them"
        )),
        _ => None,
    }
}

/// True if the Lease has a holder that renewed it in time.
fn leads(lease: &Lease, now: Timestamp) -> bool {
    let spec = lease.spec.as_ref();
    let lasts = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(15);
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    holder(lease).is_some()
        && renewed
            .is_some_and(|renewed| now.duration_since(renewed) <= SignedDuration::from_secs(i64::from(lasts)))
}

/// A JobSet with this many workers in one Job. It runs on any cluster: without root, and with
/// hardly any CPU.
pub(crate) fn manifest(name: &str, image: &str, workers: u32) -> Value {
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "lockstep-demo"}},
        "spec": {
            "ttlSecondsAfterFinished": 0,
            "failurePolicy": {"restartStrategy": "InPlaceRestart", "maxRestarts": 3},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": {
                "parallelism": workers, "completions": workers,
                "template": {"spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": false,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65534, "runAsGroup": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": CONTAINER, "image": image,
                        "command": ["/bin/sh", "-c", WORK],
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "demo", "mountPath": "/demo"}],
                    }],
                    "volumes": [{"name": "demo", "emptyDir": {}}],
                }},
            }}}],
        },
    })
}

/// The number of workers that are up.
pub(crate) fn up(view: &View) -> usize {
    let jobs = view.replicated_jobs.iter().flat_map(|job| &job.jobs);
    jobs.map(|job| job.workers_up).sum()
}

/// True if this many workers run, at this restart attempt or a later one, and no restart is under
/// way.
pub(crate) fn is_steady(view: &View, workers: u32, generation: i64) -> bool {
    view.phase == "InSync"
        && view.generation >= generation
        && view.released >= view.generation
        && usize::try_from(workers).is_ok_and(|workers| up(view) == workers)
}

/// Why pods do not start, if one of them says so: such as an image that cannot be pulled.
pub(crate) fn trouble(seen: &[Pod]) -> Option<String> {
    let of_pod = |pod: &Pod| {
        let state = pods::state(pod);
        let begins = ["Pending", "ContainerCreating", "PodInitializing"].contains(&state.as_str());
        (!begins && !pods::is_well(&state)).then(|| format!("pod {} is {state}", pod.name_any()))
    };
    seen.iter().find_map(of_pod)
}

/// The container restarts of each pod, by its UID. A restart in place changes neither.
pub(crate) type ContainerRestarts = BTreeMap<String, i32>;

/// The container restarts of these pods.
pub(crate) fn container_restarts(seen: &[Pod]) -> ContainerRestarts {
    seen.iter()
        .filter_map(|pod| Some((pod.uid()?, pods::restarts(pod))))
        .collect()
}

/// How many pods and containers a restart left in place, in words.
pub(crate) fn kept(before: &ContainerRestarts, after: &ContainerRestarts) -> String {
    let pods = before.keys().filter(|uid| after.contains_key(*uid)).count();
    let same = |(uid, restarts): &(&String, &i32)| after.get(*uid) == Some(restarts);
    let containers = before.iter().filter(same).count();
    let all = before.len();
    match (pods, containers) {
        (pods, containers) if pods == all && containers == all => {
            format!("in the same {all} pods and containers")
        }
        (pods, containers) => {
            format!("{pods} of {all} in the same pod, {containers} of {all} in the same container")
        }
    }
}
