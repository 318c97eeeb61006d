//! How the reconciler creates the Jobs of gangs.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use lockstep_api::{
    GangBackend, GangPhase, GangReplicatedJob, GangStatus, JobSet, ReplicatedJob, annotations, conditions,
    labels,
};

use super::model::{Model, gang, part};
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, observe};
use crate::gang::{Backend, GangEvent, backend, members, mutate};
use crate::jobset::plan::Change;
use crate::reconcile::plan;

fn created(js: &JobSet, pod_groups: bool) -> Vec<Job> {
    let mut observed = observe(js, []);
    observed.pod_groups = pod_groups;
    plan(&observed).create_jobs
}

fn template(job: &Job) -> &PodTemplateSpec {
    &job.spec.as_ref().unwrap().template
}

fn is_gated(template: &PodTemplateSpec) -> bool {
    let gates = template.spec.as_ref().unwrap().scheduling_gates.iter().flatten();
    gates.map(|gate| gate.name.as_str()).eq([labels::GANG_GATE])
}

fn group(template: &PodTemplateSpec) -> Option<&str> {
    let group = template.spec.as_ref()?.scheduling_group.as_ref()?;
    group.pod_group_name.as_deref()
}

fn minimum(template: &PodTemplateSpec) -> &str {
    &template.metadata.as_ref().unwrap().annotations.as_ref().unwrap()[annotations::GANG_MINIMUM]
}

#[test]
fn without_a_gang_nothing_is_marked() {
    let js = gang("a", vec![part("w", 1, 2, 1)], &[]).with(|js| js.spec.gang = None);
    let jobs = created(&js, true);
    assert!(!is_gated(template(&jobs[0])) && group(template(&jobs[0])).is_none());
}

#[test]
fn all_pods_have_the_gate_if_the_controller_starts_the_gang() {
    let jobs = created(&gang("a", vec![part("w", 3, 2, 1)], &[("w", 3)]), false);
    assert!(
        jobs.iter()
            .all(|job| is_gated(template(job)) && group(template(job)).is_none())
    );
    let minimums: Vec<&str> = jobs.iter().map(|job| minimum(template(job))).collect();
    assert_eq!(minimums, ["2", "1", "0"]);
}

/// The Job template names the group if all its pods belong to it. Otherwise it has the gate, which
/// the webhook removes from pods below the minimum.
#[test]
fn pods_below_the_minimum_have_a_group_if_kube_scheduler_starts_the_gang() {
    let jobs = created(&gang("a", vec![part("w", 3, 2, 1)], &[("w", 3)]), true);
    let name = group(template(&jobs[0])).unwrap().to_owned();
    assert!(name.starts_with("a-w-0-3-"), "{name}");
    assert!(!is_gated(template(&jobs[0])));
    assert!(is_gated(template(&jobs[2])) && group(template(&jobs[2])).is_none());
    assert!(is_gated(template(&jobs[1])) && group(template(&jobs[1])).is_none());
    let pod = |job: &Job, index: &str| {
        let mut pod = k8s_openapi::api::core::v1::Pod {
            metadata: template(job).metadata.clone().unwrap(),
            spec: template(job).spec.clone(),
            status: None,
        };
        let annotations = pod.metadata.annotations.as_mut().unwrap();
        annotations.insert(labels::BATCH_JOB_COMPLETION_INDEX.to_owned(), index.to_owned());
        let marked = mutate(&pod).unwrap_or(pod);
        assert_eq!(mutate(&marked), None, "twice is once");
        let spec = marked.spec.unwrap();
        (
            spec.scheduling_group.is_some(),
            spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
        )
    };
    assert_eq!(pod(&jobs[1], "0"), (true, false));
    assert_eq!(pod(&jobs[1], "1"), (false, true));
    assert_eq!(pod(&jobs[0], "1"), (true, false));
    assert_eq!(pod(&jobs[2], "0"), (false, true));
}

/// If the webhook was not called for pods that belong in the group, nothing binds them: the status
/// says so until they are replaced.
#[test]
fn pods_that_the_webhook_did_not_see_are_reported() {
    let mut model = Model::new(&[4]);
    model.run_time = 1000;
    model.has_webhook = false;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[("w", 3)]), 0, true);
    model.run(5);
    assert_eq!(model.bound("a"), 0);
    let message = model.status("a", "w").unwrap().message.unwrap();
    assert!(message.contains("webhook"), "{message}");
    let condition = |model: &Model| {
        let status = model.clusters["a"].jobset.status.clone().unwrap();
        status
            .condition(conditions::MIN_AVAILABLE)
            .unwrap()
            .message
            .clone()
    };
    assert_eq!(condition(&model), message);
    let told = model
        .events
        .iter()
        .filter(|(_, _, event, _)| *event == GangEvent::Ungrouped);
    assert_eq!(told.count(), 1);
    model.has_webhook = true;
    let pods = model.pods_of("a");
    pods.iter().for_each(|pod| model.lose(&pod.uid));
    model.run(5);
    assert_eq!(model.bound("a"), 4, "{}", model.describe());
    assert!(!condition(&model).contains("webhook"));
}

/// The API is switched off while a gang waits for its PodGroup: the gang is taken back, and its
/// Jobs are recreated.
#[test]
fn a_gang_whose_pod_group_is_lost_is_started_by_gates() {
    let mut model = Model::new(&[3]);
    model.run_time = 1000;
    model.create(gang("runs", vec![part("w", 1, 3, 1)], &[]), 0, true);
    model.run(3);
    model.create(gang("a", vec![part("w", 2, 2, 1)], &[("w", 3)]), 0, true);
    model.run(3);
    let grouped = |model: &Model| {
        let jobs = model.clusters["a"].jobs.values();
        jobs.filter(|job| group(template(job)).is_some()).count()
    };
    assert_eq!(grouped(&model), 1, "the other Job's pods differ");
    model.serve_pod_groups(false);
    model.run(20);
    assert_eq!(
        (grouped(&model), model.phase("a", "w")),
        (0, Some(GangPhase::Waiting))
    );
    let lost = |name: &str| {
        let told = model.events.iter();
        told.filter(|(_, of, event, _)| of == name && *event == GangEvent::GroupLost)
            .count()
    };
    assert_eq!((lost("a"), lost("runs")), (1, 0));
    assert_eq!(
        (model.bound("runs"), model.clusters["a"].jobset.restart_attempt()),
        (3, 0)
    );
    model.nodes.insert("more".to_owned(), 3);
    model.run(5);
    assert_eq!(model.bound("a"), 3, "{}", model.describe());
}

/// A part of a gang was created before the API was switched on or off: the rest follows it.
#[test]
fn all_jobs_of_a_gang_are_started_by_the_same() {
    for served in [false, true] {
        let mut model = Model::new(&[4]);
        model.run_time = 1000;
        model.create(gang("a", vec![part("w", 4, 1, 1)], &[]), 0, served);
        let cluster = model.clusters.get_mut("a").unwrap();
        // The Service and two Jobs.
        assert!(!cluster.reconcile_until_killed(3));
        assert_eq!(cluster.jobs.len(), 2);
        cluster.pod_groups = !served;
        model.run(4);
        let jobs = model.clusters["a"].jobs.values();
        let grouped = jobs.filter(|job| group(template(job)).is_some()).count();
        assert_eq!(grouped, if served { 4 } else { 0 });
        assert_eq!(model.bound("a"), 4);
    }
}

/// The Job controller can make groups of its own (`WorkloadWithJob`): a pod is in its gang's group,
/// or in none.
#[test]
fn pods_are_taken_out_of_groups_of_other_controllers() {
    for (pod_groups, expected) in [(false, [None, None]), (true, [Some("a-w-0-1-"), None])] {
        let js = gang("a", vec![part("w", 1, 2, 1)], &[("w", 1)]);
        let jobs = created(&js, pod_groups);
        for (index, expected) in expected.into_iter().enumerate() {
            let mut pod = k8s_openapi::api::core::v1::Pod {
                metadata: template(&jobs[0]).metadata.clone().unwrap(),
                spec: template(&jobs[0]).spec.clone(),
                status: None,
            };
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.insert(labels::BATCH_JOB_COMPLETION_INDEX.to_owned(), index.to_string());
            let foreign = k8s_openapi::api::core::v1::PodSchedulingGroup {
                pod_group_name: Some("of-the-job".to_owned()),
            };
            pod.spec.as_mut().unwrap().scheduling_group = Some(foreign);
            let marked = mutate(&pod).unwrap();
            assert_eq!(mutate(&marked), None);
            let spec = marked.spec.unwrap();
            let name = spec.scheduling_group.and_then(|group| group.pod_group_name);
            match expected {
                Some(expected) => assert!(name.unwrap().starts_with(expected)),
                None => assert_eq!(name, None),
            }
            let gated = spec.scheduling_gates.is_some_and(|gates| !gates.is_empty());
            assert_eq!(gated, expected.is_none());
        }
    }
}

#[test]
fn kube_scheduler_starts_what_it_can() {
    let js = gang("a", vec![part("w", 1, 2, 1)], &[]);
    let chosen = |js: &JobSet, served| backend(js, js.spec.gang.as_ref().unwrap(), served);
    assert_eq!(chosen(&js, true), Backend::PodGroup);
    assert_eq!(chosen(&js, false), Backend::Gates);
    let by_gates = js
        .clone()
        .with(|js| js.spec.gang.as_mut().unwrap().backend = Some(GangBackend::Gates));
    assert_eq!(chosen(&by_gates, true), Backend::Gates);
    // Followers are not created before their leader is scheduled.
    let exclusive = js.annotated(annotations::EXCLUSIVE_TOPOLOGY, "rack");
    assert_eq!(chosen(&exclusive, true), Backend::Gates);
    // It is unknown which pod is an optional worker.
    let part = part("w", 1, 2, 1).job_spec(|spec| spec.completion_mode = Some("NonIndexed".to_owned()));
    assert_eq!(chosen(&gang("a", vec![part], &[("w", 1)]), true), Backend::Gates);
}

fn of_class(name: &str, class: &str) -> ReplicatedJob {
    part(name, 1, 2, 1).pod_spec(|spec| spec.priority_class_name = Some(class.to_owned()))
}

/// kube-scheduler refuses a PodGroup of another priority than its pods.
#[test]
fn a_pod_group_has_the_priority_class_of_all_its_pods() {
    let class_of = |parts: Vec<ReplicatedJob>| {
        let js = gang("a", parts, &[]);
        let gangs = members(&js, &[], &[]).unwrap().gangs;
        let chosen = backend(&js, js.spec.gang.as_ref().unwrap(), true);
        (chosen, gangs[0].priority_class.clone())
    };
    let high = Some("high".to_owned());
    assert_eq!(class_of(vec![part("w", 1, 2, 1)]), (Backend::PodGroup, None));
    let alike = vec![of_class("m", "high"), of_class("w", "high")];
    assert_eq!(class_of(alike), (Backend::PodGroup, high.clone()));
    let mixed = vec![of_class("m", "high"), of_class("w", "low")];
    assert_eq!(class_of(mixed).0, Backend::Gates);
    let half = vec![of_class("m", "high"), part("w", 1, 2, 1)];
    assert_eq!(class_of(half).0, Backend::Gates);
    // Each is a gang of its own.
    let in_turn = vec![
        of_class("m", "high"),
        of_class("w", "low").depends_on("m", "Ready"),
    ];
    assert_eq!(class_of(in_turn), (Backend::PodGroup, high));
}

/// An event says why a request for PodGroups cannot be met.
#[test]
fn an_event_reports_gates_instead_of_a_pod_group() {
    let told = |js: &JobSet, served| {
        let mut observed = observe(js, []);
        observed.pod_groups = served;
        let complaints = plan(&observed).complaints;
        let told: Vec<String> = complaints
            .iter()
            .map(|event| format!("{}: {}", event.reason, event.message))
            .collect();
        told.join("\n")
    };
    let js = gang("a", vec![part("w", 1, 2, 1)], &[]);
    assert_eq!(told(&js, true), "");
    assert_eq!(told(&js, false), "", "Auto takes what there is");
    let js = js.with(|js| js.spec.gang.as_mut().unwrap().backend = Some(GangBackend::PodGroup));
    assert_eq!(told(&js, true), "");
    assert_eq!(
        told(&js, false),
        "GangBackendUnavailable: spec.gang.backend is PodGroup, but gates start the gang: the API server does not serve \
         PodGroups, or the control plane has no permission for it or no webhooks"
    );
    assert_eq!(
        told(&js.annotated(annotations::EXCLUSIVE_TOPOLOGY, "rack"), true),
        "GangBackendUnavailable: spec.gang.backend is PodGroup, but gates start the gang: Jobs of replicatedJob w are placed \
         exclusively by affinity"
    );
    let mixed = gang("a", vec![of_class("m", "high"), of_class("w", "low")], &[]);
    let mixed = mixed.with(|js| js.spec.gang.as_mut().unwrap().backend = Some(GangBackend::PodGroup));
    assert_eq!(
        told(&mixed, true),
        "GangBackendUnavailable: spec.gang.backend is PodGroup, but gates start the gang: replicatedJobs m and w have \
         different PriorityClasses"
    );
}

#[test]
fn a_gang_that_backs_off_is_suspended_and_nothing_else_is() {
    let parts = vec![
        part("m", 1, 1, 1),
        part("b", 1, 1, 1).depends_on("m", "Ready"),
        part("c", 1, 1, 1).depends_on("m", "Ready"),
    ];
    let mut model = Model::new(&[8]);
    model.run_time = 1000;
    model.create(gang("a", parts, &[]), 0, false);
    model.run(10);
    let cluster = model.clusters.get_mut("a").unwrap();
    let gangs = &mut cluster.jobset.status.as_mut().unwrap().gangs;
    let gang = gangs.iter_mut().find(|gang| gang.name == "b").unwrap();
    gang.phase = GangPhase::BackingOff;
    let plan = plan(&cluster.observe());
    let changes: Vec<_> = plan
        .change_jobs
        .iter()
        .map(|change| (change.job.name.as_str(), change.change == Change::Suspend))
        .collect();
    assert_eq!(changes, [("a-b-0", true)]);
    let status = cluster.jobset.status.as_ref().unwrap();
    let condition = status.condition(conditions::MIN_AVAILABLE).unwrap();
    assert_eq!(condition.reason, "Scheduled", "its pods still run");
}

#[test]
fn what_is_suspended_and_resumed_starts_together_again() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4]);
        model.run_time = 1000;
        model.create(gang("a", vec![part("w", 1, 4, 1)], &[("w", 3)]), 0, pod_groups);
        model.run(5);
        assert_eq!(model.bound("a"), 4);
        model.spec_of("a").suspend = Some(true);
        model.run(3);
        assert_eq!(model.bound("a"), 0);
        assert_eq!(model.phase("a", "w"), None);
        // Another pod has taken its room.
        *model.nodes.get_mut("n0").unwrap() = 2;
        model.spec_of("a").suspend = Some(false);
        model.run(10);
        assert_eq!(model.bound("a"), 0);
        assert_eq!(model.phase("a", "w"), Some(GangPhase::Waiting));
        *model.nodes.get_mut("n0").unwrap() = 4;
        model.run(5);
        assert_eq!(model.bound("a"), 4);
    }
}

/// The status is written after the Jobs are suspended: a controller that dies in between leaves it
/// unchanged.
#[test]
fn a_suspension_that_was_not_written_is_caught_up() {
    let mut model = Model::new(&[4]);
    model.run_time = 1000;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, false);
    model.run(5);
    let status = model.clusters["a"].jobset.status.clone();
    model.spec_of("a").suspend = Some(true);
    model.run(2);
    let cluster = model.clusters.get_mut("a").unwrap();
    cluster.jobset.spec.suspend = Some(false);
    cluster.jobset.status = status;
    *model.nodes.get_mut("n0").unwrap() = 3;
    model.run(10);
    assert_eq!(model.bound("a"), 0);
    *model.nodes.get_mut("n0").unwrap() = 4;
    model.run(5);
    assert_eq!(model.bound("a"), 4);
}

/// The gang may change while the JobSet is suspended: Jobs of the former gang are recreated.
#[test]
fn a_gang_that_was_changed_is_followed() {
    for pod_groups in [false, true] {
        let mut model = Model::new(&[4]);
        model.run_time = 1000;
        model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, pod_groups);
        model.run(5);
        model.spec_of("a").suspend = Some(true);
        model.run(2);
        *model.nodes.get_mut("n0").unwrap() = 2;
        let spec = model.spec_of("a");
        spec.gang.as_mut().unwrap().replicated_jobs = vec![GangReplicatedJob {
            name: "w".to_owned(),
            min_available: 2,
        }];
        spec.suspend = Some(false);
        model.run(6);
        assert_eq!(model.bound("a"), 2, "{}", model.describe());
    }
}

#[test]
fn a_removed_gang_is_no_longer_reported() {
    let mut model = Model::new(&[2]);
    model.run_time = 1000;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, false);
    model.run(5);
    assert_eq!(model.phase("a", "w"), Some(GangPhase::Waiting));
    let spec = model.spec_of("a");
    spec.suspend = Some(true);
    spec.gang = None;
    model.run(2);
    model.spec_of("a").suspend = Some(false);
    model.run(5);
    let status = model.clusters["a"].jobset.status.clone().unwrap();
    assert_eq!(status.gangs, []);
    assert_eq!(status.condition(conditions::MIN_AVAILABLE), None);
    assert_eq!(model.bound("a"), 2, "{}", model.describe());
}

#[test]
fn a_recreation_starts_together_again() {
    let mut model = Model::new(&[4]);
    model.run_time = 1000;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[]), 0, false);
    model.run(5);
    model.status_of("a").restarts = 1;
    model.run(1);
    assert_ne!(model.phase("a", "w"), Some(GangPhase::Scheduled));
    *model.nodes.get_mut("n0").unwrap() = 3;
    model.run(10);
    assert_eq!(model.bound("a"), 0);
    *model.nodes.get_mut("n0").unwrap() = 4;
    model.run(5);
    assert_eq!(model.bound("a"), 4);
    let all = &model.clusters["a"].jobset.status.as_ref().unwrap().gangs;
    assert_eq!(all.len(), 1, "the state of the earlier attempt is gone");
}

#[test]
fn the_condition_tells_whether_the_minimum_runs() {
    let mut model = Model::new(&[2]);
    model.run_time = 1000;
    model.create(gang("a", vec![part("w", 1, 4, 1)], &[("w", 3)]), 0, false);
    let condition = |model: &Model| {
        let status = model.clusters["a"].jobset.status.clone().unwrap();
        let condition = status.condition(conditions::MIN_AVAILABLE).unwrap().clone();
        (condition.status, condition.reason)
    };
    model.run(3);
    assert_eq!(condition(&model), ("False".to_owned(), "Waiting".to_owned()));
    *model.nodes.get_mut("n0").unwrap() = 3;
    model.run(4);
    assert_eq!(condition(&model), ("True".to_owned(), "Scheduled".to_owned()));
    model.lose(&model.pods_of("a")[0].uid.clone());
    *model.nodes.get_mut("n0").unwrap() = 2;
    model.run(3);
    assert_eq!(condition(&model), ("False".to_owned(), "Waiting".to_owned()));
    let gangs = &mut model.status_of("a").gangs;
    gangs[0] = GangStatus {
        phase: GangPhase::BackingOff,
        ..gangs[0].clone()
    };
    model.step();
    assert_eq!(condition(&model), ("False".to_owned(), "Timeout".to_owned()));
}
