//! Ray's resources with odd values, many of them, and heads that answer what no dashboard does.

use std::time::Duration;

use anyhow::Result;
use lockstep_integration::harness::manifest::IMAGE;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{little, nowhere};
use crate::tenant::attacker::{Attacker, RAY_CLUSTER, RAY_CRON_JOB, RAY_JOB, SERVICE};

/// The image with Python, in which the false dashboards run.
const PYTHON: &str = "localhost/python:3";
/// A dashboard that answers in one of these ways.
const DASHBOARD: &str = include_str!("ray/dashboard.py");
const WAYS: [&str; 7] = ["slow", "endless", "huge", "long", "nonsense", "elsewhere", "head"];
/// RayJobs whose heads run nowhere, and schedules of such jobs.
const JOBS: usize = 150;
const SCHEDULES: usize = 30;
/// The time between two changes of the heads' Services.
const PACE: Duration = Duration::from_secs(5);

/// All of these, and changes of the Services until the phase is over.
pub(super) async fn ray(attacker: &Attacker) -> Result<()> {
    for bomb in bombs() {
        let mut job = job(attacker, head_nowhere());
        job["spec"]["runtimeEnvYAML"] = json!(bomb);
        attacker.must_fail(RAY_JOB, job, "runtimeEnvYAML").await?;
    }
    for way in WAYS {
        attacker.create(RAY_JOB, job(attacker, false_head(way))).await?;
    }
    for odd in odd_clusters() {
        let manifest = json!({"metadata": {"name": attacker.unique("odd")}, "spec": odd});
        attacker.create(RAY_CLUSTER, manifest).await?;
    }
    attacker
        .flood(RAY_JOB, JOBS, |_| job(attacker, head_nowhere()))
        .await?;
    attacker
        .flood(RAY_CRON_JOB, SCHEDULES, |_| {
            let template = job(attacker, head_nowhere())["spec"].take();
            json!({
                "metadata": {"name": attacker.unique("cron")},
                "spec": {"schedule": "* * * * *", "jobTemplate": template},
            })
        })
        .await?;
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while attacker.goes_on() {
        pace.tick().await;
        for (number, name) in attacker.names(SERVICE).await.iter().enumerate() {
            attacker.patch(SERVICE, name, led_astray(number)).await;
        }
    }
    Ok(())
}

/// Another place for a Service to lead to.
fn led_astray(number: usize) -> Value {
    match number % 3 {
        0 => json!({"spec": {
            "type": "ExternalName",
            "externalName": "lockstep-control-plane.lockstep-system.svc.cluster.local",
            "clusterIP": null,
            "clusterIPs": null,
        }}),
        1 => json!({"spec": {"selector": {"app.kubernetes.io/component": "control-plane"}}}),
        _ => json!({"spec": {"ports": [{"name": "dashboard", "port": 8265, "targetPort": 1}]}}),
    }
}

/// A RayJob that the control plane submits itself.
fn job(attacker: &Attacker, head: Value) -> Value {
    json!({
        "metadata": {"name": attacker.unique("rj")},
        "spec": {
            "entrypoint": "python main.py",
            "submissionMode": "HTTPMode",
            "backoffLimit": 1000,
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {}, "template": head},
                "workerGroupSpecs": [],
            },
        },
    })
}

/// A head that no node takes.
fn head_nowhere() -> Value {
    let mut spec = nowhere();
    spec["containers"] = json!([{"name": "ray", "image": IMAGE}]);
    json!({"spec": spec})
}

/// A head that keeps its own command.
fn false_head(way: &str) -> Value {
    json!({
        "metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "ray",
                "image": PYTHON,
                "imagePullPolicy": "Never",
                "command": ["python3", "-c", DASHBOARD, way],
                "resources": little(),
            }],
        },
    })
}

/// Few bytes that stand for many, or are too many.
fn bombs() -> Vec<String> {
    let list = |element: &str| vec![element; 3000].join(",");
    vec![
        format!("a: &a [{}]\nb: [{}]\n", list("1"), list("*a")),
        format!("a: {}{}", "[".repeat(1000), "]".repeat(1000)),
        format!("env_vars: {{a: \"{}\"}}", "x".repeat(70_000)),
        format!("a: [{}]", vec!["1"; 20_000].join(",")),
        "x: &x\n  y: 1\nz:\n  <<: *x\n".to_owned(),
        "- a".to_owned(),
    ]
}

/// Clusters that are taken or refused, as the webhook sees fit.
fn odd_clusters() -> Vec<Value> {
    let group = |more: Value| {
        let mut group =
            json!({"groupName": "g", "replicas": 1, "rayStartParams": {}, "template": head_nowhere()});
        for (key, value) in more.as_object().into_iter().flatten() {
            group[key] = value.clone();
        }
        group
    };
    let cluster = |groups: Vec<Value>, params: Value| {
        let head = json!({"rayStartParams": params, "template": head_nowhere()});
        json!({"headGroupSpec": head, "workerGroupSpecs": groups})
    };
    let many = |count: usize| {
        (0..count)
            .map(|number| group(json!({"groupName": format!("g{number}")})))
            .collect()
    };
    vec![
        cluster(vec![group(json!({"replicas": i32::MAX}))], json!({})),
        cluster(vec![group(json!({"replicas": -1}))], json!({})),
        cluster(
            vec![group(json!({"numOfHosts": i32::MAX, "replicas": i32::MAX}))],
            json!({}),
        ),
        cluster(
            vec![group(json!({"minReplicas": 5, "maxReplicas": 1}))],
            json!({}),
        ),
        cluster(
            vec![group(json!({"replicas": 20_000, "maxReplicas": 20_000}))],
            json!({}),
        ),
        cluster(many(100), json!({})),
        cluster(many(1000), json!({})),
        cluster(
            vec![],
            json!({"dashboard-port": "99999999999999999999", "port": "-1"}),
        ),
        cluster(vec![], json!({"resources": "x".repeat(200_000)})),
        cluster(vec![], json!({"$(x)": "`reboot`", "a b": "\u{0}"})),
    ]
}
