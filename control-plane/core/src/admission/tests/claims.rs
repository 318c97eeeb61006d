//! Volume claims: which are refused, and what must match an existing claim.

use super::*;

fn claiming(size: &str) -> JobSet {
    base().with(|js| {
        let spec = serde_json::from_value(serde_json::json!({
            "accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": size}},
        }));
        js.spec.volume_claim_policies = vec![VolumeClaimPolicy {
            templates: vec![VolumeClaimTemplate {
                metadata: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                    name: Some("data".to_owned()),
                    ..Default::default()
                }),
                spec: Some(spec.unwrap()),
                ..VolumeClaimTemplate::default()
            }],
            retention_policy: None,
        }];
        let pod = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        pod.template.spec.as_mut().unwrap().containers[0].volume_mounts = Some(vec![VolumeMount {
            name: "data".to_owned(),
            ..VolumeMount::default()
        }]);
    })
}

#[test]
fn claims_need_a_mount_a_name_of_their_own_and_room() {
    let found = |js: &JobSet| messages(&validate_create(js, &Features::default()));
    assert_eq!(found(&claiming("1Gi")), [""; 0]);
    let unmounted = claiming("1Gi").with(|js| js.spec.replicated_jobs.remove(0).replicas = None);
    let message = &found(&unmounted)[0];
    assert!(
        message.starts_with("spec.replicatedJobs: Invalid value: [{\"") && message.contains("\"name\":\"b\""),
        "{message}"
    );
    assert!(
        message.ends_with(
            "}]: replicatedJob containers don't have a matching volumeMount: data from VolumeClaimPolicies"
        ),
        "{message}"
    );
    let long = unmounted.clone().with(|js| {
        let names = (0..1000).map(|index| format!("{index:04}"));
        let jobs = names.map(|name| ReplicatedJob {
            name,
            ..js.spec.replicated_jobs[0].clone()
        });
        js.spec.replicated_jobs = jobs.collect();
    });
    let violations = validate_create(&long, &Features::default());
    let shown = violations
        .iter()
        .find(|violation| violation.message.contains("matching volumeMount"));
    let shown = shown.unwrap().to_string();
    assert!(
        shown.contains("...: replicatedJob containers") && shown.len() < 5000,
        "{shown}"
    );
    let twice = claiming("1Gi").with(|js| {
        let again = js.spec.volume_claim_policies[0].clone();
        js.spec.volume_claim_policies.push(again);
    });
    assert_eq!(
        found(&twice),
        [
            "spec.volumeClaimPolicies[1].template[0].name: Invalid value: \"data\": names must be unique for VolumeClaimPolicies \
             template"
        ]
    );
    let clashing = claiming("1Gi").with(|js| {
        let pod = js.spec.replicated_jobs[1].template.spec.as_mut().unwrap();
        pod.template.spec.as_mut().unwrap().volumes = Some(vec![k8s_openapi::api::core::v1::Volume {
            name: "data".to_owned(),
            ..Default::default()
        }]);
    });
    assert!(found(&clashing)[0].contains("volume name conflicts with VolumeClaimPolicy template name: data"));
}

fn source() -> serde_json::Value {
    serde_json::json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"})
}

#[test]
fn a_claim_that_exists_must_fit_and_be_retained() {
    let js = claiming("1Gi");
    assert_eq!(claim_names(&js), ["data-js"]);
    let claim = |size: &str| PersistentVolumeClaim {
        metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
            name: Some("data-js".to_owned()),
            ..Default::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            volume_name: Some("pv-1".to_owned()),
            volume_mode: Some("Filesystem".to_owned()),
            ..claiming(size).spec.volume_claim_policies[0].templates[0]
                .spec
                .clone()
                .unwrap()
        }),
        status: None,
    };
    let existing = |claim| BTreeMap::from([("data-js".to_owned(), Ok(claim))]);
    let found = messages(&validate_claims(&js, &existing(claim("1Gi"))));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("retentionPolicy must be retain when PVC exists"),
        "{found:?}"
    );
    let retained = js.with(|js| {
        js.spec.volume_claim_policies[0].retention_policy = Some(lockstep_api::VolumeRetentionPolicy {
            when_deleted: Some(RetentionPolicy::Retain),
        });
    });
    for size in ["1Gi", "1024Mi"] {
        assert_eq!(validate_claims(&retained, &existing(claim(size))), []);
    }
    let sourced = retained.clone().with(|js| {
        let spec = js.spec.volume_claim_policies[0].templates[0]
            .spec
            .as_mut()
            .unwrap();
        spec.data_source = Some(serde_json::from_value(source()).unwrap());
    });
    let mut filled_in = claim("1Gi");
    assert_eq!(validate_claims(&sourced, &existing(filled_in.clone())).len(), 1);
    let spec = filled_in.spec.as_mut().unwrap();
    spec.data_source = Some(serde_json::from_value(source()).unwrap());
    spec.data_source_ref = Some(serde_json::from_value(source()).unwrap());
    assert_eq!(validate_claims(&sourced, &existing(filled_in)), []);
    let found = messages(&validate_claims(&retained, &existing(claim("2Gi"))));
    assert!(
        found[0].contains("spec does not match existing PVC data-js in namespace ns"),
        "{found:?}"
    );
}
