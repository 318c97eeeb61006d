//! The JobSet of a scenario.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    JobSpec, JobTemplateSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{
    DependsOn, FailurePolicy, JobSet, JobSetSpec, Network, ReplicatedJob, RestartStrategy, StartupPolicy,
    StartupPolicyOrder, annotations,
};

use super::{Profile, TERMINAL_CODE};
use crate::rng::Rng;
use crate::time::{SEC, Time};

/// The JobSet of a seed, and how long the work of each replicatedJob takes. Work without an entry
/// never ends.
pub(super) fn drawn(rng: &mut Rng, profile: Profile) -> (JobSet, BTreeMap<String, Time>) {
    let (replicated_jobs, work) = drawn_jobs(rng, profile);
    let in_order = replicated_jobs.len() > 1
        && rng.percent(20)
        && replicated_jobs.iter().all(|job| job.depends_on.is_empty());
    let max_restarts = [0, 1, 3, 6, 20, 20][rng.index(6)];
    let max_restarts = if profile == Profile::Clean {
        100
    } else {
        max_restarts
    };
    let timeout = [5, 10, 20, 60][rng.index(4)];
    let grace = ["0s", "500ms", "2s"][rng.index(3)];
    let max_backoff = ["0s", "4s", "60s"][rng.index(3)];
    let mut settings = vec![
        (annotations::IN_PLACE_TIMEOUT, format!("{timeout}s")),
        (annotations::RESTART_GRACE, grace.to_owned()),
        (annotations::MAX_BACKOFF, max_backoff.to_owned()),
    ];
    if rng.percent(40) {
        let timeout = ["1s", "5s", "20s"][rng.index(3)];
        settings.push((annotations::HEARTBEAT_TIMEOUT, timeout.to_owned()));
    }
    if profile == Profile::Wild && rng.percent(30) {
        let after = ["1/1m", "2/1m", "3/10m"][rng.index(3)];
        settings.push((annotations::ESCALATE_AFTER, after.to_owned()));
    }
    (jobset(replicated_jobs, in_order, max_restarts, settings), work)
}

fn drawn_jobs(rng: &mut Rng, profile: Profile) -> (Vec<ReplicatedJob>, BTreeMap<String, Time>) {
    let wild = profile == Profile::Wild;
    let never = rng.percent(30);
    let terminal = wild && never && rng.percent(40);
    let mut replicated_jobs = Vec::new();
    let mut work = BTreeMap::new();
    let stages = 1 + rng.index(3).min(rng.index(3));
    let ends = profile != Profile::Clean && rng.percent(30);
    for stage in 0..stages {
        let name = ["driver", "workers", "extras"][stage].to_owned();
        let (replicas, width) = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)][rng.index(5)];
        let depends_on = (stage > 0 && rng.percent(40)).then(|| {
            let complete = ends && rng.percent(40);
            let on = ["driver", "workers", "extras"][rng.index(stage)].to_owned();
            (on, complete)
        });
        if let Some((on, true)) = &depends_on {
            work.entry(on.clone()).or_insert(rng.span(5 * SEC, 40 * SEC));
        }
        if ends && rng.percent(70) {
            work.entry(name.clone()).or_insert(rng.span(5 * SEC, 90 * SEC));
        }
        replicated_jobs.push(replicated_job(
            name,
            (replicas, width),
            depends_on,
            (never, terminal),
        ));
    }
    (replicated_jobs, work)
}

fn replicated_job(
    name: String,
    (replicas, width): (i32, i32),
    depends_on: Option<(String, bool)>,
    (never, terminal): (bool, bool),
) -> ReplicatedJob {
    let pod = PodSpec {
        containers: vec![Container {
            name: "worker".to_owned(),
            ..Container::default()
        }],
        restart_policy: Some(if never { "Never" } else { "OnFailure" }.to_owned()),
        ..PodSpec::default()
    };
    let rule = PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            operator: "In".to_owned(),
            values: vec![TERMINAL_CODE],
            container_name: None,
        }),
        ..PodFailurePolicyRule::default()
    };
    ReplicatedJob {
        name,
        replicas: Some(replicas),
        template: JobTemplateSpec {
            metadata: None,
            spec: Some(JobSpec {
                parallelism: Some(width),
                completions: Some(width),
                completion_mode: Some("Indexed".to_owned()),
                pod_failure_policy: terminal.then(|| PodFailurePolicy { rules: vec![rule] }),
                template: PodTemplateSpec {
                    metadata: None,
                    spec: Some(pod),
                },
                ..JobSpec::default()
            }),
        },
        depends_on: depends_on
            .map(|(name, complete)| DependsOn {
                name,
                status: if complete { "Complete" } else { "Ready" }.into(),
            })
            .into_iter()
            .collect(),
        ..ReplicatedJob::default()
    }
}

fn jobset(
    replicated_jobs: Vec<ReplicatedJob>,
    in_order: bool,
    max_restarts: i32,
    settings: Vec<(&str, String)>,
) -> JobSet {
    JobSet {
        metadata: ObjectMeta {
            name: Some("js".to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some("js-0".to_owned()),
            annotations: Some(
                settings
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect(),
            ),
            ..ObjectMeta::default()
        },
        spec: JobSetSpec {
            replicated_jobs,
            network: Some(Network {
                enable_dns_hostnames: Some(false),
                ..Network::default()
            }),
            startup_policy: in_order.then_some(StartupPolicy {
                startup_policy_order: StartupPolicyOrder::InOrder,
            }),
            failure_policy: Some(FailurePolicy {
                max_restarts: Some(max_restarts),
                restart_strategy: Some(RestartStrategy::InPlaceRestart),
                rules: Vec::new(),
            }),
            ..JobSetSpec::default()
        },
        status: None,
    }
}
