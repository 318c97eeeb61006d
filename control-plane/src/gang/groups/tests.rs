use lockstep_api::JobSet;
use lockstep_core::gang::{GroupPolicy, PodGroupRef};
use serde_json::json;

use super::{group, workload};

#[test]
fn a_group_is_made_from_its_workload_and_goes_with_its_jobset() {
    let jobset: JobSet = serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": "u"},
        "spec": {},
    }))
    .unwrap();
    let wanted = PodGroupRef {
        name: "js-w-0-5-abc".to_owned(),
        policy: GroupPolicy::Gang(5),
        exact: true,
    };
    let (workload, group) = (workload(&jobset, &wanted), group(&jobset, &wanted));
    for metadata in [&workload.metadata, &group.metadata] {
        assert_eq!(metadata.name.as_deref(), Some("js-w-0-5-abc"));
        assert_eq!(metadata.namespace.as_deref(), Some("ns"));
        let owners = metadata.owner_references.as_ref().unwrap();
        assert_eq!(
            (owners.len(), owners[0].uid.as_str(), owners[0].controller),
            (1, "u", Some(true))
        );
    }
    assert_eq!(
        serde_json::to_value(&group.spec).unwrap(),
        json!({
            "podGroupTemplateRef": {"workload": {"workloadName": "js-w-0-5-abc", "podGroupTemplateName": "gang"}},
            "schedulingPolicy": {"gang": {"minCount": 5}},
        })
    );
    let alone = super::policy(GroupPolicy::Basic);
    assert_eq!(serde_json::to_value(alone).unwrap(), json!({"basic": {}}));
    assert_eq!(
        serde_json::to_value(&workload.spec).unwrap(),
        json!({
            "controllerRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "js"},
            "podGroupTemplates": [{"name": "gang", "schedulingPolicy": {"gang": {"minCount": 5}}}],
        })
    );
}
