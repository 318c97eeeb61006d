//! The workers of one Job.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use lockstep_proto::platform::v1 as pb;

use super::{Observed, Standbys, Starts, Worker, camel};
use crate::view::{pods, time};

/// The workers that the platform API reports for a Job; without any, one for each pod that the Job
/// should have.
pub(super) fn workers(seen: &Observed, job: &Job, name: &str) -> Vec<Worker> {
    let pods = newest_pods(seen, name);
    let live: Vec<&pb::Worker> = seen
        .group
        .iter()
        .flat_map(|group| &group.workers)
        .filter(|worker| {
            worker
                .identity
                .as_ref()
                .is_some_and(|identity| identity.job == name)
        })
        .collect();
    if live.is_empty() {
        return from_pods(job, &pods);
    }
    let generation = seen.group.as_ref().map_or(0, |group| group.generation);
    live.into_iter()
        .map(|worker| from_agent(worker, generation, &pods))
        .collect()
}

type Pods<'s> = BTreeMap<u32, &'s Pod>;

/// The pod of each index: a live one if possible, and the newest.
fn newest_pods<'s>(seen: &'s Observed, job: &str) -> Pods<'s> {
    let mut newest = Pods::new();
    for pod in seen.pods.iter().filter(|pod| pods::job(pod) == Some(job)) {
        let Some(index) = pods::index(pod) else { continue };
        let known = newest.entry(index).or_insert(pod);
        if pods::freshness(pod) > pods::freshness(known) {
            *known = pod;
        }
    }
    newest
}

fn from_agent(worker: &pb::Worker, generation: u64, pods: &Pods<'_>) -> Worker {
    let identity = worker.identity.clone().unwrap_or_default();
    let pod = pods.get(&identity.completion_index);
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let phase = worker.phase();
    // The worker has not reported: its pod may say why.
    let unheard = matches!(
        phase,
        pb::WorkerPhase::Pending | pb::WorkerPhase::Unspecified | pb::WorkerPhase::Lost
    );
    let of_pod = pod.map(|pod| pods::state(pod)).filter(|_| unheard);
    let (state, source) = match of_pod.filter(|state| !pods::is_well(state)) {
        Some(state) => (state, "pod"),
        None => (camel(phase.as_str_name(), "WORKER_PHASE_"), "agent"),
    };
    Worker {
        index: identity.completion_index,
        container: text(&identity.container),
        state,
        up: match phase {
            pb::WorkerPhase::Running => worker.generation >= generation,
            phase => phase == pb::WorkerPhase::Done,
        },
        source,
        generation: Some(worker.generation).filter(|_| !unheard),
        since: time::from_nanos(worker.since_unix_nanos),
        pod: text(&worker.pod),
        node: text(&worker.node),
        starts: worker.starts.as_ref().map(|starts| Starts {
            standby: starts.standby,
            cold: starts.cold,
            ahead_ms: starts.ahead_ms,
        }),
        standbys: worker.standbys.as_ref().map(|standbys| Standbys {
            wanted: standbys.wanted,
            ready: standbys.ready,
            memory_kib: standbys.memory_kib,
            modules: standbys.modules,
            reason: text(&standbys.reason),
        }),
        step: worker.step,
        section: text(&worker.section),
    }
}

fn from_pods(job: &Job, pods: &Pods<'_>) -> Vec<Worker> {
    let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
    let expected = if suspended { 0 } else { expected(job) };
    let last = pods.keys().next_back().map_or(0, |index| index + 1);
    let worker = |index| {
        let Some(pod) = pods.get(&index) else {
            return Worker {
                index,
                container: None,
                state: "NoPod".to_owned(),
                up: false,
                source: "pod",
                generation: None,
                since: None,
                pod: None,
                node: None,
                starts: None,
                standbys: None,
                step: None,
                section: None,
            };
        };
        let state = pods::state(pod);
        let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        Worker {
            index,
            container: None,
            up: pods::is_well(&state),
            state,
            source: "pod",
            generation: None,
            since: started.map(|time| time.0),
            pod: pod.metadata.name.clone(),
            node: pods::node(pod).map(str::to_owned),
            starts: None,
            standbys: None,
            step: None,
            section: None,
        }
    };
    (0..expected.max(last)).map(worker).collect()
}

/// How many pods the Job runs at once.
fn expected(job: &Job) -> u32 {
    let spec = job.spec.as_ref();
    let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
    let completions = spec.and_then(|spec| spec.completions).unwrap_or(parallelism);
    u32::try_from(parallelism.min(completions)).unwrap_or(0)
}
