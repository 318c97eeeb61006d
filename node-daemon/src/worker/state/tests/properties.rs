//! Invariants that hold for any facts in any order.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn any_agent() -> impl Strategy<Value = AgentState> {
    let phase = prop_oneof![
        Just(AgentPhase::Fresh),
        Just(AgentPhase::Running),
        Just(AgentPhase::Stopping),
        Just(AgentPhase::Parked),
        Just(AgentPhase::Exited(exit(1))),
        Just(AgentPhase::Done(exit(0))),
    ];
    (phase, 0u64..5, 0u64..50, any::<bool>()).prop_map(|(phase, generation, revision, needs_host_kill)| {
        AgentState {
            needs_host_kill,
            ..agent(phase, generation, revision)
        }
    })
}

fn any_input() -> impl Strategy<Value = Input> {
    let pods = || prop_oneof![Just("p"), Just("q")];
    let ids = || prop_oneof![Just("c"), Just("d"), Just("e")];
    let subset = prop::collection::btree_set(ids(), 0..3);
    prop_oneof![
        pods().prop_map(|uid| Input::PodStarted(sandbox(uid), pod(uid))),
        pods().prop_map(|uid| Input::PodRemoved(sandbox(uid), uid.into())),
        (pods(), ids()).prop_map(|(pod, id)| created(pod, id)),
        ids().prop_map(|id| Input::Removed(id.into())),
        (ids(), 0i32..3).prop_map(|(id, code)| exited(id.into(), exit(code), 1)),
        (pods(), ids(), 0u64..6).prop_map(|(pod, id, link)| registered(pod, id, link)),
        (ids(), 0u64..6, any_agent()).prop_map(|(id, link, agent)| state(id, link, agent)),
        (ids(), 0u64..6).prop_map(|(id, link)| Input::LinkDown(id.into(), LinkId(link))),
        (0u64..4, 0u64..4, any::<bool>()).prop_map(|(epoch, generation, release)| {
            Input::Desired(vec![desired(epoch, generation, release)])
        }),
        (0u64..4).prop_map(|epoch| Input::Forget("g".into(), Epoch(epoch))),
        (subset, 0u64..40).prop_map(|(present, mark)| {
            let containers: Vec<_> = present.into_iter().map(|id| (id, None)).collect();
            listed(mark, &["p"], &containers)
        }),
    ]
}

proptest! {
    /// For any facts in any order: revisions grow, final phases are final, what was reported is
    /// what a snapshot says, and targets never carry less than the highest epoch.
    #[test]
    fn the_table_keeps_its_promises(inputs in prop::collection::vec(any_input(), 0..80)) {
        let mut table = Table::new(BASE);
        let mut known: BTreeMap<ContainerId, WorkerState> = BTreeMap::new();
        let mut revision = BASE;
        for input in inputs {
            let forgotten = matches!(input, Input::Forget(..));
            let epochs = table.groups.get(&"g".into()).map_or(Epoch(0), |desired| desired.epoch);
            let effects = table.apply(input, UnixNanos(5));
            for report in &effects.reports {
                prop_assert!(report.revision > revision);
                revision = report.revision;
                let id = &report.incarnation.container;
                if let Some(before) = known.insert(id.clone(), report.clone()) {
                    match before.phase {
                        Phase::Agent(AgentPhase::Done(_)) => {
                            prop_assert!(matches!(report.phase, Phase::Agent(AgentPhase::Done(_))));
                        }
                        Phase::Lost(_) => prop_assert!(matches!(
                            report.phase,
                            Phase::Lost(_) | Phase::Agent(AgentPhase::Done(_))
                        )),
                        _ => {}
                    }
                }
            }
            for (id, link, target) in &effects.targets {
                prop_assert!(target.epoch >= epochs || forgotten);
                let worker = &table.workers[id];
                prop_assert_eq!(worker.link.as_ref().map(|current| current.id), Some(*link));
            }
            for id in &effects.dropped {
                known.remove(id);
            }
            let snapshot: Vec<_> = table.snapshot().into_iter().map(|state| (state.revision, state.phase)).collect();
            let expected: Vec<_> = known.values().map(|state| (state.revision, state.phase)).collect();
            prop_assert_eq!(snapshot, expected);
        }
    }
}
