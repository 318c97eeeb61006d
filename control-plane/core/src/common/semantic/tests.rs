use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use serde_json::json;

use super::*;

/// A Job template with this pod.
fn pod(spec: Value) -> JobTemplateSpec {
    template(json!({"template": {"spec": spec}}))
}

fn template(job: Value) -> JobTemplateSpec {
    serde_json::from_value(json!({"spec": job})).unwrap()
}

/// A pod with one container with an additional field.
fn container(field: &str, value: Value) -> JobTemplateSpec {
    pod(json!({"containers": [{"name": "c", "image": "i", field: value}]}))
}

/// A pod with an additional field.
fn with(field: &str, value: Value) -> JobTemplateSpec {
    pod(json!({"containers": [{"name": "c", "image": "i"}], field: value}))
}

fn volume(source: Value) -> JobTemplateSpec {
    let mut volume = source;
    volume["name"] = json!("v");
    with("volumes", json!([volume]))
}

fn plain() -> JobTemplateSpec {
    with("hostname", json!(""))
}

#[track_caller]
fn same(one: &JobTemplateSpec, other: &JobTemplateSpec) {
    assert_ne!(one, other, "nothing to compare");
    assert_eq!(changes("t", one, other), [""; 0]);
    assert_eq!(changes("t", other, one), [""; 0]);
}

#[track_caller]
fn differ(one: &JobTemplateSpec, other: &JobTemplateSpec, path: &str) {
    assert_eq!(changes("t", one, other), [path]);
    assert_eq!(changes("t", other, one), [path]);
}

#[test]
fn zero_values_that_are_written_out_say_nothing() {
    for (field, zero) in [
        ("hostNetwork", json!(false)),
        ("hostPID", json!(false)),
        ("hostIPC", json!(false)),
        ("nodeName", json!("")),
        ("nodeSelector", json!({})),
        ("tolerations", json!([])),
        ("restartPolicy", json!("")),
        ("overhead", json!({})),
    ] {
        same(&plain(), &with(field, zero));
    }
    let plain = container("workingDir", json!(""));
    for (field, zero) in [
        ("resources", json!({})),
        ("resources", json!({"limits": {}, "requests": {}, "claims": []})),
        ("stdin", json!(false)),
        ("stdinOnce", json!(false)),
        ("tty", json!(false)),
        ("imagePullPolicy", json!("")),
        ("args", json!([])),
    ] {
        same(&plain, &container(field, zero));
    }
}

#[test]
fn zero_values_in_lists_of_structs_say_nothing() {
    for (field, said, written) in [
        (
            "env",
            json!({"name": "E"}),
            json!({"name": "E", "value": "", "valueFrom": null}),
        ),
        (
            "volumeMounts",
            json!({"name": "v", "mountPath": "/v"}),
            json!({"name": "v", "mountPath": "/v", "readOnly": false, "subPath": ""}),
        ),
        (
            "ports",
            json!({"containerPort": 1}),
            json!({"containerPort": 1, "hostPort": 0, "hostIP": "", "name": "", "protocol": ""}),
        ),
    ] {
        same(
            &container(field, json!([said])),
            &container(field, json!([written])),
        );
    }
    let probe = |more: Value| {
        let mut probe = json!({"exec": {"command": ["true"]}});
        probe
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        container("livenessProbe", probe)
    };
    let zeroes = json!({
        "initialDelaySeconds": 0, "timeoutSeconds": 0, "periodSeconds": 0, "successThreshold": 0, "failureThreshold": 0,
    });
    same(&probe(json!({})), &probe(zeroes));
    differ(
        &probe(json!({})),
        &probe(json!({"terminationGracePeriodSeconds": 0})),
        "t.spec.template.spec.containers[0].livenessProbe.terminationGracePeriodSeconds",
    );
    differ(
        &probe(json!({"periodSeconds": 0})),
        &probe(json!({"periodSeconds": 1})),
        "t.spec.template.spec.containers[0].livenessProbe.periodSeconds",
    );
}

#[test]
fn empty_metadata_equals_none() {
    let bare: JobTemplateSpec = serde_json::from_value(json!({"spec": {"template": {}}})).unwrap();
    let empty = json!({
        "metadata": {"creationTimestamp": null, "labels": {}, "annotations": {}},
        "spec": {"template": {"metadata": {}}},
    });
    same(&bare, &serde_json::from_value(empty).unwrap());
    same(&bare, &JobTemplateSpec::default());
}

#[test]
fn pointers_are_there_or_not() {
    for (field, value) in [
        ("securityContext", json!({})),
        ("affinity", json!({})),
        ("dnsConfig", json!({})),
        ("resources", json!({})),
        ("automountServiceAccountToken", json!(false)),
        ("shareProcessNamespace", json!(false)),
        ("terminationGracePeriodSeconds", json!(0)),
        ("priority", json!(0)),
        ("runtimeClassName", json!("")),
    ] {
        differ(
            &plain(),
            &with(field, value),
            &format!("t.spec.template.spec.{field}"),
        );
    }
    for field in [
        "backoffLimit",
        "parallelism",
        "completions",
        "ttlSecondsAfterFinished",
    ] {
        let of_job = |value: Value| template(json!({"suspend": true, field: value}));
        differ(
            &of_job(Value::Null),
            &of_job(json!(0)),
            &format!("t.spec.{field}"),
        );
    }
    let policy = container("restartPolicy", json!(""));
    differ(
        &container("args", json!([])),
        &policy,
        "t.spec.template.spec.containers[0].restartPolicy",
    );
    differ(
        &container("securityContext", json!({})),
        &container("securityContext", json!({"runAsNonRoot": false})),
        "t.spec.template.spec.containers[0].securityContext.runAsNonRoot",
    );
}

#[test]
fn some_fields_are_pointers_in_some_volumes_only() {
    let volume_path = |below: &str| format!("t.spec.template.spec.volumes[0].{below}");
    differ(
        &volume(json!({})),
        &volume(json!({"emptyDir": {}})),
        &volume_path("emptyDir"),
    );
    same(
        &volume(json!({"emptyDir": {}})),
        &volume(json!({"emptyDir": {"medium": ""}})),
    );
    same(
        &volume(json!({"nfs": {"path": "/", "server": "s"}})),
        &volume(json!({"nfs": {"path": "/", "server": "s", "readOnly": false}})),
    );
    differ(
        &volume(json!({"csi": {"driver": "d"}})),
        &volume(json!({"csi": {"driver": "d", "readOnly": false}})),
        &volume_path("csi.readOnly"),
    );
    same(
        &volume(json!({"csi": {"driver": "d"}})),
        &volume(json!({"csi": {"driver": "d", "volumeAttributes": {}}})),
    );
    differ(
        &volume(json!({"hostPath": {"path": "/"}})),
        &volume(json!({"hostPath": {"path": "/", "type": ""}})),
        &volume_path("hostPath.type"),
    );
    let dns = |option: Value| with("dnsConfig", json!({"options": [option]}));
    differ(
        &dns(json!({"name": "n"})),
        &dns(json!({"name": "n", "value": ""})),
        "t.spec.template.spec.dnsConfig.options[0].value",
    );
}

#[test]
fn what_users_wrote_into_maps_and_lists_stays() {
    let labelled = |labels: Value| {
        template(json!({"template": {"metadata": {"labels": labels, "annotations": {"a": "b"}}}}))
    };
    differ(
        &labelled(json!({"a": ""})),
        &labelled(json!({})),
        "t.spec.template.metadata.labels",
    );
    differ(
        &labelled(json!({"limits": "1", "cpu": "1000m"})),
        &labelled(json!({"limits": "1", "cpu": "1"})),
        "t.spec.template.metadata.labels.cpu",
    );
    differ(
        &container("args", json!(["", "x"])),
        &container("args", json!(["x"])),
        "t.spec.template.spec.containers[0].args",
    );
    differ(
        &with("tolerations", json!([{}])),
        &with("tolerations", json!([])),
        "t.spec.template.spec.tolerations",
    );
    differ(
        &container("env", json!([{"name": "E", "value": "1000m"}])),
        &container("env", json!([{"name": "E", "value": "1"}])),
        "t.spec.template.spec.containers[0].env[0].value",
    );
}

#[test]
fn quantities_are_as_large_as_they_are() {
    let asking = |amount: &str| container("resources", json!({"requests": {"cpu": amount}}));
    for (one, other) in [
        ("1000m", "1"),
        ("1Gi", "1024Mi"),
        ("1e3", "1k"),
        ("0.5", "500m"),
        ("1n", "0.1n"),
        ("+2", "2"),
        ("0", "-0"),
        ("8Ei", "8192Pi"),
    ] {
        same(&asking(one), &asking(other));
    }
    let path = "t.spec.template.spec.containers[0].resources.requests.cpu";
    for (one, other) in [("1", "2"), ("1M", "1Mi"), ("1n", "2n"), ("1u", "1m"), ("1", "-1")] {
        differ(&asking(one), &asking(other), path);
    }
    // Values that cannot be parsed are compared as text.
    differ(&asking("x"), &asking("y"), path);
    differ(
        &asking("0"),
        &container("resources", json!({})),
        "t.spec.template.spec.containers[0].resources",
    );
    let sized = |limit: &str| volume(json!({"emptyDir": {"sizeLimit": limit}}));
    same(&sized("1Ki"), &sized("1024"));
    let divided = |divisor: Value| {
        let field = json!({"resource": "limits.cpu", "divisor": divisor});
        container(
            "env",
            json!([{"name": "E", "valueFrom": {"resourceFieldRef": field}}]),
        )
    };
    same(&divided(Value::Null), &divided(json!("0")));
    same(&divided(json!("1m")), &divided(json!("0.001")));
}

#[test]
fn classes_of_storage_are_pointers() {
    let claim = |class: Value| -> PersistentVolumeClaimSpec {
        serde_json::from_value(json!({"storageClassName": class})).unwrap()
    };
    assert_eq!(
        changes("spec", &claim(Value::Null), &claim(json!(""))),
        ["spec.storageClassName"]
    );
}

#[test]
fn a_few_paths_are_enough() {
    let many = |value: &str| {
        let items: Vec<Value> = (0..20)
            .map(|n| json!({"name": format!("e{n}"), "value": value}))
            .collect();
        container("env", items.into())
    };
    assert_eq!(changes("t", &many("a"), &many("b")).len(), 5);
}
