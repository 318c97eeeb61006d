//! Requests and limits that change while the JobSet is suspended (KEP-1150).

use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde_json::json;

use super::*;

#[test]
fn with_its_gate_requests_and_limits_of_a_suspended_jobset_may_change_and_nothing_beside_them() {
    let features = Features {
        mutable_resources: true,
        ..Features::default()
    };
    let resources = |value: serde_json::Value| {
        let resources = serde_json::from_value(value).unwrap();
        move |pod: &mut PodSpec| pod.containers[0].resources = Some(resources)
    };
    let with = |change: &dyn Fn(&mut PodSpec)| {
        changed(|job| {
            let pod = job
                .template
                .spec
                .get_or_insert_default()
                .template
                .spec
                .get_or_insert_default();
            pod.init_containers = Some(vec![Container {
                name: "init".to_owned(),
                ..Container::default()
            }]);
            change(pod);
        })
    };
    let plain = with(&|_| {});
    let larger = resources(json!({"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}));
    let larger = with(&|pod| {
        larger.clone()(pod);
        let init = pod.init_containers.as_mut().unwrap();
        init[0].resources.clone_from(&pod.containers[0].resources);
    });
    let none: [&str; 0] = [];
    let judge =
        |old: &JobSet, new: &JobSet, features: &Features| messages(&validate_update(old, new, features));
    for (from, to) in [(&plain, &larger), (&larger, &plain)] {
        let suspended = |js: &JobSet| js.clone().suspended(true);
        assert_eq!(judge(&suspended(from), &suspended(to), &features), none);
        assert_ne!(judge(from, to, &features), none);
        assert_ne!(
            judge(&suspended(from), &suspended(to), &Features::default()),
            none
        );
    }
    let claim = resources(json!({"claims": [{"name": "gpu"}]}));
    let suspended = plain.clone().suspended(true);
    let others: [&dyn Fn(&mut PodSpec); 4] = [
        &move |pod| claim.clone()(pod),
        &|pod| pod.containers.push(Container::default()),
        &|pod| pod.containers[0].image = Some("other".to_owned()),
        &|pod| pod.init_containers = None,
    ];
    for other in others {
        assert_ne!(judge(&suspended, &with(other).suspended(true), &features), none);
    }
}
