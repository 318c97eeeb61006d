use lockstep_api::RestartCause;

use super::*;
use crate::jobset::in_place::{Agents, Obstacle};
use crate::jobset::pod::Changed;

fn group() -> JobSet {
    two().restarting(RestartStrategy::InPlaceRestart, 2)
}

#[test]
fn a_failed_job_recreates_the_group_under_a_new_generation() {
    let mut cluster = Cluster::new(group());
    cluster.settle();
    let status = cluster.jobset.status.as_mut().unwrap();
    status.in_place_restart = Some(InPlaceRestartStatus {
        generation: 4,
        released: 4,
        restarts: 1,
        epoch: 9,
        started: vec!["a".to_owned()],
        phase: Some(InPlacePhase::InSync),
        ..InPlaceRestartStatus::default()
    });
    cluster.report("js-a-0", Fate::Failed);
    let status = cluster.reconcile().status.unwrap();
    assert_eq!((status.restarts, status.restarts_count_towards_max), (1, 1));
    let in_place = status.in_place_restart.unwrap();
    assert_eq!(
        (
            in_place.generation,
            in_place.released,
            in_place.restarts,
            in_place.epoch
        ),
        (5, 4, 2, 9)
    );
    assert_eq!(
        (in_place.started, in_place.phase),
        (vec![], Some(InPlacePhase::Recreating))
    );

    cluster.settle();
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    // One restart in place and one recreation have used up both.
    assert_eq!(
        condition(&cluster, "Failed"),
        Some(("True", "ReachedMaxRestarts"))
    );
}

#[test]
fn restarts_of_before_it_was_coordinated_count_on() {
    // By another controller; and while upstream's agents reported, which have gone since.
    for before in [None, Some(InPlaceRestartStatus::default())] {
        let mut cluster = Cluster::new(group());
        cluster.settle();
        let status = cluster.jobset.status.as_mut().unwrap();
        (status.restarts, status.restarts_count_towards_max) = (2, 2);
        status.in_place_restart = before;
        cluster.settle();
        cluster.report("js-a-0", Fate::Failed);
        cluster.settle();
        assert_eq!(
            condition(&cluster, "Failed"),
            Some(("True", "ReachedMaxRestarts"))
        );
    }
}

#[test]
fn a_recreation_that_was_asked_for_is_not_counted() {
    let mut cluster = Cluster::new(two().restarting(RestartStrategy::InPlaceRestart, 1));
    cluster.settle();
    let status = cluster.jobset.status.as_mut().unwrap();
    // As the coordinator writes a restart that did not succeed in place.
    (status.restarts, status.restarts_count_towards_max) = (1, 1);
    let in_place = status.in_place_restart.get_or_insert_default();
    (in_place.generation, in_place.phase) = (1, Some(InPlacePhase::Recreating));
    cluster.settle();
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(condition(&cluster, "Failed"), None);
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(
        condition(&cluster, "Failed"),
        Some(("True", "ReachedMaxRestarts"))
    );
}

#[test]
fn supervision_is_decided_again_only_with_new_jobs() {
    let mut cluster = Cluster::new(group());
    cluster.settle();
    let state = |cluster: &Cluster| {
        let marks = cluster.jobs.values().map(|job| {
            let template = &job.spec.as_ref().unwrap().template;
            let meta = template.metadata.as_ref().unwrap();
            meta.annotations.as_ref().unwrap()[annotations::IN_PLACE].clone()
        });
        let status = cluster.jobset.status.as_ref().unwrap();
        (
            status.in_place_restart.as_ref().unwrap().kind.clone().unwrap(),
            marks.collect::<Vec<_>>(),
        )
    };
    let supervised = (InPlaceKind::Supervised, vec!["supervised".to_owned(); 2]);
    assert_eq!(state(&cluster), supervised);

    // The containers set no command, so a template cannot put the agent in front of it.
    cluster.agents = Agents::ByTemplate("image".to_owned());
    cluster.settle();
    // A user deletes one: all workers of a run are of one kind.
    cluster.jobs.remove("js-b-0");
    cluster.settle();
    assert_eq!(state(&cluster), supervised);

    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(state(&cluster), (InPlaceKind::Plain, vec!["plain".to_owned(); 2]));

    cluster.agents = Agents::ByNode;
    cluster.settle();
    assert_eq!(state(&cluster).0, InPlaceKind::Plain);
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(state(&cluster), supervised);
}

#[test]
fn restart_job_recreates_a_whole_group_and_counts_once() {
    for (action, counts) in [
        (Action::RestartJob, 1),
        (Action::RestartJobAndIgnoreMaxRestarts, 0),
    ] {
        let mut cluster = Cluster::new(group().rule(rule("one", action)));
        cluster.features.restart_job = true;
        cluster.settle();
        report_all(&mut cluster, Fate::Ready);
        cluster.settle();
        cluster.report("js-a-1", Fate::Failed);
        cluster.settle();
        let status = cluster.jobset.status.clone().unwrap();
        let in_place = status.in_place_restart.clone().unwrap();
        assert_eq!((status.restarts, status.restarts_count_towards_max), (1, counts));
        // New workers wait for no former worker, and the coordinator has nothing left to count.
        assert_eq!(
            (in_place.restarts, in_place.phase),
            (counts, Some(InPlacePhase::Recreating))
        );
        let of_a = status.replicated_job("a").unwrap();
        assert!(of_a.job_restarts.is_empty() && of_a.job_restarts_count_towards_max.is_empty());
        let attempts = cluster
            .jobs
            .values()
            .map(|job| label(job, labels::RESTART_ATTEMPT).unwrap());
        assert!(attempts.into_iter().all(|attempt| attempt == "1"));
    }
}

#[test]
fn a_recreation_by_the_coordinator_deletes_the_jobs_of_before() {
    let mut cluster = Cluster::new(group());
    cluster.settle();
    cluster.jobset.status.as_mut().unwrap().restarts = 1;
    assert_eq!(cluster.reconcile().delete_jobs.len(), 2);
    cluster.settle();
    let attempts = cluster
        .jobs
        .values()
        .map(|job| label(job, labels::RESTART_ATTEMPT).unwrap());
    assert_eq!(attempts.collect::<Vec<_>>(), ["1", "1"]);
}

#[test]
fn a_group_that_gave_up_fails_with_its_last_cause() {
    let mut cluster = Cluster::new(group());
    cluster.settle();
    cluster.jobset.status.as_mut().unwrap().in_place_restart = Some(InPlaceRestartStatus {
        phase: Some(InPlacePhase::Failed),
        cause: Some(RestartCause {
            message: Some("worker of js-a-0-0 exited 1".to_owned()),
            ..Default::default()
        }),
        ..InPlaceRestartStatus::default()
    });
    let plan = cluster.reconcile();
    assert_eq!(plan.finished, Some(TerminalState::Failed));
    assert_eq!(
        condition(&cluster, "Failed"),
        Some(("True", "ReachedMaxRestarts"))
    );
    assert_eq!(
        plan.events[0].message,
        "jobset failed due to reaching max number of restarts (last failure: worker of js-a-0-0 exited 1)"
    );
    cluster.settle();
    assert_eq!(cluster.job_names(), Vec::<&str>::new());
}

#[test]
fn why_a_group_is_not_supervised_is_reported_once() {
    let mut cluster = Cluster::new(group().annotated(annotations::SUPERVISE, "none"));
    cluster.settle();
    report_all(&mut cluster, Fate::Ready);
    cluster.settle();
    assert_eq!(event_reasons(&cluster), [NOT_SUPERVISED]);
    assert!(
        cluster.events[0].message.contains("lockstep.dev/supervise: none"),
        "{:?}",
        cluster.events
    );
}

#[test]
fn pods_that_were_changed_since_their_template_was_judged_are_named() {
    let js = group();
    let changed = || {
        Some(Changed {
            job: "js-a-0".to_owned(),
            obstacle: Obstacle::SharedProcesses,
        })
    };
    let decided = |js: &JobSet, changed: Option<Changed>| {
        let mut observed = observe(js, [0, 1].map(|index| child(js, "a", index, Fate::Ready)));
        observed.changed = changed;
        let plan = plan(&observed);
        assert_eq!((plan.create_jobs.len(), plan.delete_jobs.len()), (0, 0));
        let status = plan.status.and_then(|status| status.in_place_restart);
        let said = plan.complaints.into_iter().map(|event| event.message);
        (
            status.and_then(|in_place| in_place.kind),
            said.collect::<Vec<_>>(),
        )
    };
    assert_eq!(decided(&js, None), (Some(InPlaceKind::Supervised), vec![]));
    let (kind, said) = decided(&js, changed());
    assert_eq!(kind, Some(InPlaceKind::Supervised));
    let why = "a failure recreates the Jobs: pods of Job js-a-0 set shareProcessNamespace, which their template does not: a policy or a webhook of the cluster has changed them. To restart workers by container instead, create the JobSet with the annotation lockstep.dev/supervise: none";
    assert_eq!(said, [why]);
    // There is no message if the template says so itself.
    let plain = js.annotated(annotations::SUPERVISE, "none");
    assert_eq!(decided(&plain, changed()), (Some(InPlaceKind::Plain), vec![]));
    // The same holds for containers that the kubelet does not restart.
    let never = group().with(|js| {
        let spec = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        let pod = spec.template.spec.as_mut().unwrap();
        pod.restart_policy = Some("Never".to_owned());
    });
    let (kind, said) = decided(&never, changed());
    assert_eq!(kind, Some(InPlaceKind::Supervised));
    assert!(
        said[0].ends_with("none, restartPolicy: OnFailure and no container restart rules"),
        "{said:?}"
    );
}

#[test]
fn the_kubelets_restarts_are_bounded_if_there_has_never_been_a_daemon() {
    let js = group();
    let status = |restarts: i32, attended: bool, in_place: InPlaceRestartStatus| {
        let mut js = js.clone();
        js.status.get_or_insert_default().in_place_restart = Some(in_place);
        let mut observed = observe(&js, [0, 1].map(|index| child(&js, "a", index, Fate::Ready)));
        observed.is_attended = attended;
        observed.agent_pods = vec![upstream_agent::AgentPod {
            container_restarts: restarts,
            ..Default::default()
        }];
        plan(&observed).status.and_then(|status| status.terminal_state)
    };
    let none = InPlaceRestartStatus::default;
    let started = || InPlaceRestartStatus {
        started: vec!["a".to_owned()],
        ..none()
    };
    assert_eq!(status(2, false, none()), None);
    assert_eq!(status(3, false, none()), Some(TerminalState::Failed));
    // The coordinator counts restarts, or did: a container beside the worker may start any number
    // of times.
    assert_eq!(status(3, true, none()), None);
    assert_eq!(status(3, false, started()), None);
}

#[test]
fn restart_job_recreates_a_whole_group_while_there_is_no_coordinator() {
    let mut js = group().rule(rule("one", Action::RestartJob));
    js.status.get_or_insert_default().in_place_restart = Some(InPlaceRestartStatus {
        kind: Some(InPlaceKind::Supervised),
        phase: Some(InPlacePhase::InSync),
        ..InPlaceRestartStatus::default()
    });
    let mut observed = observe(&js, [child(&js, "a", 0, Fate::Failed)]);
    observed.has_daemons = false;
    observed.features.restart_job = true;
    let status = plan(&observed).status.unwrap();
    // When a coordinator returns, it would count the workers of a single recreated Job as lost.
    assert_eq!((status.restarts, status.restarts_count_towards_max), (1, 1));
    assert_eq!(status.in_place_restart.map(|group| group.restarts), Some(1));
}

#[test]
fn a_recreation_while_no_coordinator_is_there_counts_with_those_before_and_after() {
    let of_group = |kind: InPlaceKind, restarts: i32| InPlaceRestartStatus {
        kind: Some(kind),
        generation: 4,
        latest: 6,
        released: 4,
        restarts,
        started: vec!["a".to_owned()],
        joined: vec!["a/0/0".to_owned()],
        phase: Some(InPlacePhase::InSync),
        ..InPlaceRestartStatus::default()
    };
    let without_hub = |observed: &mut Observed| observed.has_daemons = false;
    let without_gate = |observed: &mut Observed| observed.features.in_place_restart = false;
    let with_upstream_agents = |observed: &mut Observed| {
        observed.agent_pods = vec![upstream_agent::AgentPod {
            attempt: Some(0),
            ..Default::default()
        }];
    };
    let recreating = Some((7, 2, Some(InPlacePhase::Recreating), 0));
    let as_before = Some((4, 1, Some(InPlacePhase::InSync), 1));
    type Away = fn(&mut Observed);
    for (what, kind, away, after) in [
        (
            "no hub",
            InPlaceKind::Supervised,
            without_hub as Away,
            recreating.clone(),
        ),
        ("no hub", InPlaceKind::Plain, without_hub, recreating.clone()),
        ("no gate", InPlaceKind::Supervised, without_gate, recreating),
        (
            "upstream's agents",
            InPlaceKind::Supervised,
            with_upstream_agents,
            as_before,
        ),
    ] {
        let mut js = group();
        js.status.get_or_insert_default().in_place_restart = Some(of_group(kind, 1));
        let mut observed = observe(&js, [child(&js, "a", 0, Fate::Failed)]);
        away(&mut observed);
        let status = plan(&observed).status.unwrap();
        assert_eq!(
            (status.restarts, status.restarts_count_towards_max),
            (1, 1),
            "{what}"
        );
        let seen = status.in_place_restart.map(|status| {
            let known = status.started.len();
            (status.generation, status.restarts, status.phase, known)
        });
        assert_eq!(seen, after, "{what}");
    }
    // Those in place have used them up.
    for away in [without_hub as Away, without_gate] {
        let mut js = group();
        js.status.get_or_insert_default().in_place_restart = Some(of_group(InPlaceKind::Supervised, 2));
        let mut observed = observe(&js, [child(&js, "a", 0, Fate::Failed)]);
        away(&mut observed);
        assert_eq!(plan(&observed).finished, Some(TerminalState::Failed));
    }
}

#[test]
fn pods_with_upstreams_agent_are_left_to_it_although_daemons_are_connected() {
    use k8s_openapi::api::core::v1::EnvVar;

    let js = group().with(|js| {
        let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        let pod = job.template.spec.as_mut().unwrap();
        let env = ["JOBSET_NAME", "POD_NAME", "WORKER_COMMAND"].map(|name| EnvVar {
            name: name.to_owned(),
            ..EnvVar::default()
        });
        pod.containers[0].env = Some(env.to_vec());
    });
    let created = plan(&observe(&js, []));
    assert_eq!(created.create_jobs.len(), 2);
    for job in &created.create_jobs {
        let template = &job.spec.as_ref().unwrap().template;
        let annotations = template.metadata.as_ref().unwrap().annotations.as_ref().unwrap();
        // Without these annotations a node daemon adds no agent, and stops nothing.
        for mark in [
            annotations::IN_PLACE,
            annotations::SUPERVISE,
            annotations::STOP_WITHOUT_AGENT,
        ] {
            assert_eq!(annotations.get(mark), None, "{mark}");
        }
    }
    let status = |attempts: &[Option<i32>], restarts: i32| {
        let mut observed = observe(&js, [0, 1].map(|index| child(&js, "a", index, Fate::Running)));
        assert!(observed.has_daemons);
        observed.is_attended = true;
        let reported = attempts.iter().map(|attempt| upstream_agent::AgentPod {
            attempt: *attempt,
            container_restarts: restarts,
            ..Default::default()
        });
        observed.agent_pods = reported.collect();
        *plan(&observed).status.unwrap()
    };
    let quiet = status(&[None, None], 0);
    let upstream = InPlaceRestartStatus {
        kind: Some(InPlaceKind::UpstreamAgent),
        ..InPlaceRestartStatus::default()
    };
    assert_eq!(quiet.in_place_restart.as_ref(), Some(&upstream));
    assert_eq!(quiet.current_in_place_restart_attempt, None);
    assert_eq!(status(&[Some(0), None], 0).current_in_place_restart_attempt, None);
    assert_eq!(
        status(&[Some(0), Some(0)], 0).current_in_place_restart_attempt,
        Some(0)
    );
    assert_eq!(
        status(&[Some(0), Some(1)], 1).previous_in_place_restart_attempt,
        Some(0)
    );
    for over in [status(&[Some(0), Some(3)], 0), status(&[None, None], 3)] {
        assert_eq!(over.terminal_state, Some(TerminalState::Failed));
        assert_eq!(over.in_place_restart.as_ref(), Some(&upstream));
    }
}
