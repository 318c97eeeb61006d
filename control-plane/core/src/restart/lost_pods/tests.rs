use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::EnvVar;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::RestartStrategy;

use super::*;
use crate::common::testing::{JobSetBuild, at, jobset, replicated_job};
use crate::jobset::in_place::Agents;
use crate::jobset::pod::PodSummary;
use crate::jobset::upstream_agent::AgentPod;
use crate::reconcile::jobs::Jobs;

/// The Job `js-a-0` of an in-place JobSet with this many workers.
fn job(workers: i32) -> Job {
    let mut template = replicated_job("a", 1);
    let spec = template.template.spec.as_mut().unwrap();
    spec.parallelism = Some(workers);
    spec.completions = Some(workers);
    let js = jobset([template]).restarting(RestartStrategy::InPlaceRestart, 3);
    let mut job = Jobs::new(&js, crate::common::features::Features::default(), &Agents::ByNode)
        .make(&js.spec.replicated_jobs[0], 0);
    job.metadata.uid = Some("uid-job".to_owned());
    job
}

fn with(change: impl FnOnce(&mut Job)) -> Job {
    let mut job = job(2);
    change(&mut job);
    job
}

fn pod(index: u32, uid: &str, phase: &str) -> PodSummary {
    PodSummary {
        name: format!("name-of-{uid}"),
        uid: uid.to_owned(),
        restart_attempt: Some(0),
        job: Some("js-a-0".to_owned()),
        job_uid: Some("uid-job".to_owned()),
        index: Some(index),
        running: phase == "Running",
        agent: AgentPod {
            failed: phase == "Failed",
            succeeded: phase == "Succeeded",
            ..AgentPod::default()
        },
        ..PodSummary::default()
    }
}

fn place(index: u32) -> PodPlace {
    PodPlace {
        job: "js-a-0".to_owned(),
        index,
    }
}

/// A leader, and the time.
struct World {
    lost: LostPods,
    started: BTreeSet<String>,
    job: Job,
    now: UnixNanos,
    generation: Generation,
}

impl World {
    fn new() -> Self {
        Self {
            lost: LostPods::default(),
            started: BTreeSet::new(),
            job: job(2),
            now: UnixNanos(1),
            generation: Generation(0),
        }
    }

    fn look(&mut self, pods: &[PodSummary]) -> Vacant {
        let places = places(&[Arc::new(self.job.clone())], pods, 0, &self.started);
        self.lost.find_vacant(&places, self.generation, self.now)
    }

    /// The names of the pods that are wanted now.
    fn names(&mut self, pods: &[PodSummary]) -> Vec<String> {
        let vacant = self.look(pods);
        vacant
            .replacements
            .into_iter()
            .map(|wanted| wanted.name)
            .collect()
    }
}

fn named_after(index: u32, uid: &str) -> String {
    name(&place(index), uid)
}

#[test]
fn a_pod_is_replaced_when_it_has_failed_or_is_gone_and_not_before() {
    let other = pod(1, "b", "Running");
    for (what, seen, wanted) in [
        ("running", Some(pod(0, "a", "Running")), false),
        ("pending", Some(pod(0, "a", "Pending")), false),
        ("no longer reported", Some(pod(0, "a", "Unknown")), false),
        ("failed", Some(pod(0, "a", "Failed")), true),
        ("gone", None, true),
        ("done", Some(pod(0, "a", "Succeeded")), false),
    ] {
        let mut world = World::new();
        assert!(world.names(&[pod(0, "a", "Running"), other.clone()]).is_empty());
        let mut pods = vec![other.clone()];
        pods.extend(seen);
        let expected = if wanted {
            vec![named_after(0, "a")]
        } else {
            Vec::new()
        };
        assert_eq!(world.names(&pods), expected, "{what}");
        assert_eq!(world.names(&pods), expected, "{what}, looked at again");
    }
}

#[test]
fn nothing_is_replaced_before_there_was_a_pod() {
    let mut world = World::new();
    assert_eq!(world.look(&[]), Vacant::default());
    assert_eq!(world.look(&[pod(1, "b", "Running")]), Vacant::default());
}

#[test]
fn a_replacement_that_is_there_ends_the_matter_and_is_replaced_in_its_turn() {
    let mut world = World::new();
    let next = |world: &mut World, uid: &str| {
        let mut here = pod(0, uid, "Running");
        if uid != "a" {
            here.name = world.names(&[])[0].clone();
        }
        assert!(world.names(std::slice::from_ref(&here)).is_empty());
        world.names(&[])[0].clone()
    };
    let names: Vec<String> = ["a", "b", "c", "d"].map(|uid| next(&mut world, uid)).into();
    assert_eq!(names, ["a", "b", "c", "d"].map(|uid| named_after(0, uid)));
}

#[test]
fn failed_pods_that_stay_are_each_replaced_once() {
    let mut world = World::new();
    let failed = pod(0, "a", "Failed");
    assert_eq!(world.names(std::slice::from_ref(&failed)), [named_after(0, "a")]);
    let mut second = pod(0, "b", "Running");
    second.name = named_after(0, "a");
    assert!(world.names(&[failed.clone(), second.clone()]).is_empty());
    let mut second_failed = pod(0, "b", "Failed");
    second_failed.name = second.name;
    let wanted = world.look(&[failed, second_failed]).replacements;
    assert_eq!(wanted[0].name, named_after(0, "b"));
    assert_eq!(wanted[0].ended, ["a".to_owned(), "b".to_owned()].into());
}

#[test]
fn two_pods_of_one_place_are_not_replaced_before_both_have_ended() {
    let mut world = World::new();
    let (a, b) = (pod(0, "a", "Running"), pod(0, "b", "Running"));
    assert!(world.names(&[a, b.clone()]).is_empty());
    assert!(world.names(&[b]).is_empty());
    assert_eq!(world.names(&[]), [named_after(0, "b")]);
}

#[test]
fn any_leader_gives_the_same_name_to_what_replaces_a_failed_pod() {
    let failed = [pod(0, "b", "Failed"), pod(0, "a", "Failed")];
    let mut before = World::new();
    before.names(&[pod(0, "b", "Running")]);
    let mut after = World::new();
    assert_eq!(before.names(&failed), after.names(&failed));
}

#[test]
fn a_leader_that_has_not_seen_the_pod_goes_by_the_stage_and_waits_for_the_job_controller_first() {
    let mut world = World::new();
    assert_eq!(world.look(&[pod(1, "b", "Running")]), Vacant::default());
    world.started.insert("a".to_owned());
    let here = [pod(1, "b", "Running")];
    let first = world.look(&here);
    assert!(first.replacements.is_empty());
    assert_eq!(first.wake_at, Some(world.now.plus_millis(UNSEEN_MS)));
    world.now = world.now.plus_millis(UNSEEN_MS);
    let names = world.names(&here);
    assert_eq!(names.len(), 1);
    let mut another = World::new();
    another.started.insert("a".to_owned());
    another.look(&here);
    another.now = world.now.plus_millis(UNSEEN_MS);
    assert_eq!(another.names(&here), names);
    another.generation = Generation(1);
    another.look(&here);
    another.now = another.now.plus_millis(UNSEEN_MS);
    assert_ne!(another.names(&here), names, "the next loss is a new one");
}

#[test]
fn pods_that_never_run_are_replaced_ever_more_slowly() {
    let mut world = World::new();
    world.names(&[pod(0, "p0", "Running")]);
    let mut waits = Vec::new();
    for round in 1..10 {
        let lost_at = world.now;
        let mut vacant = world.look(&[]);
        if let Some(at) = vacant.wake_at {
            assert!(vacant.replacements.is_empty());
            world.now = at;
            vacant = world.look(&[]);
        }
        assert_eq!(vacant.replacements.len(), 1);
        waits.push((world.now.0 - lost_at.0) / 1_000_000_000);
        let phase = if round < 8 { "Pending" } else { "Running" };
        world.names(&[pod(0, &format!("p{round}"), phase)]);
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 0]);
}

#[test]
fn a_pod_that_failed_unseen_counts_as_one_that_never_ran() {
    let mut world = World::new();
    world.names(&[pod(0, "a", "Running")]);
    assert_eq!(world.names(&[]), [named_after(0, "a")]);
    let mut refused = pod(0, "b", "Failed");
    refused.name = named_after(0, "a");
    assert!(world.look(&[refused]).wake_at.is_some());
}

#[test]
fn only_jobs_that_let_others_create_their_pods_are_looked_at() {
    let condition = |type_: &str, status: &str| JobCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        ..JobCondition::default()
    };
    let conditions = |conditions: Vec<JobCondition>| JobStatus {
        conditions: Some(conditions),
        ..JobStatus::default()
    };
    let spec = |change: fn(&mut k8s_openapi::api::batch::v1::JobSpec)| {
        with(|job| change(job.spec.get_or_insert_default()))
    };
    for (what, job, open) in [
        ("as it is", job(2), true),
        ("suspended", spec(|spec| spec.suspend = Some(true)), false),
        ("resumed", spec(|spec| spec.suspend = Some(false)), true),
        ("not indexed", spec(|spec| spec.completion_mode = None), false),
        (
            "fewer pods than indexes",
            spec(|spec| spec.completions = Some(3)),
            false,
        ),
        (
            "a limit of failures",
            spec(|spec| spec.backoff_limit = Some(0)),
            false,
        ),
        (
            "a limit per index",
            spec(|spec| spec.backoff_limit_per_index = Some(1)),
            false,
        ),
        (
            "of another controller",
            spec(|spec| spec.managed_by = Some("example.com/c".into())),
            false,
        ),
        (
            "the Job controller's",
            spec(|spec| spec.managed_by = Some("kubernetes.io/job-controller".into())),
            true,
        ),
        (
            "deleted",
            with(|job| job.metadata.deletion_timestamp = Some(Time(at(0)))),
            false,
        ),
        (
            "about to fail",
            with(|job| job.status = Some(conditions(vec![condition("FailureTarget", "True")]))),
            false,
        ),
        (
            "not about to fail",
            with(|job| job.status = Some(conditions(vec![condition("FailureTarget", "False")]))),
            true,
        ),
        (
            "about to complete",
            with(|job| job.status = Some(conditions(vec![condition("SuccessCriteriaMet", "True")]))),
            false,
        ),
    ] {
        assert_eq!(is_open(&job, 1), open, "{what}");
    }
    assert!(!is_open(&job(2), 2));
}

#[test]
fn completed_indexes_and_jobs_of_earlier_recreations_have_no_places() {
    let done = with(|job| {
        let status = job.status.get_or_insert_default();
        status.completed_indexes = Some("0".to_owned());
    });
    let none = BTreeSet::new();
    let at_attempt = |attempt| places(&[Arc::new(done.clone())], &[], attempt, &none);
    assert_eq!(at_attempt(0).into_keys().collect::<Vec<_>>(), [place(1)]);
    assert!(at_attempt(1).is_empty());
}

#[test]
fn pods_of_a_job_of_the_same_name_that_was_there_before_are_not_replaced_but_waited_for() {
    let mut old = pod(0, "old", "Failed");
    old.job_uid = Some("uid-before".to_owned());
    let mut world = World::new();
    assert_eq!(world.look(&[old.clone()]), Vacant::default());
    old.agent.failed = false;
    world.names(&[pod(0, "a", "Running")]);
    assert!(world.names(&[old]).is_empty());
}

#[test]
fn a_pod_that_no_job_controls_fills_a_place_while_it_lives_and_never_ends_its_work() {
    let mut world = World::new();
    world.names(&[pod(0, "a", "Running")]);
    let lost = pod(0, "a", "Failed");
    let expected = world.names(std::slice::from_ref(&lost));
    assert_eq!(expected.len(), 1);
    for (phase, expected) in [("Running", vec![]), ("Succeeded", expected)] {
        let mut left = pod(0, "left", phase);
        left.job_uid = None;
        assert_eq!(world.names(&[lost.clone(), left]), expected, "{phase}");
    }
}

#[test]
fn a_stray_pod_that_has_ended_speaks_against_no_replacement() {
    let uid = |uid: &str| uid.to_owned();
    for (what, owner, phase, ended) in [
        ("of no Job, failed", None, "Failed", true),
        ("of no Job, done", None, "Succeeded", true),
        ("of a Job of before, failed", Some("uid-before"), "Failed", true),
        ("of a Job of before, done", Some("uid-before"), "Succeeded", true),
        ("of no Job, running", None, "Running", false),
        (
            "of a Job of before, pending",
            Some("uid-before"),
            "Pending",
            false,
        ),
    ] {
        for lost in [vec![], vec![pod(0, "a", "Failed")]] {
            let mut world = World::new();
            world.names(&[pod(0, "a", "Running")]);
            let mut stray = pod(0, "stray", phase);
            stray.job_uid = owner.map(uid);
            let mut pods = lost.clone();
            pods.push(stray);
            let wanted = world.look(&pods).replacements;
            if !ended {
                assert_eq!(wanted, [], "{what}");
                continue;
            }
            assert_eq!(wanted.len(), 1, "{what}");
            assert_eq!(wanted[0].name, named_after(0, "a"), "{what}");
            assert_eq!(wanted[0].ended, [uid("a"), uid("stray")].into(), "{what}");
        }
    }
}

#[test]
fn another_job_of_the_same_name_owes_nothing() {
    let mut world = World::new();
    world.names(&[pod(0, "a", "Running")]);
    world.job.metadata.uid = Some("uid-next".to_owned());
    assert_eq!(world.look(&[]), Vacant::default());
}

#[test]
fn the_pod_is_what_the_job_controller_makes() {
    let mut job = job(2);
    let template = &mut job.spec.as_mut().unwrap().template;
    template
        .metadata
        .get_or_insert_default()
        .finalizers
        .replace(vec!["example.com/keep".to_owned()]);
    let containers = &mut template.spec.as_mut().unwrap().containers;
    let mut other = containers[0].clone();
    let own = EnvVar {
        name: "JOB_COMPLETION_INDEX".to_owned(),
        value: Some("mine".to_owned()),
        value_from: None,
    };
    other.env = Some(vec![own.clone()]);
    containers.push(other);
    let pod = replacement_pod(&job, 1, "js-a-0-1-x").unwrap();
    let meta = &pod.metadata;
    for map in [&meta.labels, &meta.annotations] {
        assert_eq!(
            map.as_ref().unwrap()["batch.kubernetes.io/job-completion-index"],
            "1"
        );
        assert_eq!(map.as_ref().unwrap()["jobset.sigs.k8s.io/jobset-name"], "js");
    }
    assert_eq!(
        meta.finalizers.as_ref().unwrap(),
        &["example.com/keep", "batch.kubernetes.io/job-tracking"]
    );
    let owner = &meta.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Job", "uid-job"));
    assert_eq!(
        (owner.controller, owner.block_owner_deletion),
        (Some(true), Some(true))
    );
    let spec = pod.spec.unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("js-a-0-1"));
    assert_eq!(spec.subdomain.as_deref(), Some("js"));
    let env = |container: usize| spec.containers[container].env.clone().unwrap();
    let field = env(0)[0].value_from.clone().unwrap().field_ref.unwrap();
    assert_eq!(
        field.field_path,
        "metadata.labels['batch.kubernetes.io/job-completion-index']"
    );
    assert_eq!(env(1), [own]);
}

#[test]
fn jobs_that_claim_to_be_the_groups_have_at_most_as_many_places_as_a_group() {
    let wide = |name: &str, mode: &str| {
        let job = with(|job| {
            job.metadata.name = Some(name.to_owned());
            let spec = job.spec.as_mut().unwrap();
            spec.completion_mode = Some(mode.to_owned());
            (spec.completions, spec.parallelism) = (Some(i32::MAX), Some(i32::MAX));
        });
        Arc::new(job)
    };
    let none = BTreeSet::new();
    assert!(places(&[wide("a", "NonIndexed")], &[], 0, &none).is_empty());
    let both = [wide("a", "Indexed"), wide("b", "Indexed")];
    assert_eq!(
        places(&both, &[], 0, &none).len(),
        crate::jobset::limits::MOST_WORKERS
    );
}
