//! Deliberately broken variants of the restart protocol. A test shows that the simulation finds each of them (`docs/simulation.md`).
//!
//! Only a build with debug assertions has them, and only a thread that calls [`select`] runs one. Every
//! such build has the same code, so that tests and the programs that they start are compiled once.

macro_rules! mutants {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A broken variant.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[$doc])* $name,)*
        }

        impl Mutant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];
        }
    };
}

mutants! {
    /// Coordinator: workers are released before the new generation is durable.
    SkipWriteAhead,
    /// Coordinator: failures are counted that a pending stop covers.
    CountStaleFailures,
    /// Coordinator: a worker out of sight is taken for lost.
    UnlinkedIsLost,
    /// Coordinator: new workers are released while pods of before the recreation live.
    ReleaseBesideOldPods,
    /// Coordinator: the first parked worker opens the barrier for all.
    ReleaseBeforeAllParked,
    /// Coordinator: done workers are forgotten.
    ForgetDoneWorkers,
    /// Coordinator: a new leader counts the restart that it finds under way.
    RecountOnTakeover,
    /// Coordinator: nothing ever takes too long.
    IgnoreDeadline,
    /// Coordinator: a new leader waits for no daemon and no pod.
    DecideBeforeReports,
    /// Coordinator: `maxRestarts` is no limit.
    IgnoreMaxRestarts,
    /// Coordinator: restarts that are asked for are counted.
    CountRequests,
    /// Coordinator: stages count as started after their Jobs were made anew.
    KeepStartedOnRecreation,
    /// Coordinator: what workers know of and the status does not is ignored.
    IgnoreReportedGeneration,
    /// Coordinator: a worker out of sight counts as started.
    StartedUnseen,
    /// Coordinator: a Job that is away leaves nobody to wait for.
    ForgetDeletedJobs,
    /// Coordinator: a resumed group releases at once.
    ResumeWithoutBarrier,
    /// Coordinator: running pods that nobody reports are not waited for.
    IgnoreUnseenPods,
    /// Coordinator: a worker that is restarted alone takes the others with it.
    StopPeersToo,
    /// Coordinator: a request that names some workers restarts others as well.
    WidenRequest,
    /// Coordinator: a new leader does not know whom its predecessor restarts alone.
    ForgetWorkerRestarts,
    /// Coordinator: a worker that has not come up in time is waited for without end.
    NeverLate,
    /// Coordinator: a pod that is lost while its next container is waited for is a failure.
    CountAwaited,
    /// Coordinator: workers that may come late are waited for like others.
    OptionalAreExpected,
    /// Coordinator: workers start before the minimum of their gang is bound.
    StartPartOfGang,
    /// Coordinator: pods that go while their Job is over its time have failed by themselves.
    CountEndedPods,
    /// Coordinator: that a container without its agent fails concerns nobody.
    IgnoreUnsupervisedFailure,
    /// Coordinator: the end of a restart waits for workers of stages that have never started.
    WaitForUnstarted,
    /// Coordinator: a restart that makes anew what a restart in place leaves behind is counted.
    CountWhatOutlives,
    /// Coordinator: who fails soon after a restart in place is restarted in place again.
    NeverClimb,
    /// Coordinator: the JobSet fails without its Jobs having been made anew.
    FailInPlace,
    /// Coordinator: a worker that nobody starts at a release is restarted in place with the others.
    RestartWhatStaysDown,
    /// Coordinator: to a new leader what kubelet has started tells of a release.
    BelieveKubelet,
    /// Coordinator: nothing that a node says of generations and counters is impossible.
    BelieveImpossible,
    /// Control plane: what the API server has refused is asked for again at once.
    RetryAtOnce,
    /// Control plane: that the API server has gone back to an older state is no reason to begin anew.
    IgnoreFall,
    /// Control plane: a node is believed what it says of pods that are bound to others.
    BelieveAnyNode,
    /// Gangs: optional workers are let go before the minimum is bound.
    OptionalGoFirst,
    /// Gangs: optional workers count to the minimum.
    OptionalCount,
    /// Gangs: pods are let go before that is durable.
    LetGoUnwritten,
    /// Gangs: what was not bound in time is not given back.
    KeepWhatTimedOut,
    /// Control plane: that a daemon is gone is no news to the groups of its workers.
    MissUnlinked,
    /// Agent: an incarnation that has exited starts again at the release of the same generation.
    ReleaseTwice,
    /// Agent: a worker counts as stopped while its children still run.
    ParkBesideChildren,
    /// Agent: a first start needs no release that names the incarnation.
    StartUnnamed,
    /// Daemon: an agent that cannot be reached is reported as lost.
    LinkDownIsLost,
    /// Daemon: the snapshot of a new stream is empty.
    EmptySnapshot,
    /// Daemon: what the daemon before has written down of containers without agents is forgotten.
    ForgetRecords,
    /// Daemon: the container after one that was stopped is of the same generation.
    FollowersAreOld,
    /// Daemon: workers without their agents are stopped although their group runs.
    StopWithoutRestart,
    /// Daemon: the end of a container is left to its successor to tell, which has no agent that could.
    AwaitMissingAgent,
    /// Daemon: an epoch that an agent names is passed on.
    BelieveAgentsEpoch,
    /// Daemon: whom it has obeyed is forgotten with its process.
    ForgetFormerLeaders,
    /// Daemon: what was started after an agent has asked for help is killed too.
    KillUnfenced,
}

#[cfg(debug_assertions)]
thread_local! {
    static SELECTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Whether this thread runs this variant. Without debug assertions: never, and the compiler leaves
/// nothing of it.
#[must_use]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    #[cfg(debug_assertions)]
    return SELECTED.get() == Some(mutant);
    #[cfg(not(debug_assertions))]
    {
        let _ = mutant;
        false
    }
}

/// From now on this thread runs this variant, or the right one.
#[cfg(debug_assertions)]
pub fn select(mutant: Option<Mutant>) {
    SELECTED.set(mutant);
}
