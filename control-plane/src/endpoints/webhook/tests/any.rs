//! A webhook answers any input, and says what is wrong.

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestRunner;

use super::*;

const PATHS: [&str; 7] = [
    MUTATE,
    VALIDATE,
    "/mutate--v1-pod",
    "/validate--v1-pod",
    ray::CLUSTER,
    ray::JOB,
    ray::CRON,
];

/// A JobSet with values in all fields.
fn full() -> Value {
    let mut worker = worker();
    let pod = json!({
        "metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}},
        "spec": {"containers": [{"name": "c", "image": "i", "command": ["x"], "env": [{"name": "A", "value": "1"}]}]},
    });
    worker["template"]["spec"] = json!({
        "parallelism": 2, "completions": 2, "backoffLimit": i32::MAX, "template": pod,
        "podFailurePolicy": {"rules": [{
            "action": "FailJob",
            "onExitCodes": {"containerName": "c", "operator": "In", "values": [3]},
        }]},
    });
    let mut second = worker.clone();
    second["name"] = json!("v");
    second["dependsOn"] = json!([{"name": "w", "status": "Ready"}]);
    let mut object = jobset(json!({
        "replicatedJobs": [worker, second],
        "network": {"enableDNSHostnames": true, "subdomain": "s", "publishNotReadyAddresses": true},
        "successPolicy": {"operator": "All", "targetReplicatedJobs": ["w"]},
        "failurePolicy": {
            "maxRestarts": 3,
            "restartStrategy": "InPlaceRestart",
            "rules": [{"name": "r", "action": "RestartJobSet", "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": ["^x.*"], "targetReplicatedJobs": ["w"]}],
        },
        "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        "coordinator": {"replicatedJob": "w", "jobIndex": 0, "podIndex": 0},
        "suspend": false,
        "ttlSecondsAfterFinished": 60,
    }));
    object["metadata"]["annotations"] = json!({
        "alpha.jobset.sigs.k8s.io/inplace-timeout": "60s",
        "lockstep.dev/supervise": "c",
        "lockstep.dev/escalate-after": "3/10m",
        "jobset.sigs.k8s.io/jobset-name": "js",
        "alpha.jobset.sigs.k8s.io/exclusive-topology": "rack",
    });
    object
}

/// The JSON pointers of all values in a document.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value))
            .collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(index, value)| (index.to_string(), value))
            .collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let path = format!("{at}/{key}");
        pointers(child, &path, all);
        all.push(path);
    }
}

fn odd() -> impl Strategy<Value = Value> {
    let deep = (0..200).fold(json!([]), |inner, _| json!([inner]));
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            Value::Null,
            json!(true),
            json!(-1),
            json!(1e300),
            json!([]),
            json!({}),
            json!([null]),
            json!({"a": null}),
            json!("x".repeat(10_000)),
            deep,
        ]),
    ]
}

/// What must hold of every answer.
fn check(sent: &[u8], code: StatusCode, body: &[u8]) -> Result<(), TestCaseError> {
    let said = String::from_utf8_lossy(body);
    if code == StatusCode::BAD_REQUEST {
        let named =
            said.starts_with("not an AdmissionReview: ") || said == "the AdmissionReview has no request";
        prop_assert!(named, "{}", said);
        prop_assert!(said.len() < sent.len() + 200);
        return Ok(());
    }
    prop_assert_eq!(code, StatusCode::OK, "{}", said);
    let answer: Value = serde_json::from_slice(body).unwrap();
    let response = &answer["response"];
    prop_assert!(response["uid"].is_string());
    if response["allowed"] == true {
        // Damage in fields that nothing reads is not seen, and no API server sends it.
        if let Some(patch) = response["patch"].as_str()
            && let Ok(mut review) = serde_json::from_slice::<Value>(sent)
        {
            let patch: json_patch::Patch =
                serde_json::from_slice(&BASE64_STANDARD.decode(patch).unwrap()).unwrap();
            let mut object = review["request"]["object"].take();
            prop_assert!(json_patch::patch(&mut object, &patch).is_ok(), "{}", patch);
        }
    } else {
        let status = &response["status"];
        let message = status["message"].as_str().unwrap_or_default();
        prop_assert!(!message.is_empty(), "{}", said);
        // No input causes an internal error.
        prop_assert!(status["code"].as_i64().is_some_and(|code| code < 500), "{}", said);
    }
    Ok(())
}

/// Sends objects of this kind, varied and damaged.
fn vary(operation: &str, object: &Value, paths: &'static [&'static str]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let router = {
        let _entered = runtime.enter();
        router_with(api_server(Ok(BTreeMap::new())))
    };
    let ask = |path: &str, sent: Vec<u8>| {
        let (code, body) = runtime.block_on(post(router.clone(), path, sent.clone()));
        check(&sent, code, &body)
    };
    let valid = review(operation, object, object);
    let mut all = Vec::new();
    pointers(&valid, "", &mut all);
    let changes = prop::collection::vec((any::<Index>(), odd()), 0..3);
    let damage = prop::option::of((any::<Index>(), any::<u8>()));
    let garbage = prop::collection::vec(any::<u8>(), 0..60);
    TestRunner::default()
        .run(
            &(prop::sample::select(paths), changes, damage, garbage),
            |(path, changes, damage, garbage)| {
                let mut changed = valid.clone();
                for (at, value) in changes {
                    if let Some(place) = changed.pointer_mut(&all[at.index(all.len())]) {
                        *place = value;
                    }
                }
                let mut sent = changed.to_string().into_bytes();
                ask(path, sent.clone())?;
                if let Some((at, byte)) = damage {
                    let at = at.index(sent.len());
                    sent[at] = byte;
                    ask(path, sent)?;
                }
                ask(path, garbage)
            },
        )
        .unwrap();
}

#[test]
fn any_body_is_answered_with_what_is_wrong() {
    for operation in ["CREATE", "UPDATE", "DELETE"] {
        vary(operation, &full(), &PATHS);
    }
}

/// A RayJob with values in all fields, and the other kinds with a webhook of their own.
fn others() -> [(Value, &'static [&'static str]); 3] {
    let group = json!({
        "groupName": "g", "replicas": 2, "minReplicas": 1, "maxReplicas": 3, "rayStartParams": {"num-gpus": "1"},
        "template": {"spec": {"containers": [{"name": "ray", "image": "none", "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}]}},
    });
    let clustered = json!({"workerGroupSpecs": [group], "rayVersion": "2.46.0"});
    let job = ray::job(json!({
        "runtimeEnvYAML": "pip: [a]\nenv_vars:\n  A: '1'\n", "entrypointResources": "{\"a\": 1}", "metadata": {"b": "c"},
        "submissionMode": "K8sJobMode", "backoffLimit": 1, "activeDeadlineSeconds": 60, "shutdownAfterJobFinishes": true,
        "ttlSecondsAfterFinished": 5, "suspend": false, "entrypointNumCpus": 1,
        "submitterPodTemplate": {"spec": {"restartPolicy": "Never", "containers": [{"name": "s", "image": "none"}]}},
        "rayClusterSpec": ray::spec(clustered.clone()),
    }));
    let mut cron = ray::cron("*/5 * * * mon-fri");
    cron["spec"]["timeZone"] = json!("Europe/Berlin");
    [
        (job, &[ray::JOB]),
        (ray::cluster(clustered), &[ray::CLUSTER]),
        (cron, &[ray::CRON]),
    ]
}

#[test]
fn so_is_any_body_of_another_kind() {
    for (object, paths) in others() {
        for operation in ["CREATE", "UPDATE"] {
            vary(operation, &object, paths);
        }
    }
}

#[tokio::test]
async fn the_others_that_are_varied_are_accepted() {
    for (object, paths) in others() {
        let answer = ask(paths[0], "CREATE", &object, &object).await;
        assert_eq!(answer["allowed"], true, "{paths:?}: {answer}");
    }
}

#[tokio::test]
async fn the_manifest_that_is_varied_is_accepted() {
    let object = full();
    for (path, operation) in [(MUTATE, "CREATE"), (VALIDATE, "CREATE"), (VALIDATE, "UPDATE")] {
        let answer = ask(path, operation, &object, &object).await;
        assert_eq!(answer["allowed"], true, "{path} {operation}: {answer}");
    }
}
