//! The simulation finds each of these broken variants within [`WITHIN`] seeds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lockstep_mutants::Mutant;

use crate::say;

/// The number of seeds within which the simulation must find every variant.
const WITHIN: u64 = 20_000;

/// The seed that last found each variant. The test tries it first, which saves the search. If a
/// change to the simulation or to a decision makes it useless, the test searches all seeds and
/// prints the new row.
const FOUND_BY: &[(Mutant, u64)] = &[
    (Mutant::SkipWriteAhead, 3),
    (Mutant::CountStaleFailures, 0),
    (Mutant::UnlinkedIsLost, 16),
    (Mutant::ReleaseBesideOldPods, 66),
    (Mutant::ReleaseBeforeAllParked, 4),
    (Mutant::ForgetDoneWorkers, 0),
    (Mutant::RecountOnTakeover, 40),
    (Mutant::IgnoreDeadline, 347),
    (Mutant::DecideBeforeReports, 1321),
    (Mutant::IgnoreMaxRestarts, 14),
    (Mutant::CountRequests, 67),
    (Mutant::KeepStartedOnRecreation, 21),
    (Mutant::IgnoreReportedGeneration, 913),
    (Mutant::StartedUnseen, 13566),
    (Mutant::ForgetDeletedJobs, 1596),
    (Mutant::ResumeWithoutBarrier, 3584),
    (Mutant::IgnoreUnseenPods, 318),
    (Mutant::StopPeersToo, 19),
    (Mutant::WidenRequest, 118),
    (Mutant::ForgetWorkerRestarts, 1387),
    (Mutant::NeverLate, 347),
    (Mutant::CountAwaited, 959),
    (Mutant::OptionalAreExpected, 71),
    (Mutant::RememberUnwanted, 1721),
    (Mutant::StartPartOfGang, 95),
    (Mutant::CountEndedPods, 356),
    (Mutant::IgnoreUnsupervisedFailure, 3043),
    (Mutant::WaitForUnstarted, 5313),
    (Mutant::CountWhatOutlives, 0),
    (Mutant::NeverClimb, 0),
    (Mutant::FailInPlace, 44),
    (Mutant::RestartWhatStaysDown, 292),
    (Mutant::BelieveKubelet, 7642),
    (Mutant::BelieveClocks, 942),
    (Mutant::BelieveImpossible, 1),
    (Mutant::OptionalGoFirst, 74),
    (Mutant::OptionalCount, 15),
    (Mutant::LetGoUnwritten, 15),
    (Mutant::KeepWhatTimedOut, 3112),
    (Mutant::MissUnlinked, 3),
    (Mutant::RetryAtOnce, 158),
    (Mutant::IgnoreFall, 842),
    (Mutant::BelieveAnyNode, 2),
    (Mutant::ReleaseTwice, 11),
    (Mutant::ParkBesideChildren, 45),
    (Mutant::StartUnnamed, 11),
    (Mutant::ReleaseWarmingStandby, 39),
    (Mutant::ReleaseStandbyAndColdStart, 54),
    (Mutant::ColdStartBesideStandby, 61),
    (Mutant::NeverGiveUpStandby, 61),
    (Mutant::RefusalIsFailure, 61),
    (Mutant::ReleaseStandbyAsBefore, 54),
    (Mutant::StopEndsStandby, 1),
    (Mutant::LeaveBesideStandby, 7),
    (Mutant::ReleaseDoomedStandby, 469),
    (Mutant::ServeCallsOfStopped, 5608),
    (Mutant::ReleaseEndingRank, 1584),
    (Mutant::KeepStandbysOfRanks, 75),
    (Mutant::ColdRankBesideStandby, 38),
    (Mutant::NeverGiveUpRank, 38),
    (Mutant::CountStartsOfBefore, 1),
    (Mutant::LinkDownIsLost, 16),
    (Mutant::EmptySnapshot, 120),
    (Mutant::ForgetRecords, 8),
    (Mutant::FollowersAreOld, 5),
    (Mutant::StopWithoutRestart, 17),
    (Mutant::AwaitMissingAgent, 1991),
    (Mutant::BelieveAgentsEpoch, 3),
    (Mutant::ForgetFormerLeaders, 22),
    (Mutant::KillUnfenced, 110),
];

/// A variant that the simulation has found.
struct Found {
    seed: u64,
    violation: String,
}

fn is_caught_by(seed: u64) -> Option<Found> {
    let violation = lockstep_simulation::run(seed).violation?;
    Some(Found { seed, violation })
}

/// The seed of [`FOUND_BY`] if it still finds this variant, otherwise the first one that does.
fn search(mutant: Mutant) -> Option<Found> {
    let known = FOUND_BY.iter().find(|(known, _)| *known == mutant);
    lockstep_mutants::select(Some(mutant));
    let found = known
        .and_then(|(_, seed)| is_caught_by(*seed))
        .or_else(|| (0..WITHIN).find_map(is_caught_by));
    lockstep_mutants::select(None);
    found
}

#[test]
fn every_broken_variant_is_found() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some(Found { seed, violation }) = search(*mutant) else {
                        missed
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(*mutant);
                        continue;
                    };
                    println!("{mutant:?}: seed {seed}: {violation}");
                    if !FOUND_BY.contains(&(*mutant, seed)) {
                        say(&format!("FOUND_BY wants: (Mutant::{mutant:?}, {seed}),"));
                    }
                }
            });
        }
    });
    assert_eq!(missed.into_inner().unwrap(), []);
}

#[test]
fn every_variant_in_the_table_is_there_once() {
    for (index, (mutant, seed)) in FOUND_BY.iter().enumerate() {
        assert!(*seed < WITHIN, "{mutant:?}: {seed}");
        assert!(
            FOUND_BY[..index].iter().all(|(other, _)| other != mutant),
            "{mutant:?} twice"
        );
    }
}
