use serde_json::json;

use super::*;

fn source(volumes: usize) -> Source {
    let volumes: Vec<_> = (0..volumes).map(|_| json!({})).collect();
    let job = json!({
        "metadata": {"name": "js-w-0", "namespace": "ns", "uid": "u"},
        "spec": {
            "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": i32::MAX,
            "template": {"spec": {"containers": [], "volumes": volumes}},
        },
    });
    Source::of(serde_json::value::to_raw_value(&job).unwrap())
}

#[test]
fn a_pod_of_a_large_job_takes_the_places_of_many_and_the_job_is_not_kept_parsed() {
    let (usual, large) = (source(3), source(Extent::MOST.objects));
    assert_eq!((usual.places, usual.read.is_some()), (1, true));
    assert_eq!((large.places, large.read.is_some()), (26, false));
}

#[test]
fn pods_of_a_job_that_is_hardly_large_are_made_many_at_a_time() {
    assert_eq!(source(3).at_once(), (50, usize::MAX));
    assert_eq!(source(330).at_once(), (25, 400));
    assert_eq!(source(Extent::MOST.objects).at_once(), (1, 30));
}

#[test]
fn what_is_made_of_a_large_job_is_what_is_made_of_any() {
    let place = Place {
        job: "js-w-0".into(),
        index: 1,
    };
    let wanted = Replacement {
        place,
        job_uid: "u".to_owned(),
        name: "js-w-0-1-abc".to_owned(),
        ended: BTreeSet::new(),
    };
    let nobody = BTreeMap::new();
    for source in [source(3), source(2_000)] {
        let pod = source.pod(&wanted, &nobody).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("js-w-0-1-abc"));
        let present = BTreeMap::from([(1, BTreeSet::from(["other".to_owned()]))]);
        assert!(source.pod(&wanted, &present).is_none());
    }
}
