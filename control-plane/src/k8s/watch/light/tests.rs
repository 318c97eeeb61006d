use k8s_openapi::api::core::v1::PodSpec;
use lockstep_core::jobset::in_place::Agents;
use serde_json::{Value, json};

use super::*;

fn jobset(pod: &Value) -> JobSet {
    let template = json!({"spec": {"template": {"spec": pod}}});
    serde_json::from_value(json!({
        "metadata": {"name": "train", "namespace": "a", "uid": "u"},
        "spec": {
            "failurePolicy": {"maxRestarts": 3, "restartStrategy": "InPlaceRestart"},
            "replicatedJobs": [{"name": "w", "replicas": 2, "template": template}],
        },
    }))
    .unwrap()
}

fn pod(container: Value) -> Value {
    let mut one = json!({"name": "c", "image": "i", "command": ["python", "train.py"]});
    for (key, value) in container.as_object().unwrap() {
        one[key] = value.clone();
    }
    json!({"restartPolicy": "OnFailure", "containers": [one]})
}

fn pod_of(jobset: &JobSet) -> &PodSpec {
    let template = jobset.spec.replicated_jobs[0].template.spec.as_ref().unwrap();
    template.template.spec.as_ref().unwrap()
}

#[test]
fn decisions_about_a_light_jobset_equal_those_about_the_whole_one() {
    let env = |names: &[&str]| -> Value {
        let env: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "value": "x"}))
            .collect();
        json!({"env": env})
    };
    let restarts_all = json!({"restartPolicy": "Never", "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]});
    let probe = json!({"exec": {"command": ["true"]}});
    let pods = [
        pod(json!({})),
        pod(json!({"command": []})),
        pod(json!({"livenessProbe": probe})),
        pod(json!({"startupProbe": probe})),
        pod(json!({"readinessProbe": probe})),
        pod(json!({"lifecycle": {"postStart": probe}})),
        pod(json!({"lifecycle": {"preStop": probe}})),
        pod(json!({"volumeMounts": [{"name": "v", "mountPath": "/.lockstep/x"}]})),
        pod(json!({"volumeMounts": [{"name": "v", "mountPath": "/data"}]})),
        pod(restarts_all),
        pod(env(&["JOBSET_NAME", "POD_NAME", "WORKER_COMMAND", "OTHER"])),
        pod(env(&["JOBSET_NAME", "POD_NAME", "OTHER"])),
        pod(env(&["OTHER"])),
        json!({"restartPolicy": "Never", "shareProcessNamespace": true, "containers": [{"name": "c"}]}),
        json!({"restartPolicy": "OnFailure", "hostPID": true, "runtimeClassName": "kata", "containers": [{"name": "c"}]}),
    ];
    for pod in &pods {
        let whole = jobset(pod);
        for agents in [Agents::ByNode, Agents::ByTemplate("image".into())] {
            let judged = |jobset: &JobSet| {
                let group = in_place::mode_of_new_jobs(jobset, &agents);
                group.map(|group| (group.kind, group.level, group.reasons))
            };
            assert_eq!(judged(&light(whole.clone())), judged(&whole), "{pod}");
        }
    }
}

#[test]
fn unread_fields_are_not_kept() {
    let many = |one: Value| vec![one; 5_000];
    let mut pod = pod(json!({
        "args": vec!["a"; 5_000],
        "env": (0..5_000).map(|at| json!({"name": format!("V{at}"), "value": "x"})).collect::<Vec<_>>(),
        "ports": many(json!({"containerPort": 1})),
        "readinessProbe": {"exec": {"command": vec!["a"; 5_000]}},
        "livenessProbe": {"exec": {"command": vec!["a"; 5_000]}},
    }));
    pod["volumes"] = json!(many(json!({"name": "a", "projected": {"sources": [{}]}})));
    let whole = jobset(&pod);
    let light = light(whole.clone());
    let kept = weight(&light);
    assert!(
        kept < 32 && weight(&whole) > 10_000,
        "{kept} of {}",
        weight(&whole)
    );
    assert_eq!(light.metadata, whole.metadata);
    assert_eq!(light.spec.failure_policy, whole.spec.failure_policy);
}

#[test]
fn that_a_pod_needs_a_claim_or_a_port_of_its_node_is_kept() {
    let mut pod = pod(json!({"ports": [{"containerPort": 1}, {"containerPort": 2, "hostPort": 2}]}));
    pod["volumes"] =
        json!([{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": "c"}}]);
    let light = light(jobset(&pod));
    let pod = pod_of(&light);
    let volumes = pod.volumes.as_ref().unwrap();
    assert!(volumes.len() == 1 && volumes[0].persistent_volume_claim.is_some());
    assert_eq!(pod.containers[0].ports.as_ref().unwrap()[0].host_port, Some(2));
}
