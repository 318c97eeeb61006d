//! Pods that are being created.

use serde_json::json;

use super::*;

fn refusal(pod: &Pod) -> String {
    admission(pod).unwrap_err().to_string()
}

/// The leader that a follower finds among these pods.
fn choose(follower: &Pod, candidates: &[Pod]) -> Result<String, String> {
    let members: Vec<Member> = candidates.iter().filter_map(Member::of).collect();
    let search = LeaderSearch::of_follower(follower).unwrap().unwrap();
    search
        .choose(&members)
        .map(|leader| leader.name.clone())
        .map_err(|refusal| refusal.to_string())
}

#[test]
fn a_leader_gets_affinity_to_its_own_job_and_against_all_others() {
    let leader = with(pod("0"), |pod| spec(pod).priority = Some(7));
    let placed = mutate(&leader, None).unwrap();
    let labels = placed.metadata.labels.clone().unwrap();
    assert_eq!(labels[labels::PRIORITY], "7");
    let job_key = labels::JOB_KEY;
    assert_eq!(
        serde_json::to_value(placed.spec.clone().unwrap().affinity).unwrap(),
        json!({
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchExpressions": [{"key": job_key, "operator": "In", "values": ["key"]}]},
                "topologyKey": RACK,
                "namespaceSelector": {},
            }]},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchExpressions": [
                    {"key": job_key, "operator": "Exists"},
                    {"key": job_key, "operator": "NotIn", "values": ["key"]},
                    {"key": labels::PRIORITY, "operator": "In", "values": ["7"]},
                ]},
                "topologyKey": RACK,
                "namespaceSelector": {},
            }]},
        })
    );
    assert_eq!(mutate(&placed, None), None, "a second call changes nothing");
}

#[test]
fn a_leader_without_a_priority_gets_the_same_terms() {
    let placed = mutate(&pod("0"), None).unwrap();
    assert_eq!(label(&placed, labels::PRIORITY), None);
    let affinity = serde_json::to_value(placed.spec.clone().unwrap().affinity).unwrap();
    let apart = &affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(
        apart[0]["labelSelector"]["matchExpressions"],
        json!([
            {"key": labels::JOB_KEY, "operator": "Exists"},
            {"key": labels::JOB_KEY, "operator": "NotIn", "values": ["key"]},
            {"key": labels::PRIORITY, "operator": "In", "values": [""]},
        ])
    );
    assert_eq!(apart.as_array().map(Vec::len), Some(1));
    assert_eq!(mutate(&placed, None), None, "a second call changes nothing");
}

#[test]
fn a_leader_keeps_the_affinity_that_it_has() {
    let affinity = json!({
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
    });
    let leader = with(pod("0"), |pod| {
        spec(pod).affinity = Some(serde_json::from_value(affinity).unwrap());
    });
    let placed = mutate(&leader, Some("ignored"))
        .unwrap()
        .spec
        .unwrap()
        .affinity
        .unwrap();
    assert!(placed.node_affinity.is_some());
    let keys: Vec<_> = placed
        .pod_affinity
        .unwrap()
        .required_during_scheduling_ignored_during_execution
        .unwrap();
    let keys: Vec<_> = keys.iter().map(|term| term.topology_key.as_str()).collect();
    assert_eq!(keys, ["zone", RACK]);
}

#[test]
fn a_follower_selects_the_domain_of_its_leader_once_that_is_known() {
    let follower = selecting(pod("1"), "disk", "ssd");
    assert_eq!(mutate(&follower, None), None);
    let placed = mutate(&follower, Some("r1")).unwrap();
    assert_eq!(
        placed.spec.as_ref().unwrap().node_selector,
        Some(map([("disk", "ssd"), (RACK, "r1")]))
    );
    assert_eq!(placed.spec.as_ref().unwrap().affinity, None);
    assert_eq!(mutate(&placed, Some("r1")), None, "a second call changes nothing");
}

#[test]
fn every_pod_of_a_jobset_is_labelled_with_its_priority() {
    let ordinary = without_annotation(pod("1"), annotations::EXCLUSIVE_TOPOLOGY);
    let ordinary = with(ordinary, |pod| spec(pod).priority = Some(0));
    let labelled = mutate(&ordinary, None).unwrap();
    assert_eq!(labelled.metadata.labels.as_ref().unwrap()[labels::PRIORITY], "0");
    assert_eq!(labelled.spec, ordinary.spec);
    assert_eq!(mutate(&labelled, None), None, "a second call changes nothing");
}

#[test]
fn pods_that_are_no_concern_of_placement_are_let_through_unchanged() {
    for foreign in [
        with(pod("0"), |pod| pod.metadata.annotations = None),
        without_annotation(pod("0"), labels::JOBSET_NAME),
        annotated(pod("0"), annotations::NODE_SELECTOR_STRATEGY),
        annotated(pod("1"), annotations::NODE_SELECTOR_STRATEGY),
    ] {
        let foreign = with(foreign, |pod| spec(pod).priority = Some(1));
        assert_eq!(mutate(&foreign, Some("r1")), None);
        assert_eq!(admission(&foreign), Ok(None));
        assert_eq!(LeaderSearch::of_follower(&foreign), Ok(None));
    }
    let ordinary = without_annotation(pod("1"), annotations::EXCLUSIVE_TOPOLOGY);
    assert_eq!(admission(&ordinary), Ok(None));
    assert_eq!(admission(&pod("0")), Ok(None), "a leader does not wait");
}

#[test]
fn a_follower_without_a_selector_is_refused_before_its_leader_is_looked_for() {
    let unlabelled = with(pod("1"), |pod| pod.metadata.labels = None);
    assert_eq!(refusal(&unlabelled), "follower pod node selector not set");
    assert_eq!(
        refusal(&selecting(pod("1"), "disk", "ssd")),
        format!("follower pod node selector for topology domain not found. missing selector: {RACK}")
    );
}

#[test]
fn a_follower_without_the_labels_of_its_job_is_refused() {
    for key in [
        labels::JOBSET_NAME,
        labels::REPLICATED_JOB_NAME,
        labels::JOB_INDEX,
    ] {
        let follower = with(selecting(pod("1"), RACK, "r1"), |pod| {
            pod.metadata.labels.get_or_insert_default().remove(key);
        });
        assert_eq!(refusal(&follower), format!("pod missing label: {key}"));
    }
}

#[test]
fn a_follower_needs_exactly_one_live_leader_of_its_own_job() {
    let expected = |found| {
        format!("expected 1 leader pod (js-w-0-0), but got {found}. this is an expected, transient error")
    };
    let twin = with(pod("0"), |pod| pod.metadata.name = Some("js-w-0-0-y".to_owned()));
    let earlier = owned_by(pod("0"), Some("earlier"));
    let cases = [
        (vec![], Err(expected(0))),
        (vec![pod("0"), pod("2")], Ok("js-w-0-0-x".to_owned())),
        (
            vec![
                going(pod("0")),
                in_phase(pod("0"), "Failed"),
                in_phase(pod("0"), "Succeeded"),
            ],
            Err(expected(0)),
        ),
        (vec![going(pod("0")), twin.clone()], Ok("js-w-0-0-y".to_owned())),
        (vec![pod("0"), twin.clone()], Err(expected(2))),
        (vec![earlier.clone(), twin.clone()], Ok("js-w-0-0-y".to_owned())),
        (
            vec![earlier],
            Err("follower pod owner UID (job) != leader pod owner UID (earlier)".to_owned()),
        ),
        (
            vec![owned_by(pod("0"), None)],
            Err("leader pod \"js-w-0-0-x\" has no owner reference".to_owned()),
        ),
    ];
    for (candidates, expected) in cases {
        assert_eq!(choose(&pod("1"), &candidates), expected);
    }
    assert_eq!(
        choose(&owned_by(pod("1"), None), &[pod("0")]),
        Err("follower pod has no owner reference".to_owned())
    );
}
