use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use lockstep_api::JobSet;
use lockstep_core::gang::{GroupPolicy, PodGroupRef};
use serde_json::{Value, json};
use tower::service_fn;

use super::{Version, create, group, workload};
use crate::k8s::apply::is_status;
use crate::telemetry::metrics::Metrics;

const NOW: Version = Version::V1Beta1;

fn jobset() -> JobSet {
    let jobset = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": "u"},
        "spec": {},
    });
    serde_json::from_value(jobset).unwrap()
}

fn wanted(exact: bool) -> PodGroupRef {
    PodGroupRef {
        name: "js-w-0-5-abc".to_owned(),
        policy: GroupPolicy::Gang(5),
        priority_class: Some("high".to_owned()),
        exact,
    }
}

/// An API server with this PodGroup, whose quota forbids new objects of this resource, and all
/// requests except reads.
fn full(resource: &'static str, there: Option<Value>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let wrote = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let failure = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason});
            (code, status)
        };
        if request.method() != Method::GET {
            let line = format!(
                "{} {}",
                request.method(),
                path.rsplit('/').next().unwrap_or_default()
            );
            wrote.lock().unwrap().push(line);
        }
        let (code, answer) = match (request.method(), &there) {
            (&Method::GET, Some(there)) => (200, there.clone()),
            (&Method::GET, None) => failure(404, "NotFound"),
            (&Method::POST, _) if path.ends_with(resource) => failure(403, "Forbidden"),
            (&Method::POST, Some(_)) => failure(409, "AlreadyExists"),
            // A dry run only checks if the object would be accepted.
            _ => (
                201,
                serde_json::to_value(workload(NOW, &jobset(), &wanted(true))).unwrap(),
            ),
        };
        let answer = Response::builder()
            .status(code)
            .body(Body::from(answer.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(answer.unwrap()) }
    });
    (Client::new(service, "ns"), asked)
}

#[tokio::test]
async fn a_used_up_quota_is_no_failure_if_the_group_exists() {
    let metrics = Metrics::default();
    let there = serde_json::to_value(group(NOW, &jobset(), &wanted(true))).unwrap();
    for resource in ["/workloads", "/podgroups"] {
        for (exact, known) in [(true, Some(GroupPolicy::Gang(5))), (false, None)] {
            let (client, asked) = full(resource, Some(there.clone()));
            let made = create(&client, &metrics, NOW, &jobset(), &wanted(exact)).await;
            assert_eq!(made.unwrap(), known, "{resource}");
            let asked = asked.lock().unwrap();
            assert!(asked.iter().all(|line| line.starts_with("POST")), "{asked:?}");
        }
        let (client, asked) = full(resource, None);
        let refused = create(&client, &metrics, NOW, &jobset(), &wanted(true)).await;
        assert!(refused.is_err_and(|error| is_status(&error, 403)), "{resource}");
        let asked = asked.lock().unwrap();
        let last = asked.last().map(String::as_str);
        assert_eq!(
            last,
            Some(format!("POST {}", &resource[1..]).as_str()),
            "{asked:?}"
        );
    }
}

#[tokio::test]
async fn a_group_is_not_replaced_if_no_new_one_can_be_created() {
    let metrics = Metrics::default();
    let before = PodGroupRef {
        policy: GroupPolicy::Gang(4),
        ..wanted(true)
    };
    let there = serde_json::to_value(group(NOW, &jobset(), &before)).unwrap();
    for resource in ["/workloads", "/podgroups"] {
        // A PodGroup that need not be exact is not changed.
        let (client, _) = full(resource, Some(there.clone()));
        let made = create(&client, &metrics, NOW, &jobset(), &wanted(false)).await;
        assert_eq!(made.unwrap(), None, "{resource}");
        let (client, asked) = full(resource, Some(there.clone()));
        let refused = create(&client, &metrics, NOW, &jobset(), &wanted(true)).await;
        assert!(refused.is_err_and(|error| is_status(&error, 403)), "{resource}");
        let asked = asked.lock().unwrap();
        assert!(asked.iter().all(|line| line.starts_with("POST")), "{asked:?}");
    }
    // Nothing refuses it: the other one is deleted first.
    let (client, asked) = full("/none", Some(there));
    let _ = create(&client, &metrics, NOW, &jobset(), &wanted(true)).await;
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|line| line.starts_with("DELETE")), "{asked:?}");
}

#[test]
fn a_group_names_its_workload_and_is_deleted_with_its_jobset() {
    let (jobset, wanted) = (jobset(), wanted(true));
    let (workload, group) = (workload(NOW, &jobset, &wanted), group(NOW, &jobset, &wanted));
    for metadata in [&workload.metadata, &group.metadata] {
        assert_eq!(metadata.name.as_deref(), Some("js-w-0-5-abc"));
        assert_eq!(metadata.namespace.as_deref(), Some("ns"));
        let owners = metadata.owner_references.as_ref().unwrap();
        assert_eq!(
            (owners.len(), owners[0].uid.as_str(), owners[0].controller),
            (1, "u", Some(true))
        );
    }
    let policy = json!({"gang": {"minCount": 5}});
    assert_eq!(
        workload.data["spec"],
        json!({
            "controllerRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "js"},
            "podGroupTemplates": [{"name": "gang", "schedulingPolicy": policy, "priorityClassName": "high"}],
        })
    );
    assert_eq!(super::policy(GroupPolicy::Basic), json!({"basic": {}}));
}

#[test]
fn a_group_refers_to_its_workload_as_its_version_says() {
    let workload = json!({"workloadName": "js-w-0-5-abc", "podGroupTemplateName": "gang"});
    let former = json!({"podGroupTemplateRef": {"workload": workload}});
    let present = json!({"workloadRef": {"workloadName": "js-w-0-5-abc", "templateName": "gang"}});
    for (version, name, mut expected) in [
        (Version::V1Alpha2, "v1alpha2", former),
        (Version::V1Alpha3, "v1alpha3", present.clone()),
        (Version::V1Beta1, "v1beta1", present),
    ] {
        expected["schedulingPolicy"] = json!({"gang": {"minCount": 5}});
        if version != Version::V1Alpha2 {
            expected["priorityClassName"] = json!("high");
        }
        let group = group(version, &jobset(), &wanted(true));
        assert_eq!(group.data["spec"], expected, "{name}");
        let types = group.types.unwrap();
        assert_eq!(types.api_version, format!("scheduling.k8s.io/{name}"));
    }
}
