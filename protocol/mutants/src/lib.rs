//! Deliberately broken variants of the restart protocol. A test shows that the simulation finds
//! each of them (`docs/simulation.md`).
//!
//! Code asks for a variant by the macro [`mutant`] only. With debug assertions it reads the choice
//! of this thread, which only [`select`] makes. Without them this crate holds nothing but the
//! macro: `mutant!(X)` is the constant `false`, and `mutant!(X => value)` is no code at all. So a
//! release build cannot run a variant, and does not even contain its name.
//!
//! The switch is debug assertions and not a feature, so that tests and the programs that they start
//! share one build.

/// Checks if this thread runs a variant, in one of two forms.
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
/// If the function returns no value: `mutant!(MissUnlinked => return)`.
///
/// As an expression, `mutant!(SkipWriteAhead)`, it is a `bool`.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::is($crate::Mutant::$name)
    };
    ($name:ident => return) => {
        if $crate::is($crate::Mutant::$name) {
            return;
        }
    };
    ($name:ident => $value:expr) => {
        if $crate::is($crate::Mutant::$name) {
            return $value;
        }
    };
}

/// Checks if this thread runs a variant. Without debug assertions none runs.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
    ($name:ident => return) => {};
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
    /// Coordinator: failures that a pending stop already covers are counted.
    CountStaleFailures,
    /// Coordinator: an unlinked worker counts as lost.
    UnlinkedIsLost,
    /// Coordinator: new workers are released while pods from before the recreation live.
    ReleaseBesideOldPods,
    /// Coordinator: the first parked worker opens the barrier for all.
    ReleaseBeforeAllParked,
    /// Coordinator: done workers are forgotten.
    ForgetDoneWorkers,
    /// Coordinator: a new leader counts the restart that it finds in progress.
    RecountOnTakeover,
    /// Coordinator: no step ever times out.
    IgnoreDeadline,
    /// Coordinator: a new leader waits for no daemon and no pod.
    DecideBeforeReports,
    /// Coordinator: `maxRestarts` is no limit.
    IgnoreMaxRestarts,
    /// Coordinator: requested restarts are counted.
    CountRequests,
    /// Coordinator: replicatedJobs count as started after their Jobs were recreated.
    KeepStartedOnRecreation,
    /// Coordinator: a new leader ignores what workers know and the status does not.
    IgnoreReportedGeneration,
    /// Coordinator: an unlinked worker counts as started.
    StartedUnseen,
    /// Coordinator: the group does not wait for the workers of a deleted Job.
    ForgetDeletedJobs,
    /// Coordinator: a resumed group releases at once.
    ResumeWithoutBarrier,
    /// Coordinator: running pods that no daemon reports are not waited for.
    IgnoreUnseenPods,
    /// Coordinator: a worker restart takes the other workers with it.
    StopPeersToo,
    /// Coordinator: a request that names some workers restarts others as well.
    WidenRequest,
    /// Coordinator: a new leader does not know its predecessor's worker restarts.
    ForgetWorkerRestarts,
    /// Coordinator: a worker that does not come up is waited for forever.
    NeverLate,
    /// Coordinator: a pod that is lost while its next container is waited for is a failure.
    CountAwaited,
    /// Coordinator: optional workers are waited for like others.
    OptionalAreExpected,
    /// Coordinator: the pods that optional workers were released in are remembered when these
    /// workers are no longer wanted.
    RememberUnwanted,
    /// Coordinator: workers start before the minimum of their gang is bound.
    StartPartOfGang,
    /// Coordinator: pods that go while their Job is past its deadline count as having failed by
    /// themselves.
    CountEndedPods,
    /// Coordinator: the failure of a container without its agent is ignored.
    IgnoreUnsupervisedFailure,
    /// Coordinator: the end of a restart waits for workers of replicatedJobs that have never
    /// started.
    WaitForUnstarted,
    /// Coordinator: a recreation that clears leftovers of a restart in place is counted.
    CountWhatOutlives,
    /// Coordinator: a worker that fails soon after a restart in place is restarted in place again.
    NeverClimb,
    /// Coordinator: the JobSet fails before its Jobs were recreated.
    FailInPlace,
    /// Coordinator: a worker that nothing would start at a release is restarted in place with the
    /// others.
    RestartWhatStaysDown,
    /// Coordinator: a new leader takes whatever the kubelet has started as a sign of a release.
    BelieveKubelet,
    /// Coordinator: a container that replaces another is stopped for the restart if its node's
    /// clock is behind.
    BelieveClocks,
    /// Coordinator: any generation and count of restarts that a node reports is believed.
    BelieveImpossible,
    /// Control plane: a request that the API server refused is sent again at once.
    RetryAtOnce,
    /// Control plane: the leader carries on after the API server has gone back to an older state.
    IgnoreFall,
    /// Control plane: a node is believed about pods that are bound to other nodes.
    BelieveAnyNode,
    /// Gangs: optional pods lose their gates before the minimum is bound.
    OptionalGoFirst,
    /// Gangs: optional pods count towards the minimum.
    OptionalCount,
    /// Gangs: pods lose their gates before that is durable.
    LetGoUnwritten,
    /// Gangs: a gang that was not bound in time gives nothing back.
    KeepWhatTimedOut,
    /// Control plane: groups do not learn that the daemon of their workers is gone.
    MissUnlinked,
    /// Agent: an incarnation that has exited starts again at the release of the same generation.
    ReleaseTwice,
    /// Agent: a worker counts as stopped while its children still run.
    ParkBesideChildren,
    /// Agent: a first start needs no release that names the incarnation.
    StartUnnamed,
    /// Agent: a standby that still imports is released.
    ReleaseWarmingStandby,
    /// Agent: the worker is started beside the standby that was released.
    ReleaseStandbyAndColdStart,
    /// Agent: a standby that does not confirm its release in time is not ended before the cold
    /// start.
    ColdStartBesideStandby,
    /// Agent: a standby that does not confirm its release is waited for.
    NeverGiveUpStandby,
    /// Agent: a standby that refuses its release counts as a worker that failed.
    RefusalIsFailure,
    /// Agent: a standby goes on with the generation of the attempt before.
    ReleaseStandbyAsBefore,
    /// Agent: a stop of the worker ends the standby for its next attempt.
    StopEndsStandby,
    /// Agent: the agent exits while a standby waits.
    LeaveBesideStandby,
    /// Agent: a standby that the daemon was asked to kill is released.
    ReleaseDoomedStandby,
    /// Agent: a rank of a worker that is being stopped goes on from a standby.
    ServeCallsOfStopped,
    /// Agent: a standby of a rank that was told to end is released.
    ReleaseEndingRank,
    /// Agent: the standbys of ranks wait on although the container ends, or the daemon was asked to
    /// kill all.
    KeepStandbysOfRanks,
    /// Agent: a rank is started cold beside its standby, which does not confirm its release in
    /// time.
    ColdRankBesideStandby,
    /// Agent: a standby of a rank that does not confirm its release is waited for.
    NeverGiveUpRank,
    /// Agent: the starts of the attempt before are counted in this one.
    CountStartsOfBefore,
    /// Node daemon: an agent that cannot be reached is reported as lost.
    LinkDownIsLost,
    /// Node daemon: the snapshot of a new stream is empty.
    EmptySnapshot,
    /// Node daemon: a new daemon does not know its predecessor's records.
    ForgetRecords,
    /// Node daemon: the container after a stopped one has the same generation.
    FollowersAreOld,
    /// Node daemon: workers without their agents are stopped although their group runs.
    StopWithoutRestart,
    /// Node daemon: the end of a container is left to its successor to report, although that has no
    /// agent.
    AwaitMissingAgent,
    /// Node daemon: an epoch that an agent names is passed on.
    BelieveAgentsEpoch,
    /// Node daemon: a new daemon does not know which leaders its predecessor obeyed.
    ForgetFormerLeaders,
    /// Node daemon: processes that were started after an agent asked for help with killing are
    /// killed too.
    KillUnfenced,
}

#[cfg(debug_assertions)]
thread_local! {
    static SELECTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// True if this thread runs this variant. Use [`mutant`] to ask.
#[doc(hidden)]
#[cfg(debug_assertions)]
#[must_use]
#[inline]
pub fn is(mutant: Mutant) -> bool {
    SELECTED.get() == Some(mutant)
}

/// Sets the variant that this thread runs from now on; `None` for none.
#[cfg(debug_assertions)]
pub fn select(mutant: Option<Mutant>) {
    SELECTED.set(mutant);
}
