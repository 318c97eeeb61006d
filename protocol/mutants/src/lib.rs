//! Deliberately broken variants of the restart protocol. A test shows that the simulation finds each
//! of them (`docs/simulation.md`).
//!
//! Code asks for a variant by the macro [`mutant`] only. With debug assertions it reads the choice
//! of this thread, which only [`select`] makes. Without them this crate holds nothing but the macro:
//! `mutant!(X)` is the constant `false`, and `mutant!(X => value)` is no code at all. So a release
//! cannot run a variant, nor does it know the name of one.
//!
//! Debug assertions decide, and no feature: tests and the programs that they start then share one
//! build.

/// Asks whether this thread runs a variant, in one of two forms.
///
/// As the first statement of a function or closure, it returns this value if the variant runs:
///
/// ```ignore
/// fn is_durable(&self) -> bool {
///     mutant!(SkipWriteAhead => true);
///     self.written >= self.generation
/// }
/// ```
///
/// As an expression, `mutant!(SkipWriteAhead)`, it is a `bool`.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::is($crate::Mutant::$name)
    };
    ($name:ident => $value:expr) => {
        if $crate::is($crate::Mutant::$name) {
            return $value;
        }
    };
}

/// Asks whether this thread runs a variant. Without debug assertions none runs.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
    ($name:ident => $value:expr) => {};
}

#[cfg(debug_assertions)]
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

#[cfg(debug_assertions)]
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

/// True if this thread runs this variant. [`mutant`] is how to ask.
#[doc(hidden)]
#[cfg(debug_assertions)]
#[must_use]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    SELECTED.get() == Some(mutant)
}

/// Makes this thread run this variant from now on, or none.
#[cfg(debug_assertions)]
pub fn select(mutant: Option<Mutant>) {
    SELECTED.set(mutant);
}
