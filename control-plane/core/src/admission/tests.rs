use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSchedulingGate, Toleration, VolumeMount,
};
use lockstep_api::{
    ExecutionPolicy, FailurePolicyAction as Action, InPlacePhase, ReplicatedJob, RestartStrategy,
    RetentionPolicy, VolumeClaimPolicy, VolumeClaimTemplate, annotations,
};

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job, rule};
use crate::common::violation::Kind;

mod claims;
mod resources;

fn base() -> JobSet {
    jobset([replicated_job("a", 1), replicated_job("b", 1)])
}

fn messages(violations: &[Violation]) -> Vec<String> {
    violations.iter().map(ToString::to_string).collect()
}

fn refused(old: &JobSet, new: &JobSet) -> Vec<String> {
    messages(&validate_update(old, new, &Features::default()))
}

fn elastic() -> Features {
    Features {
        elastic_jobset: true,
        ..Features::default()
    }
}

fn changed(change: impl FnOnce(&mut ReplicatedJob)) -> JobSet {
    base().with(|js| change(&mut js.spec.replicated_jobs[1]))
}

#[test]
fn defaults_fill_what_is_missing_and_keep_what_is_stated() {
    let mut js = base()
        .rule(rule("", Action::FailJobSet))
        .rule(rule("mine", Action::FailJobSet))
        .rule(rule("", Action::FailJobSet));
    default(&mut js);
    let spec = &js.spec;
    assert_eq!(spec.success_policy.as_ref().unwrap().operator.as_str(), "All");
    let startup = spec.startup_policy.as_ref().unwrap();
    assert_eq!(startup.startup_policy_order.as_str(), "AnyOrder");
    let network = spec.network.as_ref().unwrap();
    assert_eq!(
        (network.enable_dns_hostnames, network.publish_not_ready_addresses),
        (Some(true), Some(true))
    );
    assert_eq!(network.subdomain, None);
    let job = spec.replicated_jobs[0].template.spec.as_ref().unwrap();
    assert_eq!(job.completion_mode.as_deref(), Some("Indexed"));
    let pod = job.template.spec.as_ref().unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("OnFailure"));
    let names = spec.failure_policy.as_ref().unwrap().rules.iter();
    let names: Vec<_> = names.map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["failurePolicyRule0", "mine", "failurePolicyRule2"]);
    let once = js.clone();
    default(&mut js);
    assert_eq!(js, once);
}

#[test]
fn stated_values_stay() {
    let mut js = changed(|job| {
        let spec = job.template.spec.as_mut().unwrap();
        spec.completion_mode = Some("NonIndexed".to_owned());
        spec.template.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    })
    .with(|js| {
        js.spec.network = Some(lockstep_api::Network {
            enable_dns_hostnames: Some(false),
            ..Default::default()
        });
    });
    default(&mut js);
    let spec = js.spec.replicated_jobs[1].template.spec.as_ref().unwrap();
    assert_eq!(spec.completion_mode.as_deref(), Some("NonIndexed"));
    let pod = spec.template.spec.as_ref().unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    assert_eq!(js.spec.network.unwrap().enable_dns_hostnames, Some(false));
}

#[test]
fn replicated_jobs_are_immutable_and_the_change_is_named() {
    assert_eq!(refused(&base(), &base()), [""; 0]);
    assert_eq!(
        refused(&base(), &changed(|job| job.replicas = Some(3))),
        ["spec.replicatedJobs: Invalid value: \"replicatedJobs[1].replicas\": field is immutable"]
    );
    let without = base().with(|js| {
        js.spec.replicated_jobs.pop();
    });
    assert_eq!(refused(&base(), &without).len(), 1);
    let managed = base().with(|js| js.spec.managed_by = Some("acme.io/x".to_owned()));
    assert_eq!(
        refused(&base(), &managed),
        ["spec.managedBy: Invalid value: \"acme.io/x\": field is immutable"]
    );
    assert_eq!(
        refused(&managed, &base()),
        ["spec.managedBy: Invalid value: null: field is immutable"]
    );
    let ordered = base().with(|js| js.spec.execution_policy = Some(ExecutionPolicy::default()));
    assert_eq!(
        refused(&base(), &ordered),
        ["spec.executionPolicy: Invalid value: {}: Value is immutable"]
    );
    assert_eq!(
        refused(&ordered, &base()),
        ["spec.executionPolicy: Invalid value: null: Value is immutable"]
    );
    let suspended = base().suspended(true);
    assert_eq!(refused(&base(), &suspended), [""; 0]);
    assert_eq!(refused(&suspended, &base()), [""; 0]);
}

#[test]
fn around_a_suspension_the_pod_templates_may_change_as_far_as_kueue_needs_it() {
    let injected = changed(|job| {
        let template = &mut job.template.spec.as_mut().unwrap().template;
        let meta = template.metadata.get_or_insert_default();
        meta.labels = Some([("x".to_owned(), "y".to_owned())].into());
        meta.annotations = Some([("x".to_owned(), "y".to_owned())].into());
        let pod = template.spec.as_mut().unwrap();
        pod.node_selector = Some([("zone".to_owned(), "z".to_owned())].into());
        pod.tolerations = Some(vec![Toleration::default()]);
        pod.scheduling_gates = Some(vec![PodSchedulingGate::default()]);
    });
    assert_eq!(refused(&base(), &injected).len(), 1);
    assert_eq!(refused(&base().suspended(true), &injected), [""; 0]);
    assert_eq!(refused(&base(), &injected.clone().suspended(true)), [""; 0]);
    assert_eq!(refused(&injected, &base().suspended(true)), [""; 0]);
    let more = injected.with(|js| js.spec.replicated_jobs[1].replicas = Some(2));
    assert_eq!(refused(&base().suspended(true), &more).len(), 1);
}

#[test]
fn a_client_that_writes_zero_values_out_changes_nothing() {
    let asking = |amount: &str, zeroes: bool| {
        changed(|job| {
            let mut container = serde_json::json!({
                "name": "c", "env": [{"name": "E"}], "resources": {"requests": {"cpu": amount}},
            });
            if zeroes {
                container["env"][0]["value"] = "".into();
                container["resources"]["limits"] = serde_json::json!({});
                job.template.metadata = Some(Default::default());
            }
            let template = &mut job.template.spec.as_mut().unwrap().template;
            template.spec.as_mut().unwrap().containers = vec![serde_json::from_value(container).unwrap()];
            if zeroes {
                template.metadata = Some(Default::default());
                template.spec.as_mut().unwrap().host_network = Some(false);
            }
        })
    };
    let (as_written, as_typed) = (asking("1000m", false), asking("1", true));
    for (old, new) in [(&as_written, &as_typed), (&as_typed, &as_written)] {
        assert_eq!(refused(old, new), [""; 0]);
        assert_eq!(refused(&old.clone().suspended(true), new), [""; 0]);
        assert_eq!(refused(old, &new.clone().suspended(true)), [""; 0]);
    }
    // A real change is still reported.
    let more = asking("1001m", true);
    let expected = [
        "spec.replicatedJobs: Invalid value: \"replicatedJobs[1].template.spec.template.spec.containers[0].resources.requests.cpu\": \
         field is immutable",
    ];
    assert_eq!(refused(&as_written, &more), expected);
    assert_eq!(refused(&as_written.suspended(true), &more), expected);
}

#[test]
fn elastic_jobsets_change_their_number_of_pods_and_nothing_else() {
    let indexed = |pods: (i32, i32)| {
        changed(|job| {
            let spec = job.template.spec.as_mut().unwrap();
            spec.completion_mode = Some("Indexed".to_owned());
            (spec.parallelism, spec.completions) = (Some(pods.0), Some(pods.1));
        })
    };
    let scale = |old: &JobSet, pods| messages(&validate_update(old, &indexed(pods), &elastic()));
    let old = indexed((1, 1));
    assert_eq!(refused(&old, &indexed((3, 3))).len(), 1);
    assert_eq!(scale(&old, (3, 3)), [""; 0]);
    assert_eq!(
        scale(&old, (3, 2)),
        [
            "spec.replicatedJobs[1].template.spec.completions: Invalid value: 2: completions must be equal to parallelism for Elastic \
             Indexed Jobs"
        ]
    );
    assert!(scale(&old, (0, 0))[0].contains("parallelism must be >= 1"));
    let finished = old.clone().status(|status| {
        let mut draft = crate::jobset::status::Draft::new(status, crate::common::testing::at(0));
        draft.complete();
        *status = draft.status;
    });
    assert_eq!(
        scale(&finished, (3, 3)),
        [
            "spec.replicatedJobs[1].template.spec: Forbidden: Cannot mutate parallelism or completions when JobSet is in a terminal \
             state (Completed or Failed)"
        ]
    );
    let violations = validate_update(&finished, &indexed((3, 3)), &elastic());
    assert_eq!(violations[0].kind, Kind::Forbidden);
}

#[test]
fn an_elastic_jobset_that_restarts_in_place_changes_its_number_of_pods_while_it_is_suspended() {
    let indexed = |pods: i32| {
        changed(|job| {
            let spec = job.template.spec.as_mut().unwrap();
            spec.completion_mode = Some("Indexed".to_owned());
            (spec.parallelism, spec.completions) = (Some(pods), Some(pods));
        })
        .restarting(RestartStrategy::InPlaceRestart, 3)
    };
    let scale = |old: &JobSet, new: &JobSet| messages(&validate_update(old, new, &elastic()));
    // The coordinator does not restart it: it has not started, or its own agents restart it.
    assert_eq!(scale(&indexed(1), &indexed(3)), [""; 0]);
    let coordinated = |pods| {
        indexed(pods).status(|status| {
            status.in_place_restart.get_or_insert_default().phase = Some(InPlacePhase::InSync);
        })
    };
    assert_eq!(
        scale(&coordinated(1), &coordinated(3)),
        [
            "spec.replicatedJobs[1].template.spec: Forbidden: Cannot mutate parallelism or completions of a JobSet that restarts in \
             place, unless it is suspended"
        ]
    );
    let suspended = |pods| coordinated(pods).suspended(true);
    assert_eq!(scale(&suspended(1), &suspended(3)), [""; 0]);
}

#[test]
fn kinds_of_mistakes_are_distinguished() {
    let of_manager = |value: &str| base().with(|js| js.spec.managed_by = Some(value.to_owned()));
    let nameless = base().rule(rule("1", Action::FailJobSet));
    for (js, expected) in [
        (of_manager(""), Kind::Required),
        (of_manager(&format!("acme.io/{}", "x".repeat(60))), Kind::TooLong),
        (of_manager("foo"), Kind::Invalid),
        (nameless, Kind::Internal),
    ] {
        let violations = validate_create(&js, &Features::default());
        assert_eq!(violations.len(), 1, "{violations:?}");
        assert_eq!(violations[0].kind, expected, "{violations:?}");
    }
}

#[test]
fn gates_decide_what_may_be_asked_for() {
    let off = Features {
        in_place_restart: false,
        ..Features::default()
    };
    let in_place = base().restarting(RestartStrategy::InPlaceRestart, 1);
    assert_eq!(validate_create(&in_place, &Features::default()), []);
    assert_eq!(
        messages(&validate_create(&in_place, &off)),
        [
            "spec.failurePolicy.restartStrategy: InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is \
             disabled"
        ]
    );
    let single = base().rule(rule("x", Action::RestartJob));
    assert!(
        messages(&validate_create(&single, &off))[0]
            .contains("not allowed when RestartJob feature gate is disabled")
    );
    let on = Features {
        restart_job: true,
        ..Features::default()
    };
    assert_eq!(validate_create(&single, &on), []);
    let many = single.with(|js| js.spec.replicated_jobs[0].replicas = Some(1025));
    assert!(messages(&validate_create(&many, &on))[0].contains("replicas > 1024"));
}

#[test]
fn numbers_that_no_job_can_have_are_named() {
    let js = changed(|job| {
        let spec = job.template.spec.get_or_insert_default();
        spec.completions = Some(-4);
        spec.parallelism = Some(-4);
        spec.active_deadline_seconds = Some(-1);
    });
    assert_eq!(
        messages(&validate_create(&js, &Features::default())),
        [
            "parallelism: Invalid value: -4",
            "completions: Invalid value: -4",
            "activeDeadlineSeconds: Invalid value: -1"
        ]
        .map(|number| format!(
            "spec.replicatedJobs[1].template.spec.{number}: must be greater than or equal to 0"
        ))
    );
}

#[test]
fn managed_by_is_a_domain_prefixed_path() {
    let managed = |value: &str| {
        let js = base().with(|js| js.spec.managed_by = Some(value.to_owned()));
        messages(&validate_create(&js, &Features::default()))
    };
    assert_eq!(managed("acme.io/foo"), [""; 0]);
    for incomplete in ["foo", "/foo", "acme.io/", "/"] {
        let expected = format!(
            "spec.managedBy: Invalid value: \"{incomplete}\": must be a domain-prefixed path (such as \"acme.io/foo\")"
        );
        assert_eq!(managed(incomplete), [expected]);
    }
    assert_eq!(managed(""), ["spec.managedBy: Required value"]);
    for bad in ["ACME/foo", "acme.io/a b"] {
        assert_eq!(managed(bad).len(), 1, "{bad}");
    }
    assert!(managed(&format!("acme.io/{}", "x".repeat(60)))[0].contains("Too long"));
}

#[test]
fn an_empty_group_name_is_refused_at_creation_and_runs_if_it_exists() {
    let stated = |name: Option<&str>| changed(|job| job.group_name = name.map(str::to_owned));
    let created = |js: &JobSet| messages(&validate_create(js, &Features::default()));
    assert_eq!(created(&stated(None)), [""; 0]);
    let refusals = created(&stated(Some("")));
    let expected = "spec.replicatedJobs[1].groupName: Invalid value: \"\": a DNS-1035 label must consist of";
    assert!(
        refusals.len() == 1 && refusals[0].starts_with(expected),
        "{refusals:?}"
    );
    assert_eq!(validation::validate(&stated(Some("")), &Features::default()), []);
}

#[test]
fn execution_policy_excludes_other_orders() {
    let in_order = base().with(|js| {
        js.spec.execution_policy = Some(ExecutionPolicy {
            execution_policy_order: Some("InOrder".into()),
            replicated_jobs_status: Some("Failed".into()),
        });
    });
    let found = |js: &JobSet| messages(&validate_create(js, &Features::default()));
    assert_eq!(found(&in_order), [""; 0]);
    assert_eq!(
        found(&in_order.clone().in_order()),
        [
            "spec.executionPolicy: Invalid value: {\"executionPolicyOrder\":\"InOrder\",\"replicatedJobsStatus\":\"Failed\"}: \
             ExecutionPolicy and StartupPolicy APIs are mutually exclusive"
        ]
    );
    let depends = in_order.clone().with(|js| {
        js.spec.replicated_jobs[1] = replicated_job("b", 1).depends_on("a", "Ready");
    });
    assert!(found(&depends)[0].contains("DependsOn APIs are mutually exclusive"));
    let in_place = in_order.restarting(RestartStrategy::InPlaceRestart, 1);
    assert!(found(&in_place)[0].contains("replicatedJobsStatus"));
}

#[test]
fn a_generated_name_is_counted_in_full() {
    let generated = |base_name: usize| {
        let js = base().with(|js| {
            js.metadata.name = None;
            js.metadata.generate_name = Some("g".repeat(base_name));
        });
        validate_create(&js, &Features::default()).len()
    };
    assert_eq!(generated(40), 0);
    assert!(generated(58) > 0);
}

#[test]
fn an_annotation_that_becomes_wrong_is_refused_and_one_that_was_wrong_is_no_obstacle() {
    let js = base().restarting(RestartStrategy::InPlaceRestart, 1);
    let wrong = js.clone().annotated(annotations::RESTART_GRACE, "5");
    let refusals = refused(&js, &wrong);
    assert!(
        refusals.len() == 1 && refusals[0].starts_with("metadata.annotations[lockstep.dev/restart-grace]"),
        "{refusals:?}"
    );
    let other = wrong.clone().annotated(annotations::MAX_BACKOFF, "1s");
    assert_eq!(refused(&wrong, &other), [""; 0]);
    assert_eq!(refused(&wrong, &js), [""; 0]);
}

#[test]
fn a_request_that_is_too_long_and_a_window_too_short_are_refused_unless_they_were_there() {
    let js = base().restarting(RestartStrategy::InPlaceRestart, 1);
    for (key, wrong, expected) in [
        (
            annotations::RESTART_REQUEST,
            String::new(),
            "must be 1 to 1024 bytes long, not 0",
        ),
        (
            annotations::RESTART_REQUEST,
            "x".repeat(1025),
            "must be 1 to 1024 bytes long, not 1025",
        ),
        (
            annotations::ESCALATE_AFTER,
            "1/1ns".to_owned(),
            "a duration of at least 1s",
        ),
    ] {
        let wrong = js.clone().annotated(key, &wrong);
        let created = validate_create(&wrong, &Features::default());
        for refused in [&created, &validate_update(&js, &wrong, &Features::default())] {
            assert!(
                refused.len() == 1
                    && refused[0].to_string().contains(expected)
                    && refused[0].field.contains(key),
                "{refused:?}"
            );
        }
        // A change of something else passes.
        let labelled = wrong.clone().suspended(true);
        assert_eq!(validate_update(&wrong, &labelled, &Features::default()), []);
    }
}

#[test]
fn asking_for_restarts_in_place_later_is_refused_if_the_jobs_do_not_fit() {
    let plain = changed(|job| job.template.spec.as_mut().unwrap().backoff_limit = Some(6));
    let asks = plain.clone().annotated(annotations::IN_PLACE_TIMEOUT, "60s");
    let refusals = refused(&plain, &asks);
    assert!(
        refusals.len() == 1 && refusals[0].starts_with("spec.replicatedJobs[1].template.spec.backoffLimit"),
        "{refusals:?}"
    );
    let other = asks.clone().annotated(annotations::MAX_BACKOFF, "1s");
    assert_eq!(refused(&asks, &other), [""; 0]);
}

#[test]
fn supervised_workers_do_not_change_once_the_jobs_are_created() {
    let old = changed(|_| {}).restarting(RestartStrategy::InPlaceRestart, 1);
    let new = old.clone().annotated(annotations::SUPERVISE, "none");
    assert_eq!(refused(&old, &new), [""; 0]);
    let runs = |mut js: JobSet| {
        let status = js.status.get_or_insert_default();
        status.in_place_restart.get_or_insert_default().phase = Some(InPlacePhase::InSync);
        js
    };
    assert_eq!(
        refused(&runs(old), &runs(new)),
        [
            "metadata.annotations[lockstep.dev/supervise]: Invalid value: \"none\": field is immutable once the Jobs are created"
        ]
    );
}

#[test]
fn a_too_large_jobset_is_refused_and_an_existing_one_can_be_changed() {
    let sized = |jobs: i32, pods: i32| {
        jobset([replicated_job("a", jobs).job_spec(|spec| {
            spec.parallelism = Some(pods);
            spec.completions = Some(pods);
            spec.completion_mode = Some("Indexed".to_owned());
        })])
    };
    let features = elastic();
    let created = |js: &JobSet| messages(&validate_create(js, &features));
    assert_eq!(created(&sized(20_000, 5)), [""; 0]);
    assert_eq!(
        created(&sized(i32::MAX, 1)),
        ["spec.replicatedJobs[0].replicas: Invalid value: 2147483647: a JobSet may have at most 20000 Jobs"]
    );
    let updated = |old: &JobSet, new: &JobSet| messages(&validate_update(old, new, &features));
    let raised = updated(&sized(60, 10), &sized(60, 100_000));
    assert!(
        raised.len() == 1
            && raised[0].starts_with(
                "spec.replicatedJobs[0].template.spec.parallelism: Invalid value: 100000: 60 x 100000 pods"
            ),
        "{raised:?}"
    );
    let before = sized(60, 100_000);
    let lower = [
        before.clone().suspended(true),
        before
            .clone()
            .with(|js| js.metadata.finalizers = Some(Vec::new())),
        sized(60, 90_000),
        sized(60, 1),
    ];
    for after in lower {
        assert_eq!(updated(&before, &after), [""; 0]);
    }
    assert_eq!(updated(&before, &sized(60, 100_001)).len(), 1);
}
