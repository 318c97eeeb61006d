//! Followers in the wrong place.

use proptest::prelude::*;

use super::*;

const DOMAIN: &str = "r1";

/// The misplaced pods if the leader is in [`DOMAIN`].
fn evicted(pods: &[Member]) -> Vec<&Member> {
    question(pods.iter()).map_or_else(Vec::new, |asked| misplaced(pods.iter(), asked, DOMAIN))
}

fn names(pods: &[Pod]) -> Vec<String> {
    let members: Vec<Member> = pods.iter().filter_map(Member::of).collect();
    evicted(&members)
        .into_iter()
        .map(|pod| pod.name.clone())
        .collect()
}

#[test]
fn a_follower_that_selects_another_domain_or_none_is_misplaced() {
    let pods = [
        on(pod("0"), "n"),
        selecting(pod("1"), RACK, DOMAIN),
        selecting(pod("2"), RACK, "r2"),
        selecting(pod("3"), "disk", "ssd"),
        pod("4"),
    ];
    assert_eq!(names(&pods), ["js-w-0-2-x", "js-w-0-3-x", "js-w-0-4-x"]);
    let members: Vec<Member> = pods.iter().filter_map(Member::of).collect();
    let asked = question(members.iter()).map(|question| (question.node, question.topology));
    assert_eq!(asked, Some(("n", RACK)));
}

#[test]
fn without_one_live_and_scheduled_leader_no_pod_is_misplaced() {
    let follower = pod("1");
    for leaders in [
        vec![],
        vec![pod("0")],
        vec![going(on(pod("0"), "n"))],
        vec![in_phase(on(pod("0"), "n"), "Failed")],
        vec![on(pod("0"), "n"), on(pod("0"), "n")],
        vec![on(pod("0"), "n"), pod("0")],
    ] {
        let pods: Vec<Pod> = leaders.into_iter().chain([follower.clone()]).collect();
        assert_eq!(names(&pods), Vec::<String>::new());
    }
}

#[test]
fn deleted_and_finished_pods_are_left_unchanged_and_nothing_is_asked() {
    let pods = [
        on(pod("0"), "n"),
        going(pod("1")),
        in_phase(pod("2"), "Succeeded"),
    ];
    assert_eq!(names(&pods), Vec::<String>::new());
    let members: Vec<Member> = pods.iter().filter_map(Member::of).collect();
    assert_eq!(question(members.iter()), None);
}

#[test]
fn an_answer_about_another_leader_evicts_no_pod() {
    let members = [
        member(&on(pod("0"), "n2")),
        member(&selecting(pod("1"), RACK, "r2")),
    ];
    let asked = Question {
        node: "n1",
        topology: RACK,
    };
    assert_eq!(misplaced(members.iter(), asked, DOMAIN), Vec::<&Member>::new());
}

fn any_member() -> impl Strategy<Value = Member> {
    let name = prop::option::of(prop::sample::select(vec!["r1", "r2", ""]));
    let node = prop::option::of(prop::sample::select(vec!["n1", "n2"]));
    (0..4_u8, name, node, any::<bool>(), any::<bool>(), 0..100_u32).prop_map(
        |(index, selected, node, alive, marked, number)| Member {
            name: format!("pod-{number}"),
            uid: format!("uid-{number}"),
            job: Some("job".to_owned()),
            role: if index == 0 { Role::Leader } else { Role::Follower },
            topology: RACK.to_owned(),
            selected: selected.map(str::to_owned),
            node: node.map(str::to_owned),
            alive,
            marked,
        },
    )
}

proptest! {
    #[test]
    fn no_well_placed_pod_is_ever_evicted(pods in prop::collection::vec(any_member(), 0..12)) {
        let chosen = evicted(&pods);
        for pod in &chosen {
            prop_assert!(pod.alive && pod.role == Role::Follower);
            prop_assert_ne!(pod.selected.as_deref(), Some(DOMAIN));
        }
        let leaders: Vec<_> = pods.iter().filter(|pod| pod.alive && pod.role == Role::Leader).collect();
        let known = leaders.len() == 1 && leaders[0].node.is_some();
        prop_assert!(known || chosen.is_empty());
    }

    #[test]
    fn evicting_once_is_enough(pods in prop::collection::vec(any_member(), 0..12)) {
        let chosen: Vec<String> = evicted(&pods).into_iter().map(|pod| pod.uid.clone()).collect();
        let mut after = pods.clone();
        for pod in &mut after {
            pod.alive &= !(chosen.contains(&pod.uid) && pod.role == Role::Follower);
        }
        prop_assert_eq!(evicted(&after), Vec::<&Member>::new());
    }
}
