use lockstep_api::InPlaceRestartStatus;

use super::*;
use crate::common::testing::{jobset, observe, replicated_job};
use crate::jobset::upstream_agent::AgentPod;

fn in_place(kind: InPlaceKind) -> Option<InPlaceMode> {
    Some(InPlaceMode {
        kind,
        reasons: Vec::new(),
        level: None,
    })
}

/// The status of a JobSet of this kind, whose daemons have started these stages.
fn status(kind: Option<InPlaceKind>, started: &[&str]) -> JobSetStatus {
    JobSetStatus {
        in_place_restart: Some(InPlaceRestartStatus {
            kind,
            started: started.iter().map(|stage| (*stage).to_owned()).collect(),
            ..InPlaceRestartStatus::default()
        }),
        ..JobSetStatus::default()
    }
}

fn mode(
    change: impl FnOnce(&mut Observed),
    in_place: Option<InPlaceMode>,
    status: &JobSetStatus,
) -> RestartMode {
    let mut observed = observe(&jobset([replicated_job("a", 1)]), []);
    change(&mut observed);
    RestartMode::of(&observed, in_place, status)
}

fn reports_upstream(observed: &mut Observed) {
    observed.agent_pods.push(AgentPod {
        attempt: Some(0),
        ..AgentPod::default()
    });
}

#[test]
fn a_jobset_that_does_not_restart_in_place_is_recreated_and_what_a_coordinator_counted_counts_on() {
    let none = JobSetStatus::default();
    assert_eq!(mode(|_| {}, None, &none), RestartMode::Recreate);
    for kind in [InPlaceKind::Supervised, InPlaceKind::Plain] {
        let before = status(Some(kind.clone()), &[]);
        let formerly = RestartMode::FormerlyCoordinated(kind);
        assert_eq!(mode(|_| {}, None, &before), formerly);
        assert_eq!(mode(|seen| seen.has_daemons = false, None, &before), formerly);
        assert_eq!(mode(reports_upstream, None, &before), RestartMode::Recreate);
    }
    let of_upstream = status(Some(InPlaceKind::UpstreamAgent), &[]);
    assert_eq!(mode(|_| {}, None, &of_upstream), RestartMode::Recreate);
    assert_eq!(mode(|_| {}, None, &status(None, &["a"])), RestartMode::Recreate);
}

#[test]
fn upstreams_agents_go_before_the_coordinator() {
    let before = status(Some(InPlaceKind::Supervised), &["a"]);
    let brought = || in_place(InPlaceKind::UpstreamAgent);
    assert_eq!(mode(|_| {}, brought(), &before), RestartMode::UpstreamAgents);
    assert_eq!(
        mode(|seen| seen.has_daemons = false, brought(), &before),
        RestartMode::UpstreamAgents
    );
    let supervised = || in_place(InPlaceKind::Supervised);
    assert_eq!(
        mode(reports_upstream, supervised(), &before),
        RestartMode::UpstreamReports
    );
}

#[test]
fn without_daemons_a_coordinator_that_was_there_comes_back() {
    let away = |status: &JobSetStatus| {
        let supervised = in_place(InPlaceKind::Supervised);
        mode(|seen| seen.has_daemons = false, supervised, status)
    };
    assert_eq!(away(&JobSetStatus::default()), RestartMode::UpstreamReports);
    assert_eq!(
        away(&status(Some(InPlaceKind::Plain), &[])),
        RestartMode::CoordinatorAway(InPlaceKind::Plain)
    );
}

#[test]
fn the_kubelet_is_left_to_itself_only_if_no_daemon_is_or_was_there() {
    let unattended = |status: &JobSetStatus| {
        let plain = in_place(InPlaceKind::Plain);
        mode(|seen| seen.is_attended = false, plain, status)
    };
    let in_place = in_place(InPlaceKind::Plain).unwrap();
    let coordinated = RestartMode::Coordinated(in_place.clone());
    assert_eq!(
        unattended(&JobSetStatus::default()),
        RestartMode::KubeletOnly(in_place.clone())
    );
    assert_eq!(unattended(&status(None, &["a"])), coordinated);
    assert_eq!(
        mode(|_| {}, Some(in_place), &JobSetStatus::default()),
        coordinated
    );
}
