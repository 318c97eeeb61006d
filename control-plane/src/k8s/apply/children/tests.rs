use super::*;

fn job() -> JobRef {
    JobRef {
        name: "js-a-0".to_owned(),
        uid: "u".to_owned(),
    }
}

#[test]
fn patches_name_the_job_they_are_for() {
    assert_eq!(
        suspend(&job()),
        json!({"metadata": {"uid": "u"}, "spec": {"suspend": true}})
    );
    let resume = Resume {
        resource_version: Some("7".to_owned()),
        ..Resume::default()
    };
    assert_eq!(
        clear_start_time(&job(), &resume),
        json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"startTime": null}})
    );
}

#[test]
fn a_resumed_job_gets_the_merged_template_and_keeps_what_is_not_mentioned() {
    let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
    let resume = Resume {
        resource_version: Some("7".to_owned()),
        labels: map("l", "1"),
        annotations: map("a", "2"),
        node_selector: map("zone", "z"),
        scheduling_gates: vec!["gate".to_owned()],
        ..Resume::default()
    };
    let expected = json!({
        "metadata": {"uid": "u", "resourceVersion": "7"},
        "spec": {"suspend": false, "template": {
            "metadata": {"labels": {"l": "1"}, "annotations": {"a": "2"}},
            "spec": {"nodeSelector": {"zone": "z"}, "schedulingGates": [{"name": "gate"}]},
        }},
    });
    assert_eq!(resumed(&job(), &resume), expected);
}
