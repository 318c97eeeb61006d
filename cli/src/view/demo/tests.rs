use serde_json::json;

use super::*;
use crate::view::testing::{before, now, object};

fn lease(renewed: Timestamp) -> Lease {
    object(
        json!({"spec": {"holderIdentity": "cp-0", "leaseDurationSeconds": 15, "renewTime": renewed.to_string()}}),
    )
}

fn pod(uid: &str, restarts: i32, ready: &str) -> Pod {
    object(json!({
        "metadata": {"name": format!("pod-{uid}"), "uid": uid},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [
            {"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": restarts, "state": {"running": {}}}]},
    }))
}

fn sound() -> Installed {
    Installed {
        now: now(),
        namespace: "lockstep-system".to_owned(),
        jobset_crd: Ok(Some(Crd {
            version: None,
            established: true,
            keeps_in_place: true,
        })),
        lease: Ok(Some(lease(before(5)))),
        daemons: Ok(vec![pod("a", 0, "False"), pod("b", 0, "True")]),
    }
}

#[test]
fn missing_parts_are_named_with_what_to_do() {
    assert_eq!(refusal(&sound()), None);
    let upstreams = Crd::default();
    for (seen, expected) in [
        (
            Installed {
                jobset_crd: Ok(None),
                ..sound()
            },
            "Lockstep is not installed: this cluster has no CRD of JobSets. Please install it",
        ),
        (
            Installed {
                jobset_crd: Ok(Some(upstreams)),
                ..sound()
            },
            "the CRD of JobSets is not Lockstep's",
        ),
        (
            Installed {
                lease: Ok(None),
                ..sound()
            },
            "Lockstep is not installed in namespace lockstep-system",
        ),
        (
            Installed {
                lease: Ok(Some(lease(before(16)))),
                ..sound()
            },
            "no control plane leads in namespace lockstep-system",
        ),
        (
            Installed {
                daemons: Ok(vec![pod("a", 0, "False")]),
                ..sound()
            },
            "no node daemon in namespace lockstep-system is ready",
        ),
    ] {
        let why = refusal(&seen).unwrap();
        assert!(why.starts_with(expected), "{why}");
    }
}

#[test]
fn unreadable_parts_do_not_prevent_the_demo() {
    let refused = || "forbidden".to_owned();
    let unseen = Installed {
        jobset_crd: Err(refused()),
        lease: Err(refused()),
        daemons: Err(refused()),
        ..sound()
    };
    assert_eq!(refusal(&unseen), None);
}

#[test]
fn pods_and_containers_that_stayed_are_counted() {
    let were = container_restarts(&[pod("a", 0, "True"), pod("b", 0, "True")]);
    for (now, expected) in [
        (
            [pod("a", 0, "True"), pod("b", 0, "True")],
            "in the same 2 pods and containers",
        ),
        (
            [pod("a", 1, "True"), pod("b", 0, "True")],
            "2 of 2 in the same pod, 1 of 2 in the same container",
        ),
        (
            [pod("c", 0, "True"), pod("b", 1, "True")],
            "1 of 2 in the same pod, 0 of 2 in the same container",
        ),
    ] {
        assert_eq!(kept(&were, &container_restarts(&now)), expected);
    }
}

#[test]
fn the_first_pod_that_cannot_start_is_named() {
    let pulling: Pod = object(json!({
        "metadata": {"name": "demo-workers-0-1"},
        "status": {"phase": "Pending", "containerStatuses": [
            {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
    }));
    assert_eq!(trouble(&[pod("a", 0, "True")]), None);
    let why = trouble(&[pod("a", 0, "True"), pulling]).unwrap();
    assert_eq!(why, "pod demo-workers-0-1 is ImagePullBackOff");
}

#[test]
fn the_demo_is_a_jobset_that_restarts_in_place_without_any_privilege() {
    let jobset: lockstep_api::JobSet = object(manifest("demo", "busybox", 3));
    assert!(jobset.in_place());
    let spec = jobset.spec.replicated_jobs[0].template.spec.clone().unwrap();
    assert_eq!((spec.completions, spec.parallelism), (Some(3), Some(3)));
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.security_context.unwrap().run_as_non_root, Some(true));
    let security = pod.containers[0].security_context.clone().unwrap();
    assert_eq!(security.allow_privilege_escalation, Some(false));
}
