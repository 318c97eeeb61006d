//! What a seed simulates: the JobSet, the cluster, and which faults may happen.

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

use crate::gangs::Room;
use crate::rng::Rng;
use crate::time::{SEC, Time};

/// Exit code that a podFailurePolicy of some scenarios fails the Job for.
pub(crate) const TERMINAL_CODE: i32 = 42;

/// Which faults a run has. What it must not do depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Only parts of Lockstep, the network and the API server fail: no worker process may ever be restarted.
    Calm,
    /// Only workers fail or hang, one after another, and nothing else: each costs one restart and two writes.
    Clean,
    /// Workers, containers, pods and nodes fail, and parts of Lockstep with them.
    Wild,
}

/// What else fails where a worker cannot be started again in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// Parts of Lockstep, the network and the API server.
    AndLockstep,
    /// Nothing.
    WorkerRestart,
}

/// Everything about a run that is settled before it begins.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) profile: Profile,
    pub(crate) nodes: usize,
    pub(crate) replicas: usize,
    pub(crate) jobset: JobSet,
    /// Whether the control plane replaces lost pods, and does not leave that to the Job controller.
    pub(crate) replaces_pods: bool,
    /// Whether requests to the API server are refused or lost now and then.
    pub(crate) bad_requests: bool,
    /// Whether the API server refuses at once while it is down, and somebody else writes the JobSet over and over now and then.
    pub(crate) harsh_api: bool,
    /// Whether streams lose, double and reorder messages while there are faults.
    pub(crate) bad_streams: bool,
    /// When the first fault happens, and when the last.
    pub(crate) faults: (Time, Time),
    /// Longest pause between two faults.
    pub(crate) pause: Time,
    /// How long the work of each replicatedJob takes, where it ever ends.
    pub(crate) work: BTreeMap<String, Time>,
    /// Percent of starts that fail by themselves within seconds.
    pub(crate) crash_percent: u64,
    /// Percent of starts that never give a first heartbeat.
    pub(crate) mute_percent: u64,
    /// Whether the JobSet is that of a RayCluster, whose workers may come late and go.
    pub(crate) elastic: bool,
    /// Where the JobSet is a gang, or several: how much room there is.
    pub(crate) gang: Option<Room>,
    /// Whether the workers have no agents: their containers are restarted.
    pub(crate) plain: bool,
    /// The replicatedJob whose pods a policy changes: they cannot have agents.
    pub(crate) changed: Option<String>,
    /// Whether a replicatedJob has `activeDeadlineSeconds`.
    pub(crate) time_limited: bool,
    /// Whether containerd makes no worker without its agent while the daemon is away.
    pub(crate) plugin_required: bool,
    /// Whether the daemons come when workers run already, without their agents.
    pub(crate) daemons_late: bool,
    /// Whether the agents of the first worker of each Job are none, and speak of leaders that nobody has had.
    pub(crate) liars: bool,
    /// Whether the daemon of a node that has no worker of the group lies.
    pub(crate) stranger: bool,
    /// Whether the API server's store goes back to a copy of before.
    pub(crate) restores: bool,
    /// Whether the steps of the leader's task take time.
    pub(crate) slow_steps: bool,
    /// The node whose daemon lies about its own workers.
    pub(crate) lies_of_own: Option<usize>,
    /// Whether the first worker of the first Job fails wherever it was started before: what it leaves behind in a pod stays there. Then but one worker fails
    /// without that.
    pub(crate) leftovers: Option<Leftovers>,
    /// Percent of processes that ignore SIGTERM, leave children behind, or take long to die.
    pub(crate) stubborn_percent: u64,
}

impl Scenario {
    /// The scenario of a seed.
    #[must_use]
    pub(crate) fn of(rng: &mut Rng) -> Self {
        let profile = match rng.below(10) {
            0..2 => Profile::Calm,
            2..4 => Profile::Clean,
            _ => Profile::Wild,
        };
        let wild = profile == Profile::Wild;
        let nodes = 1 + rng.index(3);
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
        let in_order =
            stages > 1 && rng.percent(20) && replicated_jobs.iter().all(|job| job.depends_on.is_empty());
        let max_restarts = [0, 1, 3, 6, 20, 20][rng.index(6)];
        let max_restarts = if profile == Profile::Clean {
            100
        } else {
            max_restarts
        };
        let timeout = [5, 10, 20, 60][rng.index(4)];
        let grace = ["0s", "500ms", "2s"][rng.index(3)];
        let max_backoff = ["0s", "4s", "60s"][rng.index(3)];
        let mut said = vec![
            (annotations::IN_PLACE_TIMEOUT, format!("{timeout}s")),
            (annotations::RESTART_GRACE, grace.to_owned()),
            (annotations::MAX_BACKOFF, max_backoff.to_owned()),
        ];
        if rng.percent(40) {
            let timeout = ["1s", "5s", "20s"][rng.index(3)];
            said.push((annotations::HEARTBEAT_TIMEOUT, timeout.to_owned()));
        }
        if wild && rng.percent(30) {
            let after = ["1/1m", "2/1m", "3/10m"][rng.index(3)];
            said.push((annotations::ESCALATE_AFTER, after.to_owned()));
        }
        let jobset = jobset(replicated_jobs, in_order, max_restarts, said);
        let first = rng.span(0, 15 * SEC);
        let first = if profile == Profile::Clean {
            first + 10 * SEC
        } else {
            first
        };
        let last = first + rng.span(5 * SEC, 90 * SEC);
        let pauses = [SEC, 5 * SEC, 20 * SEC];
        let pause = if profile == Profile::Clean {
            40 * SEC
        } else {
            pauses[rng.index(3)]
        };
        Self {
            profile,
            nodes,
            replicas: 2,
            jobset,
            replaces_pods: rng.percent(70),
            bad_requests: profile != Profile::Clean && rng.percent(50),
            bad_streams: profile != Profile::Clean && rng.percent(25),
            harsh_api: false,
            faults: (first, last),
            pause,
            work,
            mute_percent: 0,
            plain: false,
            changed: None,
            plugin_required: true,
            daemons_late: false,
            time_limited: false,
            elastic: false,
            gang: None,
            liars: false,
            stranger: false,
            lies_of_own: None,
            restores: false,
            slow_steps: false,
            leftovers: None,
            crash_percent: if wild && rng.percent(40) { 15 } else { 0 },
            stubborn_percent: if !wild || rng.percent(50) { 0 } else { 25 },
        }
    }
}

impl Scenario {
    /// What is drawn from the seed by itself.
    pub(crate) fn choose_all(&mut self, seed: u64) {
        self.choose_scopes(&mut Rng::new(!seed));
        self.choose_deadline(&mut Rng::new(seed.rotate_left(32) ^ 1));
        self.choose_kind(&mut Rng::new(seed.rotate_left(16) ^ 2));
        self.choose_optional(&mut Rng::new(seed.rotate_left(48) ^ 3));
        self.choose_gang(&mut Rng::new(seed.rotate_left(8) ^ 4));
        self.choose_plugin(&mut Rng::new(seed.rotate_left(24) ^ 5));
        self.choose_time_limit(&mut Rng::new(seed.rotate_left(40) ^ 6));
        self.choose_liars(&mut Rng::new(seed.rotate_left(56) ^ 7));
        self.choose_leftovers(&mut Rng::new(seed.rotate_left(12) ^ 8));
        self.choose_api(&mut Rng::new(seed.rotate_left(2) ^ 9));
        self.choose_stranger(&mut Rng::new(seed.rotate_left(36) ^ 10));
        self.choose_changed(&mut Rng::new(seed.rotate_left(20) ^ 11));
        self.choose_own_lies(&mut Rng::new(seed.rotate_left(44) ^ 12));
        self.choose_restore(&mut Rng::new(seed.rotate_left(28) ^ 13));
        self.choose_slow(&mut Rng::new(seed.rotate_left(52) ^ 14));
    }

    /// In a third of the scenarios at least one replicatedJob has workers that are restarted alone. `rng` is none that anything else is drawn
    /// from: the others stay what they are without that.
    pub(crate) fn choose_scopes(&mut self, rng: &mut Rng) {
        if !rng.percent(33) {
            return;
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        let first = rng.index(jobs.len());
        for (index, job) in jobs.iter_mut().enumerate() {
            if index == first || rng.percent(30) {
                restarts_workers(job);
            }
        }
    }

    /// In half of the scenarios with heartbeats workers have to be up in time, and some never are. `rng` as above.
    pub(crate) fn choose_deadline(&mut self, rng: &mut Rng) {
        let annotations = self.jobset.metadata.annotations.get_or_insert_default();
        let heartbeats = annotations.contains_key(annotations::HEARTBEAT_TIMEOUT);
        if !heartbeats || !rng.percent(50) {
            return;
        }
        let timeout = ["30s", "1m", "3m"][rng.index(3)];
        annotations.insert(annotations::READY_TIMEOUT.to_owned(), timeout.to_owned());
        if self.profile == Profile::Wild && rng.percent(50) {
            self.mute_percent = 10;
        }
    }

    /// In a sixth of the scenarios workers have no agents, and their containers are restarted. `rng` as above.
    pub(crate) fn choose_kind(&mut self, rng: &mut Rng) {
        if rng.below(6) > 0 {
            return;
        }
        self.plain = true;
        self.mute_percent = 0;
        let said = self.jobset.metadata.annotations.get_or_insert_default();
        said.insert(annotations::SUPERVISE.to_owned(), "none".to_owned());
        // Nobody is there to take heartbeats.
        said.remove(annotations::HEARTBEAT_TIMEOUT);
        said.remove(annotations::READY_TIMEOUT);
        if self.profile == Profile::Clean {
            // Longer than kubelet ever waits, so that nothing has to be made anew.
            said.insert(annotations::IN_PLACE_TIMEOUT.to_owned(), "10m".to_owned());
        }
        for job in &mut self.jobset.spec.replicated_jobs {
            let Some(spec) = &mut job.template.spec else {
                continue;
            };
            spec.pod_failure_policy = None;
            if let Some(pod) = &mut spec.template.spec {
                pod.restart_policy = Some("OnFailure".to_owned());
            }
        }
    }

    /// In a quarter of the scenarios containers are made without their agents while the daemon is away. In some of them it comes last of all, and
    /// workers fail for a while: little else does, which could lead to a restart too. `rng` as above.
    pub(crate) fn choose_plugin(&mut self, rng: &mut Rng) {
        self.plugin_required = self.plain || rng.below(4) > 0;
        if self.plugin_required || self.profile != Profile::Wild || !rng.percent(30) {
            return;
        }
        self.daemons_late = true;
        self.crash_percent = 40;
        let last = self.faults.0 + 5 * SEC;
        self.faults.1 = self.faults.1.min(last);
    }

    /// In a fifth of the scenarios some agents lie about epochs: nothing may come of it. `rng` as above.
    pub(crate) fn choose_liars(&mut self, rng: &mut Rng) {
        self.liars = rng.percent(20);
    }

    /// In an eighth of the scenarios in which everything fails, but for RayClusters and gangs, the Jobs of a replicatedJob may take only so long. `rng` as
    /// above.
    pub(crate) fn choose_time_limit(&mut self, rng: &mut Rng) {
        if rng.below(8) > 0 || self.profile != Profile::Wild || self.elastic || self.gang.is_some() {
            return;
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        let limited = rng.index(jobs.len());
        if let Some(spec) = &mut jobs[limited].template.spec {
            spec.active_deadline_seconds = i64::try_from(rng.span(15, 40)).ok();
            self.time_limited = true;
        }
    }

    /// In a fifth of the scenarios in which everything fails, but for RayClusters, gangs, Jobs whose time is limited, and workers without agents, one worker
    /// cannot be started again in its pod, and little else fails. `rng` as above.
    pub(crate) fn choose_leftovers(&mut self, rng: &mut Rng) {
        let other =
            self.elastic || self.gang.is_some() || self.time_limited || self.plain || self.daemons_late;
        if rng.below(5) > 0 || self.profile != Profile::Wild || other {
            return;
        }
        let worker_restarts = rng.percent(50);
        self.leftovers = Some(if worker_restarts {
            Leftovers::WorkerRestart
        } else {
            Leftovers::AndLockstep
        });
        self.crash_percent = 0;
        self.mute_percent = 0;
        self.plugin_required = true;
        if worker_restarts {
            self.bad_requests = false;
            self.bad_streams = false;
            self.stubborn_percent = 0;
        }
        if let Some(policy) = &mut self.jobset.spec.failure_policy {
            policy.max_restarts = Some([1, 2, 4][rng.index(3)]);
        }
        for job in &mut self.jobset.spec.replicated_jobs {
            if let Some(spec) = &mut job.template.spec {
                spec.pod_failure_policy = None;
            }
        }
    }

    /// In a seventh of the scenarios the daemon of a node without any worker of the group lies: nothing may come of it. `rng` as above.
    pub(crate) fn choose_stranger(&mut self, rng: &mut Rng) {
        self.stranger = rng.below(7) == 0;
    }

    /// In a sixth of the scenarios in which parts of Lockstep fail, the API server refuses at once what it cannot do, and others write as often as Lockstep. `rng`
    /// as above.
    pub(crate) fn choose_api(&mut self, rng: &mut Rng) {
        let may = self.profile != Profile::Clean && self.leftovers != Some(Leftovers::WorkerRestart);
        self.harsh_api = rng.below(6) == 0 && may;
    }

    /// Whether a container may be made without its agent by what happens to workers and daemons, and not because these come late.
    pub(crate) fn agents_may_miss(&self) -> bool {
        self.profile == Profile::Wild && !self.plugin_required && !self.daemons_late
    }

    /// How long a worker that was started may take until it gives its first heartbeat.
    pub(crate) fn ready_timeout(&self) -> Option<Time> {
        let timeout = self.jobset.ready_timeout().ok().flatten()?;
        u64::try_from(timeout.as_nanos()).ok()
    }
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

fn restarts_workers(job: &mut ReplicatedJob) {
    let metadata = job.template.metadata.get_or_insert_default();
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::RESTART_SCOPE.to_owned(), "worker".to_owned());
}

fn jobset(
    replicated_jobs: Vec<ReplicatedJob>,
    in_order: bool,
    max_restarts: i32,
    said: Vec<(&str, String)>,
) -> JobSet {
    JobSet {
        metadata: ObjectMeta {
            name: Some("js".to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some("js-0".to_owned()),
            annotations: Some(
                said.into_iter()
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
