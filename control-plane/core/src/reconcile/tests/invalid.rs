//! Invalid JobSets: some fail, others run and get an event.

use super::*;

#[test]
fn an_invalid_jobset_fails_with_the_field_and_makes_nothing() {
    let js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1).depends_on("b", "Ready"),
    ]);
    let mut cluster = Cluster::new(js);
    let plan = cluster.reconcile();
    assert_eq!(plan.finished, Some(TerminalState::Failed));
    assert!(plan.create_jobs.is_empty() && plan.create_service.is_none());
    assert_eq!(condition(&cluster, "Failed"), Some(("True", "InvalidJobSet")));
    assert!(
        plan.events[0]
            .message
            .contains("spec.replicatedJobs[1].dependsOn"),
        "{:?}",
        plan.events
    );
    assert!(cluster.reconcile().is_empty());
}

#[test]
fn harmless_faults_are_reported_and_the_jobset_runs() {
    let mut js = jobset([replicated_job("a", 1)]);
    js.spec.success_policy = Some(SuccessPolicy {
        target_replicated_jobs: vec!["a".to_owned(), "nobody".to_owned()],
        ..SuccessPolicy::default()
    });
    js.spec.replicated_jobs[0].group_name = Some("Group_A".to_owned());
    let plan = Cluster::new(js).reconcile();
    assert_eq!(plan.finished, None);
    assert_eq!(plan.create_jobs.len(), 1);
    let [told] = &plan.complaints[..] else {
        panic!("{:?}", plan.complaints)
    };
    assert_eq!(told.reason, "InvalidJobSet");
    for field in [
        "spec.replicatedJobs[0].groupName",
        "spec.successPolicy.targetReplicatedJobs",
    ] {
        assert!(told.message.contains(field), "{}", told.message);
    }
}

#[test]
fn a_name_that_the_api_server_may_take_is_tried() {
    let named = |name: &str, subdomain: Option<&str>| {
        let mut js = jobset([replicated_job("a", 1)]);
        js.metadata.name = Some(name.to_owned());
        js.spec.network.get_or_insert_default().subdomain = subdomain.map(str::to_owned);
        js
    };
    for (js, runs) in [
        (named("7b", None), true),
        (named("7b", Some("llama")), true),
        (named("7b.chat", None), false),
        // The host names of its pods have a dot.
        (named("7b.chat", Some("llama")), false),
    ] {
        let plan = Cluster::new(js).reconcile();
        let name = &plan.create_service;
        assert_eq!(plan.finished.is_none(), runs, "{name:?}");
        assert_eq!(plan.create_jobs.len(), usize::from(runs), "{name:?}");
        let told = plan.complaints.iter().map(|told| &told.message);
        let told = told.chain(plan.events.iter().map(|event| &event.message)).next();
        assert!(told.unwrap().contains("spec.replicatedJobs[0].name"), "{told:?}");
    }
}

#[test]
fn what_could_never_come_to_an_end_fails_at_once() {
    let policy = SuccessPolicy {
        target_replicated_jobs: vec!["nobody".to_owned()],
        ..SuccessPolicy::default()
    };
    let mut nobodys = jobset([replicated_job("a", 1)]);
    nobodys.spec.success_policy = Some(policy);
    let named_badly = jobset([replicated_job("a", 1)]).rule(rule("oom-kill", Action::FailJobSet));
    let mut without_hosts = jobset([replicated_job("a", 1)]);
    without_hosts.metadata.name = Some("train.v1".to_owned());
    without_hosts
        .spec
        .network
        .get_or_insert_default()
        .enable_dns_hostnames = Some(false);
    for (js, field) in [
        (nobodys, "spec.successPolicy.targetReplicatedJobs"),
        (named_badly, "spec.failurePolicy.rules[0].name"),
        (without_hosts, "spec.replicatedJobs[0].name"),
    ] {
        let plan = Cluster::new(js).reconcile();
        assert_eq!(plan.finished, Some(TerminalState::Failed), "{field}");
        assert!(plan.events[0].message.contains(field), "{:?}", plan.events);
    }
}

#[test]
fn a_jobset_that_has_run_is_not_validated_again_while_it_has_no_jobs() {
    let mut js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1).depends_on("b", "Ready"),
    ]);
    js.status.get_or_insert_default().restarts = 1;
    assert_eq!(plan(&observe(&js, [])).finished, None);
}

#[test]
fn a_jobset_that_runs_already_is_not_failed_by_stricter_rules() {
    let js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1).depends_on("b", "Ready"),
    ]);
    let plan = plan(&observe(&js, [child(&js, "a", 0, Fate::Ready)]));
    assert_eq!(plan.finished, None);
}

#[test]
fn an_invalid_annotation_does_not_fail_a_jobset_whose_jobs_are_recreated() {
    let mut js = jobset([replicated_job("a", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 1)
        .annotated(annotations::RESTART_GRACE, "5");
    js.status.get_or_insert_default().in_place_restart = Some(InPlaceRestartStatus::default());
    let plan = plan(&observe(&js, []));
    assert_eq!((&plan.finished, plan.create_jobs.len()), (&None, 1));
    complains_of(&plan, annotations::RESTART_GRACE);
}

#[test]
fn an_annotation_that_comes_or_goes_does_not_fail_a_jobset_that_ran_before() {
    let mut limited = replicated_job("a", 1);
    limited.template.spec.as_mut().unwrap().backoff_limit = Some(6);
    let mut alone = replicated_job("a", 1);
    let scope = (annotations::RESTART_SCOPE.to_owned(), "worker".to_owned());
    alone.template.metadata.get_or_insert_default().annotations = Some([scope].into());
    let timeout = annotations::IN_PLACE_TIMEOUT;
    for (mut js, wrong) in [
        (
            jobset([limited]).annotated(timeout, "60s"),
            "spec.replicatedJobs[0].template.spec.backoffLimit",
        ),
        (
            jobset([replicated_job("a", 1)]).annotated(timeout, "soon"),
            timeout,
        ),
        // The restart strategy that the annotation belongs to is gone.
        (jobset([alone]), annotations::RESTART_SCOPE),
    ] {
        let at_first = plan(&observe(&js, []));
        assert!(at_first.finished.is_some(), "{at_first:?}");

        js.status.get_or_insert_default().replicated_jobs_status = vec![ReplicatedJobStatus {
            name: "a".to_owned(),
            ..ReplicatedJobStatus::default()
        }];
        let later = plan(&observe(&js, []));
        assert_eq!((&later.finished, later.create_jobs.len()), (&None, 1));
        complains_of(&later, wrong);
    }
}

#[track_caller]
fn complains_of(plan: &Plan, annotation: &str) {
    let [complaint] = plan.complaints.as_slice() else {
        panic!("{:?}", plan.complaints);
    };
    assert_eq!(complaint.reason, INVALID_ANNOTATION);
    assert!(complaint.message.contains(annotation), "{complaint:?}");
}

#[test]
fn a_wrong_annotation_of_a_jobset_that_runs_is_a_complaint_as_long_as_it_is_there() {
    let js = |request: &str| {
        jobset([replicated_job("a", 1)])
            .restarting(RestartStrategy::InPlaceRestart, 1)
            .annotated(annotations::RESTART_REQUEST, request)
    };
    let looked_at = |js: &JobSet| plan(&observe(js, [child(js, "a", 0, Fate::Ready)]));
    let long = looked_at(&js(&"x".repeat(100_000)));
    complains_of(&long, "restart-request: must be 1 to 1024 bytes long, not 100000");
    assert_eq!(long.finished, None);
    assert_eq!(looked_at(&js("now")).complaints, []);
}
