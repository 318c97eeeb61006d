use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};

use super::*;
use crate::view::testing::{before, now, object};

fn certificate(days: i64) -> String {
    let mut params = CertificateParams::new(vec!["lockstep-control-plane".into()]).unwrap();
    let date = |at: Timestamp| {
        let date = at.to_zoned(jiff::tz::TimeZone::UTC).date();
        rcgen::date_time_ymd(
            date.year().into(),
            date.month().unsigned_abs(),
            date.day().unsigned_abs(),
        )
    };
    params.not_before = date(before(100 * 86_400));
    params.not_after = date(before(-days * 86_400));
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

fn configuration<K: serde::de::DeserializeOwned>(name: &str, namespace: &str, ca: &str) -> K {
    let bundle = k8s_openapi::ByteString(ca.as_bytes().to_vec());
    object(json!({
        "metadata": {"name": name},
        "webhooks": [{
            "name": "w.x-k8s.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"service": {"name": "hooks", "namespace": namespace}, "caBundle": bundle},
            "rules": [{"apiGroups": ["jobset.x-k8s.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["jobsets"]}],
        }],
    }))
}

fn deployment(namespace: &str, name: &str, image: &str, ready: i32) -> Deployment {
    object(json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "selector": {}, "template": {"spec": {"containers": [{"name": "c", "image": image}]}}},
        "status": {"readyReplicas": ready},
    }))
}

fn daemon_pod() -> Pod {
    object(json!({
        "metadata": {"name": "d"},
        "spec": {"nodeName": "n1", "containers": [{"name": "node-daemon"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn node(name: &str, runtime: &str) -> Node {
    object(json!({
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"containerRuntimeVersion": runtime, "architecture": "", "bootID": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}},
    }))
}

fn lease(holder: &str, renewed: Timestamp) -> Lease {
    object(json!({"metadata": {"name": "l", "namespace": "n"},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": format!("{renewed:.6}")}}))
}

/// An installation without faults.
fn sound() -> Observed {
    let ca = certificate(300);
    Observed {
        now: now(),
        namespace: "lockstep-system".into(),
        version: Ok((1, 34, "v1.34.0".into())),
        jobset_crd: Ok(Some(Crd {
            version: Some("0.1.0+abc".into()),
            established: true,
            keeps_in_place: true,
        })),
        deployments: Ok(vec![deployment(
            "lockstep-system",
            "lockstep-control-plane",
            "r/lockstep-control-plane:1",
            1,
        )]),
        control_plane_pods: Ok(vec![object(json!({"metadata": {"name": "cp-1"}}))]),
        lease: Ok(Some(lease("cp-1", before(2)))),
        hub_ca: Ok(Some(object(json!({"metadata": {}, "data": {"ca.crt": ca}})))),
        mutating: Ok(vec![configuration(
            "jobset-mutating-webhook-configuration",
            "lockstep-system",
            &ca,
        )]),
        validating: Ok(vec![configuration(
            "jobset-validating-webhook-configuration",
            "lockstep-system",
            &ca,
        )]),
        services: Ok(vec![object(
            json!({"metadata": {"name": "hooks", "namespace": "lockstep-system"}}),
        )]),
        daemon_set: Ok(Some(object(
            json!({"metadata": {}, "spec": {"selector": {}, "template": {"spec": {"containers": []}}}}),
        ))),
        daemon_pods: Ok(vec![daemon_pod()]),
        nodes: Ok(vec![node("n1", "containerd://2.3.7")]),
        kills_of_whole_containers: [("n1".to_owned(), false)].into(),
        kuberay: Ok(Vec::new()),
        rights: vec![Ok(true); REQUIRED_RIGHTS.len()],
        platform: Some(Ok("here".into())),
        connected: None,
    }
}

#[test]
fn a_sound_installation_has_only_good_verdicts() {
    let verdicts = verdicts(&sound());
    let complaints: Vec<_> = verdicts
        .iter()
        .filter(|verdict| verdict.level != Level::Ok)
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(verdicts.len() >= 11, "{verdicts:?}");
}

#[test]
fn a_kubelet_whose_containers_end_whole_is_sound_but_named() {
    let mut seen = sound();
    seen.kills_of_whole_containers = [("n1".to_owned(), true), ("n2".to_owned(), false)].into();
    let verdicts = verdicts(&seen);
    assert_eq!(worst(&verdicts), Level::Ok);
    let found = verdicts
        .iter()
        .find(|verdict| verdict.text.contains("out of memory"));
    let found = found.unwrap();
    assert!(
        found.text.ends_with("is killed with its agent on n1"),
        "{found:?}"
    );
    assert!(
        found.hint.as_ref().unwrap().contains("singleProcessOOMKill"),
        "{found:?}"
    );

    // Without the right to ask, nothing is said.
    let seen = Observed {
        kills_of_whole_containers: BTreeMap::new(),
        ..sound()
    };
    let says = |verdict: &Verdict| verdict.text.contains("out of memory");
    assert!(!super::verdicts(&seen).iter().any(says));
}

/// Breaks one part of a sound installation.
type Break = fn(&mut Observed);

/// A table of faults, so it is long.
#[test]
fn each_fault_is_one_verdict_with_a_hint() {
    let faults: [(Break, Level, &str); 24] = [
        (
            |it| it.version = Ok((1, 33, "v1.33.5".into())),
            Level::Warning,
            "v1.33.5 is older than 1.34",
        ),
        (
            |it| it.version = Ok((1, 31, "v1.31.9".into())),
            Level::Error,
            "v1.31.9 is older than 1.32",
        ),
        (
            |it| it.jobset_crd = Ok(None),
            Level::Error,
            "jobsets.jobset.x-k8s.io does not exist",
        ),
        (
            |it| {
                it.jobset_crd = Ok(Some(Crd {
                    established: true,
                    ..Crd::default()
                }))
            },
            Level::Error,
            "drops status.inPlaceRestart",
        ),
        (
            |it| it.deployments = Ok(Vec::new()),
            Level::Error,
            "lockstep-control-plane does not exist",
        ),
        (
            |it| {
                it.deployments = Ok(vec![deployment(
                    "lockstep-system",
                    "lockstep-control-plane",
                    "r/l:1",
                    0,
                )])
            },
            Level::Error,
            "0 of 1 replicas ready",
        ),
        (|it| it.lease = Ok(None), Level::Error, "no replica has ever led"),
        (
            |it| it.lease = Ok(Some(lease("", before(2)))),
            Level::Error,
            "no replica leads",
        ),
        (
            |it| it.lease = Ok(Some(lease("cp-1", before(90)))),
            Level::Error,
            "has not renewed its Lease for 90s",
        ),
        (
            |it| it.lease = Ok(Some(lease("laptop", before(2)))),
            Level::Warning,
            "laptop is not a pod",
        ),
        (
            |it| it.hub_ca = Ok(None),
            Level::Error,
            "lockstep-hub-ca with ca.crt does not exist",
        ),
        (
            |it| {
                it.hub_ca = Ok(Some(object(
                    json!({"metadata": {}, "data": {"ca.crt": certificate(10)}}),
                )))
            },
            Level::Warning,
            "expires in 9d",
        ),
        (
            |it| {
                it.hub_ca = Ok(Some(object(
                    json!({"metadata": {}, "data": {"ca.crt": certificate(-3)}}),
                )))
            },
            Level::Error,
            "expired 3d",
        ),
        (
            |it| {
                it.mutating = Ok(vec![configuration(
                    "jobset-mutating-webhook-configuration",
                    "lockstep-system",
                    "",
                )])
            },
            Level::Error,
            "jobset-mutating-webhook-configuration has no CA",
        ),
        (
            |it| {
                it.validating = Ok(vec![configuration(
                    "jobset-validating-webhook-configuration",
                    "jobset-system",
                    "x",
                )])
            },
            Level::Error,
            "leads to Service jobset-system/hooks",
        ),
        (
            |it| it.validating = Ok(Vec::new()),
            Level::Warning,
            "jobset-validating-webhook-configuration does not exist",
        ),
        (
            |it| it.daemon_set = Ok(None),
            Level::Error,
            "lockstep-node-daemon does not exist",
        ),
        (
            |it| it.daemon_pods = Ok(Vec::new()),
            Level::Error,
            "no node daemon on n1",
        ),
        (
            |it| it.nodes = Ok(vec![node("n1", "containerd://2.1.4")]),
            Level::Warning,
            "containerd is too old on n1",
        ),
        (
            |it| {
                let other = deployment(
                    "jobset-system",
                    "controller",
                    "registry.k8s.io/jobset/jobset:v0.9.0",
                    1,
                );
                it.deployments.as_mut().unwrap().push(other);
            },
            Level::Error,
            "another JobSet controller runs: Deployment jobset-system/controller",
        ),
        (
            |it| it.rights[1] = Ok(false),
            Level::Warning,
            "you may not patch jobsets.jobset.x-k8s.io",
        ),
        (
            |it| it.nodes = Err("nodes is forbidden".into()),
            Level::Warning,
            "nodes is forbidden",
        ),
        (
            |it| {
                let nri = pb::RuntimeAccess {
                    state: pb::RuntimeAccessState::Away.into(),
                    detail: "larger than 4 MiB".to_owned(),
                    ..pb::RuntimeAccess::default()
                };
                it.connected = Some(vec![pb::Node {
                    name: "n1".to_owned(),
                    nri: Some(nri),
                    ..pb::Node::default()
                }]);
            },
            Level::Warning,
            "no agent gets into containers on n1: larger than 4 MiB",
        ),
        (
            |it| it.platform = Some(Err("no token".into())),
            Level::Warning,
            "was not reached: no token",
        ),
    ];
    for (damage, level, text) in faults {
        let mut seen = sound();
        damage(&mut seen);
        let found: Vec<Verdict> = verdicts(&seen)
            .into_iter()
            .filter(|verdict| verdict.level != Level::Ok)
            .collect();
        let [verdict] = found.as_slice() else {
            panic!("{text}: {found:#?}")
        };
        assert!(
            verdict.text.contains(text) && verdict.level == level,
            "{text}: {verdict:?}"
        );
        assert!(
            verdict.hint.as_ref().is_some_and(|hint| !hint.is_empty()),
            "{verdict:?}"
        );
        assert_eq!(worst(&found), level);
    }
}

#[test]
fn kuberay_is_a_conflict_only_if_lockstep_manages_ray() {
    let mut seen = sound();
    seen.kuberay = Ok(vec![lease("kuberay", before(5))]);
    assert_eq!(worst(&verdicts(&seen)), Level::Ok);
    let with_ray: Value = json!(["--ray"]);
    let mut ours = serde_json::to_value(&seen.deployments.as_ref().unwrap()[0]).unwrap();
    ours["spec"]["template"]["spec"]["containers"][0]["args"] = with_ray;
    seen.deployments = Ok(vec![object(ours)]);
    assert_eq!(worst(&verdicts(&seen)), Level::Warning);
    seen.kuberay = Ok(vec![lease("kuberay", before(600))]);
    assert_eq!(worst(&verdicts(&seen)), Level::Ok);
}

#[test]
fn webhooks_of_a_lockstep_elsewhere_are_not_deleted() {
    let hint = |control_plane: &str| {
        let mut seen = sound();
        seen.namespace = "mistaken".into();
        seen.deployments = Ok(vec![deployment(
            "lockstep-system",
            control_plane,
            "lockstep-control-plane:0.1.0",
            1,
        )]);
        let all = verdicts(&seen);
        let webhooks = all.iter().find(|it| it.text.contains("leads to Service"));
        webhooks.and_then(|it| it.hint.clone()).unwrap()
    };
    assert_eq!(
        hint("lockstep-control-plane"),
        "Lockstep is in lockstep-system, and needs it: give --system-namespace lockstep-system"
    );
    assert!(hint("another").contains("delete it"));
}
