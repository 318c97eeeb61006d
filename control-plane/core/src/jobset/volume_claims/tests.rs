use std::sync::Arc;

use k8s_openapi::api::core::v1::VolumeMount;
use lockstep_api::VolumeRetentionPolicy;

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, observe, replicated_job};

fn with_claims(retention: Option<RetentionPolicy>) -> JobSet {
    let mounting = replicated_job("a", 1).pod_spec(|pod| {
        pod.containers[0].volume_mounts = Some(vec![VolumeMount {
            name: "data".to_owned(),
            mount_path: "/data".to_owned(),
            ..VolumeMount::default()
        }]);
    });
    jobset([mounting, replicated_job("b", 1)]).with(|js| {
        js.spec.volume_claim_policies = vec![VolumeClaimPolicy {
            templates: vec![VolumeClaimTemplate {
                metadata: Some(ObjectMeta {
                    name: Some("data".to_owned()),
                    labels: Some([("team".to_owned(), "x".to_owned())].into()),
                    ..ObjectMeta::default()
                }),
                ..VolumeClaimTemplate::default()
            }],
            retention_policy: retention.map(|when| VolumeRetentionPolicy {
                when_deleted: Some(when),
            }),
        }];
    })
}

#[test]
fn a_missing_claim_is_created_once_and_belongs_to_the_jobset_unless_it_is_retained() {
    for (retention, owned) in [
        (None, false),
        (Some(RetentionPolicy::Delete), true),
        (Some(RetentionPolicy::Retain), false),
    ] {
        let js = with_claims(retention);
        let mut observed = observe(&js, []);
        let claims = missing(&observed);
        assert_eq!(claims.len(), 1);
        let meta = &claims[0].metadata;
        assert_eq!(meta.name.as_deref(), Some("data-js"));
        assert_eq!(meta.owner_references.is_some(), owned);
        let labels = meta.labels.as_ref().unwrap();
        assert_eq!((&*labels["team"], &*labels[labels::JOBSET_NAME]), ("x", "js"));
        observed.claims = claims.into_iter().map(Arc::new).collect();
        assert_eq!(missing(&observed), []);
    }
}

#[test]
fn pods_that_mount_the_claim_get_its_volume_and_others_do_not() {
    let js = with_claims(None);
    let plan = crate::reconcile::plan(&observe(&js, []));
    assert_eq!(plan.create_claims.len(), 1);
    let volumes: Vec<_> = plan
        .create_jobs
        .iter()
        .map(|job| {
            let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
            let volumes = pod.volumes.iter().flatten();
            volumes
                .map(|volume| {
                    let claim = volume.persistent_volume_claim.as_ref().unwrap();
                    (volume.name.clone(), claim.claim_name.clone())
                })
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(
        volumes,
        [vec![("data".to_owned(), "data-js".to_owned())], Vec::new()]
    );
}

#[test]
fn a_claim_whose_name_only_the_webhook_finds_too_long_is_created_and_reported() {
    // The claim is `<name>-js`; `<name>` is the volume.
    for (length, told) in [(60, 0), (61, 1), (63, 1)] {
        let name = "d".repeat(length);
        let js = with_claims(None).with(|js| {
            js.spec.volume_claim_policies[0].templates[0]
                .metadata
                .get_or_insert_default()
                .name = Some(name.clone());
            let spec = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
            let pod = spec.template.spec.as_mut().unwrap();
            pod.containers[0].volume_mounts.as_mut().unwrap()[0].name = name;
        });
        let plan = crate::reconcile::plan(&observe(&js, []));
        assert_eq!((&plan.finished, plan.create_claims.len()), (&None, 1));
        assert_eq!(plan.complaints.len(), told, "{:?}", plan.complaints);
        let field = "spec.volumeClaimPolicies[0].template[0].name";
        assert!(plan.complaints.iter().all(|told| told.message.contains(field)));
    }
}
