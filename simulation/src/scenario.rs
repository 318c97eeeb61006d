//! What a seed simulates: the JobSet, the cluster, and possible faults.

mod choices;
mod jobset;

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::JobSet;

use crate::rng::Rng;
use crate::time::{SEC, Time};

/// The exit code for which a `podFailurePolicy` of some scenarios fails the Job.
pub(crate) const TERMINAL_CODE: i32 = 42;

/// Which faults a run has. Some invariants depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Only parts of Lockstep, the network and the API server fail: no worker process may ever be
    /// restarted.
    Calm,
    /// Only workers fail or hang, one after another: each failure costs one restart and two writes.
    Clean,
    /// Workers, containers, pods and nodes fail, and parts of Lockstep with them.
    Wild,
}

/// What else fails in a scenario with leftovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// Parts of Lockstep, the network and the API server.
    AndLockstep,
    /// Nothing.
    WorkerRestart,
}

/// The room for the pods of a gang.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    /// Number of pods that fit on an empty node: all of the JobSet.
    pub(crate) of_node: u64,
    /// At the end there is room only for the minimum.
    pub(crate) short: bool,
}

/// All that is fixed before a run begins.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) profile: Profile,
    pub(crate) nodes: usize,
    pub(crate) replicas: usize,
    pub(crate) jobset: JobSet,
    /// The control plane replaces lost pods itself, and does not leave that to the Job controller.
    pub(crate) replaces_pods: bool,
    /// Some requests to the API server are refused or lost.
    pub(crate) bad_requests: bool,
    /// The API server refuses at once while it is down, and at times another client writes the
    /// JobSet over and over.
    pub(crate) harsh_api: bool,
    /// Streams lose, duplicate and reorder messages while there are faults.
    pub(crate) bad_streams: bool,
    /// When the first and the last fault happen.
    pub(crate) faults: (Time, Time),
    /// The longest pause between two faults.
    pub(crate) pause: Time,
    /// How long the work of each replicatedJob takes. Work without an entry never ends.
    pub(crate) work: BTreeMap<String, Time>,
    /// Percent of starts that fail by themselves within seconds.
    pub(crate) crash_percent: u64,
    /// Percent of starts that never give a first heartbeat.
    pub(crate) mute_percent: u64,
    /// The JobSet is that of a RayCluster, whose workers may come late and go.
    pub(crate) elastic: bool,
    /// The room on nodes, if the JobSet has gangs.
    pub(crate) gang: Option<Room>,
    /// The workers have no agents, so their containers are restarted.
    pub(crate) plain: bool,
    /// The replicatedJob whose pods a policy changes, so that they cannot have agents.
    pub(crate) changed: Option<String>,
    /// A replicatedJob has `activeDeadlineSeconds`.
    pub(crate) time_limited: bool,
    /// containerd creates no worker without its agent while the daemon is away.
    pub(crate) plugin_required: bool,
    /// The daemons start when workers already run without their agents.
    pub(crate) daemons_late: bool,
    /// The agent of the first worker of each Job lies: it reports epochs that no leader ever had.
    pub(crate) liars: bool,
    /// The daemon of a node without any worker of the group lies.
    pub(crate) stranger: bool,
    /// The API server's store is restored from an earlier copy.
    pub(crate) restores: bool,
    /// Steps of the group's task take time.
    pub(crate) slow_steps: bool,
    /// The node whose daemon lies about its own workers.
    pub(crate) lies_of_own: Option<usize>,
    /// The first worker of the first Job leaves something behind, and fails in every pod in which
    /// it was started before. Apart from that, only one worker fails.
    pub(crate) leftovers: Option<Leftovers>,
    /// Percent of processes that ignore SIGTERM, leave children behind, or are slow to die.
    pub(crate) stubborn_percent: u64,
    /// The replicatedJobs whose workers have standbys.
    pub(crate) standbys: BTreeSet<String>,
    /// The replicatedJobs whose workers are launchers, and how many ranks each of these starts.
    pub(crate) ranks: BTreeMap<String, u8>,
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
        let (jobset, work) = jobset::drawn(rng, profile);
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
            standbys: BTreeSet::new(),
            ranks: BTreeMap::new(),
        }
    }

    /// Makes the choices that have random numbers of their own.
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
        self.choose_standbys(&mut Rng::new(seed.rotate_left(4) ^ 15));
        self.choose_ranks(&mut Rng::new(seed.rotate_left(60) ^ 16));
    }

    /// True if some workers have standbys, or their ranks do.
    pub(crate) fn has_standbys(&self) -> bool {
        !self.standbys.is_empty() || !self.ranks.is_empty()
    }

    /// True if faults may cause a container to be created without its agent. False if the daemons
    /// start late anyway.
    pub(crate) fn agents_may_miss(&self) -> bool {
        self.profile == Profile::Wild && !self.plugin_required && !self.daemons_late
    }

    /// How long a worker may take from its start to its first heartbeat.
    pub(crate) fn ready_timeout(&self) -> Option<Time> {
        let timeout = self.jobset.ready_timeout().ok().flatten()?;
        u64::try_from(timeout.as_nanos()).ok()
    }
}
