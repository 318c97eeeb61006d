use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::RestartStrategy;

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job};

fn plain() -> JobSet {
    jobset([replicated_job("w", 1)])
}

fn in_place() -> JobSet {
    plain().restarting(RestartStrategy::InPlaceRestart, 1)
}

fn told(jobset: &JobSet) -> Vec<String> {
    create_warnings(jobset, &Features::default())
}

/// A JobSet with one annotation in its Job template, and one in its pod template.
fn in_templates(jobset: JobSet, of_job: &str, of_pod: &str) -> JobSet {
    let meta = |key: &str| {
        Some(ObjectMeta {
            annotations: Some([(key.to_owned(), "x".to_owned())].into()),
            ..ObjectMeta::default()
        })
    };
    jobset.with(|js| {
        let template = &mut js.spec.replicated_jobs[0].template;
        template.metadata = meta(of_job);
        template.spec.get_or_insert_default().template.metadata = meta(of_pod);
    })
}

#[test]
fn a_deadline_that_is_not_enforced_is_told() {
    let limited = plain().with(|js| js.spec.active_deadline_seconds = Some(60));
    assert_eq!(
        told(&limited),
        ["spec.activeDeadlineSeconds: no effect, since the feature gate JobSetActiveDeadlineSeconds is off"]
    );
    let enforced = Features {
        active_deadline: true,
        ..Features::default()
    };
    assert!(create_warnings(&limited, &enforced).is_empty());
}

#[test]
fn a_grace_that_does_not_fit_into_the_timeout_is_told() {
    let with = |grace: &str, timeout: Option<&str>| {
        let js = in_place().annotated(annotations::RESTART_GRACE, grace);
        told(&match timeout {
            Some(timeout) => js.annotated(annotations::IN_PLACE_TIMEOUT, timeout),
            None => js,
        })
    };
    assert!(with("59s", None).is_empty());
    assert!(with("60s", Some("2m")).is_empty());
    assert_eq!(
        with("90s", None),
        [
            "metadata.annotations[lockstep.dev/restart-grace]: it is not below alpha.jobset.sigs.k8s.io/inplace-timeout (60s), \
             so a worker that uses it up turns the restart into a recreation"
        ]
    );
}

#[test]
fn a_request_that_restarts_no_worker_is_told() {
    let asked = |request: &str| told(&in_place().annotated(annotations::RESTART_WORKERS, request));
    let start = "metadata.annotations[lockstep.dev/restart-workers]: ";
    let job = in_place().spec.replicated_jobs[0].name.clone();
    assert_eq!(
        asked("job/nope again"),
        [format!(
            "{start}job/nope again has no effect: the JobSet has no Job nope"
        )]
    );
    assert_eq!(
        asked(&format!("replicatedJob/{job} again")),
        [format!(
            "{start}replicatedJob/{job} again has no effect: the lockstep.dev/restart-scope of replicatedJob {job} is not worker, \
             so its workers restart with all others"
        )]
    );
    let scoped = in_place().with(|js| {
        let meta = js.spec.replicated_jobs[0]
            .template
            .metadata
            .get_or_insert_default();
        let scope = (annotations::RESTART_SCOPE.to_owned(), "worker".to_owned());
        meta.annotations.get_or_insert_default().extend([scope]);
    });
    let request = format!("replicatedJob/{job} again");
    assert!(told(&scoped.annotated(annotations::RESTART_WORKERS, &request)).is_empty());
}

#[test]
fn negative_max_restarts_are_told() {
    let js = plain().restarting(RestartStrategy::Recreate, -1);
    assert_eq!(
        told(&js),
        ["spec.failurePolicy.maxRestarts: it is negative, which counts as 0"]
    );
}

#[test]
fn what_has_an_effect_is_not_spoken_of() {
    let mut all = in_place();
    for (key, places, _) in USER_ANNOTATIONS {
        if places.contains(&AnnotatedObject::JobSet) {
            all = all.annotated(key, "x");
        }
    }
    for of_job in [annotations::RESTART_SCOPE, annotations::STANDBY] {
        let all = in_templates(all.clone(), of_job, annotations::EXCLUSIVE_TOPOLOGY);
        assert_eq!(told(&all), Vec::<String>::new());
    }
    // Annotations of others and of the control plane get no warning either.
    let others = plain()
        .annotated("kubectl.kubernetes.io/last-applied-configuration", "{}")
        .annotated("restart-grace", "5s")
        .annotated("example.com/restart-grace", "5s")
        .annotated("jobset.sigs.k8s.io/something-new", "x")
        .annotated("alpha.jobset.sigs.k8s.io/something-new", "x")
        .annotated(annotations::IN_PLACE_RESTARTS, "3")
        .annotated(ray::TEMPLATE_DIGEST, "abc")
        .annotated(ray::SETTINGS_DIGEST, "abc");
    assert_eq!(told(&others), Vec::<String>::new());
}

#[test]
fn a_name_that_is_not_known_is_named_with_the_nearest_one() {
    let about = |key: &str| told(&in_place().annotated(key, "5s")).join("; ");
    assert_eq!(
        about("lockstep.dev/restart-grase"),
        "metadata.annotations[lockstep.dev/restart-grase]: unknown annotation: did you mean lockstep.dev/restart-grace?"
    );
    for (wrong, meant) in [
        ("lockstep.dev/Restart-Grace", "lockstep.dev/restart-grace"),
        ("lockstep.dev/heartbeattimeout", "lockstep.dev/heartbeat-timeout"),
        ("lockstep.dev/supervised", "lockstep.dev/supervise"),
        ("lockstep.dev/inplace-timeout", annotations::IN_PLACE_TIMEOUT),
        (
            "jobset.sigs.k8s.io/inplace-timeout",
            annotations::IN_PLACE_TIMEOUT,
        ),
        (
            "alpha.jobset.sigs.k8s.io/inplace-timout",
            annotations::IN_PLACE_TIMEOUT,
        ),
        (
            "alpha.jobset.sigs.k8s.io/exclusive-toplogy",
            annotations::EXCLUSIVE_TOPOLOGY,
        ),
    ] {
        let said = about(wrong);
        assert!(
            said.ends_with(&format!("[{wrong}]: unknown annotation: did you mean {meant}?")),
            "{said}"
        );
    }
    for wrong in [
        "lockstep.dev/priority",
        "lockstep.dev/",
        "alpha.jobset.sigs.k8s.io/inplace-mode",
    ] {
        let said = about(wrong);
        assert!(
            said.ends_with(&format!("[{wrong}]: unknown annotation: it has no effect")),
            "{said}"
        );
    }
}

#[test]
fn what_tunes_restarts_in_place_does_nothing_elsewhere() {
    let annotated = |js: JobSet| js.annotated(annotations::MAX_BACKOFF, "5s");
    assert_eq!(
        told(&annotated(plain())),
        [
            "metadata.annotations[lockstep.dev/max-backoff]: has no effect: spec.failurePolicy.restartStrategy is not InPlaceRestart"
        ]
    );
    // The annotation opts in as well.
    assert!(told(&annotated(plain()).annotated(annotations::IN_PLACE_TIMEOUT, "30s")).is_empty());

    let off = Features {
        in_place_restart: false,
        ..Features::default()
    };
    let timeout = plain().annotated(annotations::IN_PLACE_TIMEOUT, "30s");
    assert_eq!(
        create_warnings(&timeout, &off),
        [
            "metadata.annotations[alpha.jobset.sigs.k8s.io/inplace-timeout]: has no effect: the feature gate InPlaceRestart is off"
        ]
    );
}

#[test]
fn standbys_need_agents_and_do_not_belong_on_pods() {
    let asked = in_templates(in_place(), annotations::STANDBY, annotations::STANDBY);
    assert_eq!(
        told(&asked),
        [
            "spec.replicatedJobs[0].template.spec.template.metadata.annotations[lockstep.dev/standby]: has no effect here: it belongs in \
             metadata.annotations of the JobSet"
        ]
    );
    let without = in_place()
        .annotated(annotations::STANDBY, "python")
        .annotated(annotations::SUPERVISE, annotations::SUPERVISE_NONE);
    assert_eq!(
        told(&without),
        [
            "metadata.annotations[lockstep.dev/standby]: has no effect: the JobSet is annotated lockstep.dev/supervise: none"
        ]
    );
    assert_eq!(told(&plain().annotated(annotations::STANDBY, "python")).len(), 1);
}

#[test]
fn that_nothing_is_supervised_has_an_effect() {
    let refused = |js: JobSet| js.annotated(annotations::SUPERVISE, annotations::SUPERVISE_NONE);
    let in_place = jobset([replicated_job("w", 1)]).restarting(RestartStrategy::InPlaceRestart, 1);
    assert!(told(&refused(in_place)).is_empty());
    assert_eq!(told(&refused(plain())).len(), 1);
}

#[test]
fn what_agents_do_is_not_done_without_them() {
    let probed = replicated_job("w", 1).pod_spec(|pod| {
        pod.containers[0].liveness_probe = Some(Probe::default());
    });
    let js = jobset([probed])
        .restarting(RestartStrategy::InPlaceRestart, 1)
        .annotated(annotations::HEARTBEAT_TIMEOUT, "30s")
        .annotated(annotations::MAX_BACKOFF, "30s");
    // Containers restart, and that can be delayed.
    assert_eq!(
        told(&js),
        [
            "metadata.annotations[lockstep.dev/heartbeat-timeout]: has no effect: container worker of replicatedJob w has a livenessProbe"
        ]
    );
    let never = js.with(|js| {
        let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        job.template.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    });
    assert_eq!(
        told(&never).len(),
        2,
        "nothing restarts in place: {:?}",
        told(&never)
    );
}

#[test]
fn ready_timeout_needs_a_heartbeat_timeout() {
    let js = in_place().annotated(annotations::READY_TIMEOUT, "10m");
    assert_eq!(
        told(&js),
        [
            "metadata.annotations[lockstep.dev/ready-timeout]: has no effect: heartbeat-timeout is not set beside it"
        ]
    );
    assert!(told(&js.annotated(annotations::HEARTBEAT_TIMEOUT, "30s")).is_empty());
}

#[test]
fn a_warning_names_the_right_place_of_an_annotation() {
    let misplaced = in_templates(in_place(), annotations::RESTART_GRACE, annotations::RESTART_SCOPE)
        .annotated(annotations::RESTART_SCOPE, "worker")
        .annotated(annotations::IN_PLACE, "true");
    assert_eq!(
        told(&misplaced),
        [
            "metadata.annotations[lockstep.dev/in-place]: has no effect: only the control plane sets it, on Jobs and pods",
            "metadata.annotations[lockstep.dev/restart-scope]: has no effect here: it belongs in template.metadata.annotations of a \
             replicatedJob",
            "spec.replicatedJobs[0].template.metadata.annotations[lockstep.dev/restart-grace]: has no effect here: it belongs in \
             metadata.annotations of the JobSet",
            "spec.replicatedJobs[0].template.spec.template.metadata.annotations[lockstep.dev/restart-scope]: has no effect here: it belongs \
             in template.metadata.annotations of a replicatedJob",
        ]
    );
    let alone = plain().annotated(annotations::NODE_SELECTOR_STRATEGY, "true");
    assert_eq!(
        told(&alone),
        [
            "metadata.annotations[alpha.jobset.sigs.k8s.io/node-selector]: has no effect: exclusive-topology is not set beside it"
        ]
    );
}

#[test]
fn exclusive_topologies_that_are_no_label_are_reported() {
    for value in ["", "not a label"] {
        let js = plain().annotated(annotations::EXCLUSIVE_TOPOLOGY, value);
        assert_eq!(
            told(&js),
            [
                "metadata.annotations[alpha.jobset.sigs.k8s.io/exclusive-topology]: is not a valid node label key, so no pod \
                 can be created"
            ]
        );
        // Labels that others put on the nodes then decide which nodes it may use.
        assert!(told(&js.annotated(annotations::NODE_SELECTOR_STRATEGY, "true")).is_empty());
    }
}

#[test]
fn a_change_tells_only_of_what_it_brings() {
    let old = plain().annotated("lockstep.dev/old", "x");
    let new = old.clone().annotated("lockstep.dev/new", "x").suspended(true);
    let told = |old: &JobSet, new: &JobSet| update_warnings(old, new, &Features::default());
    assert_eq!(
        told(&old, &new),
        ["metadata.annotations[lockstep.dev/new]: unknown annotation: it has no effect"]
    );
    assert!(told(&new, &new).is_empty());
}

#[test]
fn there_are_few_warnings_and_none_is_long() {
    let mut many = plain();
    for index in 0..30 {
        many = many.annotated(&format!("lockstep.dev/{index}{}", "ä".repeat(200)), "x");
    }
    let told = told(&many);
    assert_eq!(told.len(), 10);
    assert_eq!(told[9], "and 21 more warnings");
    assert!(told.iter().all(|warning| warning.len() <= 256), "{told:?}");
    assert!(told[0].ends_with("..."), "{told:?}");
}
