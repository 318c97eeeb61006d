use lockstep_api::{
    Coordinator, FailurePolicyAction as Action, Network, RestartStrategy, SuccessPolicy, annotations,
};

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job, rule};

fn base() -> JobSet {
    jobset([replicated_job("a", 2), replicated_job("b", 1)])
}

/// Field and message of each violation.
fn violations(jobset: &JobSet) -> Vec<(String, String)> {
    validate(jobset, &Features::default())
        .into_iter()
        .map(|violation| (violation.field, violation.message))
        .collect()
}

#[track_caller]
fn one(jobset: &JobSet, field: &str, message: &str) {
    let found = violations(jobset);
    assert!(
        found.len() == 1 && found[0].0 == field && found[0].1.contains(message),
        "{found:#?}"
    );
}

#[test]
fn a_minimal_jobset_is_valid() {
    assert_eq!(violations(&base()), []);
    assert_eq!(
        violations(&base().restarting(RestartStrategy::InPlaceRestart, 3)),
        []
    );
    let mut bare = ReplicatedJob {
        name: "a".to_owned(),
        ..Default::default()
    };
    bare.template.spec = None;
    assert_eq!(violations(&jobset([bare])), []);
}

#[test]
fn generated_names_must_fit() {
    let long = |name: usize| base().with(|js| js.metadata.name = Some("j".repeat(name)));
    // `<js>-a-1-0-abcde` is 12 characters longer than `<js>`.
    assert_eq!(violations(&long(51)), []);
    let found = violations(&long(52));
    assert_eq!(found[0].0, "spec.replicatedJobs[0].name");
    assert!(
        found[0]
            .1
            .contains("pod names generated for this JobSet will exceed 63 characters"),
        "{found:#?}"
    );
    let found = violations(&long(61));
    assert!(
        found[0]
            .1
            .contains("job names generated for this JobSet will exceed 63 characters"),
        "{found:#?}"
    );
    let found = violations(&base().with(|js| js.metadata.name = Some("1js".to_owned())));
    assert!(
        found
            .iter()
            .all(|(_, message)| message.starts_with("a DNS-1035 label must consist")),
        "{found:#?}"
    );
}

#[test]
fn sizes_must_fit() {
    let js = jobset([replicated_job("a", 65536).job_spec(|spec| spec.parallelism = Some(65536))]);
    one(
        &js,
        "spec.replicatedJobs[0].replicas",
        "must not exceed 2147483647 for replicatedJob 'a'",
    );
}

#[test]
fn subdomains_and_group_names_are_dns_labels() {
    let network = |subdomain: &str| {
        base().with(|js| {
            js.spec.network = Some(Network {
                subdomain: Some(subdomain.to_owned()),
                ..Default::default()
            })
        })
    };
    assert_eq!(violations(&network("")), []);
    one(&network("a.b"), "spec.network.subdomain", "a DNS-1035 label");
    one(
        &network(&"a".repeat(64)),
        "spec.network.subdomain",
        ".spec.network.subdomain is too long",
    );
    let js = jobset([replicated_job("a", 1).with(|job| job.group_name = Some("G".to_owned()))]);
    one(&js, "spec.replicatedJobs[0].groupName", "a DNS-1035 label");
}

#[test]
fn only_earlier_replicated_jobs_can_be_depended_upon() {
    let depends = |job: usize, on: &str| {
        base().with(|js| {
            let job = &mut js.spec.replicated_jobs[job];
            *job = job.clone().depends_on(on, "Ready");
        })
    };
    assert_eq!(violations(&depends(1, "a")), []);
    one(
        &depends(1, "b"),
        "spec.replicatedJobs[1].dependsOn",
        "replicatedJob: b cannot depend on replicatedJob: b",
    );
    one(
        &depends(1, "c"),
        "spec.replicatedJobs[1].dependsOn",
        "replicatedJob: b cannot depend on replicatedJob: c",
    );
    let first = violations(&depends(0, "b"));
    assert_eq!(first[0].1, "DependsOn can't be set for the first ReplicatedJob");
    assert_eq!(first[1].1, "replicatedJob: a cannot depend on replicatedJob: b");
}

#[test]
fn policies_name_replicated_jobs_that_exist() {
    let js = base().with(|js| {
        js.spec.success_policy = Some(SuccessPolicy {
            target_replicated_jobs: vec!["c".to_owned()],
            ..Default::default()
        });
    });
    one(
        &js,
        "spec.successPolicy.targetReplicatedJobs",
        "invalid replicatedJob name 'c' does not appear",
    );
    let mut bad = rule("r", Action::FailJobSet);
    bad.target_replicated_jobs = vec!["c".to_owned()];
    one(
        &base().rule(bad),
        "spec.failurePolicy.rules[0].targetReplicatedJobs",
        "'c' in failure policy does not appear",
    );
}

#[test]
fn failure_policy_rules_have_good_unique_names_and_known_reasons() {
    let fail = |name: &str| rule(name, Action::FailJobSet);
    assert_eq!(violations(&base().rule(fail("")).rule(fail(""))), []);
    assert_eq!(violations(&base().rule(fail("a_,:b")).rule(fail("c"))), []);
    one(
        &base().rule(fail("a:")),
        "spec.failurePolicy.rules[0].name",
        "must start with an alphabetic character",
    );
    one(
        &base().rule(fail(&"a".repeat(129))),
        "spec.failurePolicy.rules[0].name",
        "of length 129",
    );
    one(
        &base().rule(fail("a")).rule(fail("a")),
        "spec.failurePolicy.rules",
        "indices [0 1] all have the same name 'a'",
    );
    let mut bad = fail("r");
    bad.on_job_failure_reasons = vec!["Boredom".to_owned()];
    one(
        &base().rule(bad),
        "spec.failurePolicy.rules[0].onJobFailureReasons",
        "'Boredom' in failure policy",
    );
    one(
        &base().rule(rule("r", Action::RestartJob)),
        "spec.failurePolicy.rules",
        "RestartJob feature gate is disabled",
    );
}

#[test]
fn the_coordinator_must_exist_and_fit_a_label() {
    let with = |replicated_job: &str, job_index, pod_index| {
        base().with(|js| {
            js.spec.coordinator = Some(Coordinator {
                replicated_job: replicated_job.to_owned(),
                job_index,
                pod_index,
            });
        })
    };
    assert_eq!(violations(&with("a", Some(1), None)), []);
    one(
        &with("c", None, None),
        "spec.coordinator.replicatedJob",
        "coordinator replicatedJob c does not exist",
    );
    one(
        &with("a", Some(2), None),
        "spec.coordinator.jobIndex",
        "coordinator job index 2 is invalid",
    );
    one(
        &with("a", Some(-1), None),
        "spec.coordinator.jobIndex",
        "coordinator job index -1 is invalid",
    );
    one(
        &with("a", None, Some(1)),
        "spec.coordinator.podIndex",
        "coordinator pod index 1 is invalid",
    );
    let not_indexed = with("a", None, None).with(|js| {
        js.spec.replicated_jobs[0]
            .template
            .spec
            .as_mut()
            .unwrap()
            .completion_mode = Some("NonIndexed".to_owned());
    });
    one(
        &not_indexed,
        "spec.coordinator.replicatedJob",
        "must be indexed completion mode",
    );
    let long = with("a", None, None).with(|js| {
        js.spec.network = Some(Network {
            subdomain: Some("s".repeat(60)),
            ..Default::default()
        });
    });
    one(&long, "spec.coordinator", "must be no more than 63 bytes");
}

#[test]
fn restarting_in_place_has_its_own_rules() {
    let with = |change: fn(&mut k8s_openapi::api::batch::v1::JobSpec)| {
        jobset([replicated_job("a", 1).job_spec(change)]).restarting(RestartStrategy::InPlaceRestart, 1)
    };
    let field = |name: &str| format!("spec.replicatedJobs[0].template.spec.{name}");
    one(
        &with(|spec| spec.backoff_limit = Some(6)),
        &field("backoffLimit"),
        "must be set to 2147483647 (MaxInt32)",
    );
    one(
        &with(|spec| spec.backoff_limit = Some(0)),
        &field("backoffLimit"),
        "remove the line \"backoffLimit: 0\" from spec.replicatedJobs[0].template.spec to use the default",
    );
    one(
        &with(|spec| spec.pod_replacement_policy = Some("TerminatingOrFailed".to_owned())),
        &field("podReplacementPolicy"),
        "must be set to Failed",
    );
    one(
        &with(|spec| spec.completions = Some(2)),
        &field("completions"),
        "must be set and equal to each other",
    );
    one(
        &with(|spec| spec.completions = None),
        &field("completions"),
        "must be set and equal to each other",
    );
    assert_eq!(
        violations(&with(|spec| {
            spec.backoff_limit = Some(i32::MAX);
            spec.pod_replacement_policy = Some("Failed".to_owned());
        })),
        []
    );
}

#[test]
fn annotations_of_in_place_jobsets_are_checked() {
    let with = |key: &str, value: &str| {
        base()
            .restarting(RestartStrategy::InPlaceRestart, 1)
            .annotated(key, value)
    };
    let field = |key: &str| format!("metadata.annotations[{key}]");
    for (key, good, bad) in [
        (annotations::IN_PLACE_TIMEOUT, "90s", "soon"),
        (annotations::IN_PLACE_TIMEOUT, "1m", "0"),
        (annotations::ESCALATE_AFTER, "3/10m", "often"),
        (annotations::RESTART_GRACE, "0s", "-1s"),
        (annotations::HEARTBEAT_TIMEOUT, "30s", "0s"),
        (annotations::READY_TIMEOUT, "10m", "10"),
        (annotations::SUPERVISE, "worker", "worker,"),
        (annotations::SUPERVISE, "none", "missing"),
        (annotations::STANDBY, "python", "python3"),
        (annotations::STANDBY, "program", "program,python"),
        (annotations::STANDBY, "none", ""),
    ] {
        assert_eq!(violations(&with(key, good)), []);
        one(&with(key, bad), &field(key), "");
    }
    assert_eq!(
        violations(&base().annotated(annotations::RESTART_GRACE, "never")),
        []
    );
}

#[test]
fn the_restart_scope_is_checked() {
    let with = |value: &str, strategy| {
        base().restarting(strategy, 1).with(|js| {
            let metadata = js.spec.replicated_jobs[0]
                .template
                .metadata
                .get_or_insert_default();
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(annotations::RESTART_SCOPE.to_owned(), value.to_owned());
        })
    };
    let field = "spec.replicatedJobs[0].template.metadata.annotations[lockstep.dev/restart-scope]";
    for value in ["group", "worker"] {
        assert_eq!(violations(&with(value, RestartStrategy::InPlaceRestart)), []);
    }
    one(
        &with("job", RestartStrategy::InPlaceRestart),
        field,
        "must be \"group\" or \"worker\"",
    );
    assert_eq!(violations(&with("group", RestartStrategy::Recreate)), []);
    one(
        &with("worker", RestartStrategy::Recreate),
        field,
        "needs the restart strategy InPlaceRestart",
    );
}

#[test]
fn what_a_job_template_has_started_ahead_is_checked() {
    let with = |value: &str| {
        base().restarting(RestartStrategy::InPlaceRestart, 1).with(|js| {
            let metadata = js.spec.replicated_jobs[0]
                .template
                .metadata
                .get_or_insert_default();
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(annotations::STANDBY.to_owned(), value.to_owned());
        })
    };
    for value in ["python", "program", "none"] {
        assert_eq!(violations(&with(value)), []);
    }
    one(
        &with("julia"),
        "spec.replicatedJobs[0].template.metadata.annotations[lockstep.dev/standby]",
        "\"julia\" must be \"python\", \"program\" or \"none\"",
    );
    // Without restarts in place it has no effect, which is a warning.
    assert_eq!(
        violations(&with("julia").restarting(RestartStrategy::Recreate, 1)),
        []
    );
}

#[test]
fn messages_name_the_field_and_stay_short() {
    let js = base().with(|js| {
        js.spec.network = Some(Network {
            subdomain: Some("A".to_owned()),
            ..Default::default()
        })
    });
    let text = message(&validate(&js, &Features::default()));
    assert!(
        text.starts_with("jobset is invalid: spec.network.subdomain: Invalid value: \"A\": "),
        "{text}"
    );
    let many = (0..50).fold(base(), |js, index| {
        js.rule(rule(&format!("{index}"), Action::FailJobSet))
    });
    let text = message(&validate(&many, &Features::default()));
    assert!(text.len() < 1024 && text.ends_with(" more"), "{text}");
    // Conditions take 32 KiB.
    let long = base().annotated(annotations::RESTART_GRACE, "5").with(|js| {
        js.spec.network = Some(Network {
            subdomain: Some("ä".repeat(50_000)),
            ..Default::default()
        })
    });
    let violations = validate(&long, &Features::default());
    let first = violations
        .iter()
        .find(|violation| violation.field.contains("subdomain"));
    assert!(first.unwrap().to_string().len() < 5000);
    let text = message(&violations);
    assert!(text.len() < 1100 && text.contains("ä...; and "), "{text}");
}
