use lockstep_api::{RestartStrategy, annotations, labels};

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job};

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

fn pod_template(job: &Job) -> &PodTemplateSpec {
    &job.spec.as_ref().unwrap().template
}

#[test]
fn jobs_and_pods_carry_their_identity_as_labels_and_annotations() {
    let js = jobset([
        replicated_job("a", 2).with(|job| job.group_name = Some("g".to_owned())),
        replicated_job("b", 3),
        replicated_job("c", 4).with(|job| job.group_name = Some("g".to_owned())),
    ])
    .with(|js| {
        js.spec.coordinator = Some(lockstep_api::Coordinator {
            replicated_job: "b".to_owned(),
            job_index: Some(1),
            pod_index: None,
        });
    })
    .status(|status| status.restarts = 7);
    let job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[2], 3);
    let expected: Map = [
        (labels::JOBSET_NAME, "js"),
        (labels::JOBSET_UID, "uid-js"),
        (labels::REPLICATED_JOB_NAME, "c"),
        (labels::REPLICATED_JOB_REPLICAS, "4"),
        (labels::GLOBAL_REPLICAS, "9"),
        (labels::JOB_INDEX, "3"),
        // printf ns/js-c-3 | sha1sum
        (labels::JOB_KEY, "08cdf6117847b64a5efee4b24cea350b2e6c19e2"),
        (labels::JOB_GLOBAL_INDEX, "8"),
        (labels::GROUP_NAME, "g"),
        (labels::GROUP_REPLICAS, "6"),
        (labels::JOB_GROUP_INDEX, "5"),
        (labels::RESTART_ATTEMPT, "7"),
        (labels::COORDINATOR, "js-b-1-0.js"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    for meta in [&job.metadata, pod_template(&job).metadata.as_ref().unwrap()] {
        assert_eq!(meta.labels.as_ref(), Some(&expected));
        assert_eq!(meta.annotations.as_ref(), Some(&expected));
    }
    assert_eq!(job.metadata.name.as_deref(), Some("js-c-3"));
    assert_eq!(job.metadata.namespace.as_deref(), Some("ns"));
}

#[test]
fn fields_of_the_template_are_kept_and_missing_ones_are_defaulted() {
    let js = jobset([
        replicated_job("bare", 1),
        replicated_job("full", 1)
            .with(|job| {
                job.template.metadata = Some(ObjectMeta {
                    labels: Some(Map::from([("mine".to_owned(), "1".to_owned())])),
                    ..ObjectMeta::default()
                });
            })
            .job_spec(|spec| {
                spec.completion_mode = Some("NonIndexed".to_owned());
                spec.backoff_limit = Some(3);
            })
            .pod_spec(|pod| pod.restart_policy = Some("Never".to_owned())),
    ]);
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let bare = jobs.make(&js.spec.replicated_jobs[0], 0);
    let spec = bare.spec.as_ref().unwrap();
    assert_eq!(spec.completion_mode.as_deref(), Some("Indexed"));
    assert_eq!(spec.suspend, Some(false));
    assert_eq!(
        (spec.backoff_limit, spec.pod_replacement_policy.as_deref()),
        (None, None)
    );
    let pod = spec.template.spec.as_ref().unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("OnFailure"));
    assert_eq!(pod.subdomain.as_deref(), Some("js"));
    let owner = &bare.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.uid.as_str(), owner.controller),
        ("JobSet", "uid-js", Some(true))
    );

    let full = jobs.make(&js.spec.replicated_jobs[1], 0);
    let spec = full.spec.as_ref().unwrap();
    assert_eq!(spec.completion_mode.as_deref(), Some("NonIndexed"));
    assert_eq!(spec.backoff_limit, Some(3));
    assert_eq!(
        spec.template.spec.as_ref().unwrap().restart_policy.as_deref(),
        Some("Never")
    );
    assert_eq!(full.metadata.labels.as_ref().unwrap()["mine"], "1");
    assert!(
        !spec
            .template
            .metadata
            .as_ref()
            .unwrap()
            .labels
            .as_ref()
            .unwrap()
            .contains_key("mine")
    );
}

#[test]
fn network_settings_decide_the_subdomain() {
    let with = |network: lockstep_api::Network| {
        let js = jobset([replicated_job("a", 1)]).with(|js| js.spec.network = Some(network));
        let job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
        pod_template(&job).spec.as_ref().unwrap().subdomain.clone()
    };
    let off = lockstep_api::Network {
        enable_dns_hostnames: Some(false),
        ..Default::default()
    };
    assert_eq!(with(off), None);
    let named = lockstep_api::Network {
        subdomain: Some("net".to_owned()),
        ..Default::default()
    };
    assert_eq!(with(named).as_deref(), Some("net"));
}

#[test]
fn exclusive_placement_of_the_replicated_job_goes_before_the_jobsets() {
    let js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1).with(|job| {
            let map = Map::from([(annotations::EXCLUSIVE_TOPOLOGY.to_owned(), "rack".to_owned())]);
            job.template.metadata = Some(ObjectMeta {
                annotations: Some(map),
                ..ObjectMeta::default()
            });
        }),
    ])
    .annotated(annotations::EXCLUSIVE_TOPOLOGY, "zone");
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    for (index, topology) in [(0, "zone"), (1, "rack")] {
        let job = jobs.make(&js.spec.replicated_jobs[index], 0);
        assert_eq!(
            annotation(&job.metadata, annotations::EXCLUSIVE_TOPOLOGY),
            Some(topology)
        );
        let pod = pod_template(&job);
        assert_eq!(
            annotation(pod.metadata.as_ref().unwrap(), annotations::EXCLUSIVE_TOPOLOGY),
            Some(topology)
        );
        assert_eq!(pod.spec.as_ref().unwrap().node_selector, None);
    }
}

#[test]
fn the_node_selector_strategy_adds_selector_and_toleration() {
    let js = jobset([replicated_job("a", 1)])
        .annotated(annotations::EXCLUSIVE_TOPOLOGY, "zone")
        .annotated(annotations::NODE_SELECTOR_STRATEGY, "true");
    let job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
    let pod = pod_template(&job).spec.as_ref().unwrap();
    assert_eq!(
        pod.node_selector.as_ref().unwrap()[labels::NAMESPACED_JOB],
        "ns_js-a-0"
    );
    assert_eq!(
        pod.tolerations.as_ref().unwrap()[0].key.as_deref(),
        Some(labels::NO_SCHEDULE_TAINT)
    );
}

#[test]
fn in_place_jobs_are_defaulted_and_their_pods_marked_for_the_daemons() {
    let js = jobset([replicated_job("a", 1).pod_spec(|pod| {
        pod.containers.push(k8s_openapi::api::core::v1::Container {
            name: "other".to_owned(),
            ..Default::default()
        });
    })])
    .restarting(RestartStrategy::InPlaceRestart, 3);
    let marks = |js: &JobSet| {
        let job = Jobs::new(js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
        let meta = pod_template(&job).metadata.clone().unwrap();
        assert_eq!(annotation(&job.metadata, annotations::IN_PLACE), None);
        let mark = |key| annotation(&meta, key).map(str::to_owned);
        (mark(annotations::IN_PLACE), mark(annotations::SUPERVISE))
    };
    let marked = |list: &str| (Some("supervised".to_owned()), Some(list.to_owned()));
    assert_eq!(marks(&js), marked("worker,other"));
    // A worker without its agent may be stopped if the kubelet restarts it.
    let may_stop = |js: &JobSet| {
        let job = Jobs::new(js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
        let meta = pod_template(&job).metadata.as_ref().unwrap();
        annotation(meta, annotations::STOP_WITHOUT_AGENT).map(str::to_owned)
    };
    assert_eq!(may_stop(&js).as_deref(), Some("true"));
    assert_eq!(
        may_stop(&js.clone().annotated(annotations::SUPERVISE, "none")),
        None
    );
    let never = js.clone().with(|js| {
        let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        job.template.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    });
    assert_eq!((may_stop(&never), marks(&never)), (None, marked("worker,other")));
    assert_eq!(
        marks(&js.clone().annotated(annotations::SUPERVISE, "other")),
        marked("other")
    );
    let plain = |list: &str| (Some("plain".to_owned()), Some(list.to_owned()));
    assert_eq!(
        marks(&js.clone().annotated(annotations::SUPERVISE, "none")),
        plain("worker,other")
    );
    let hosted = js.clone().with(|js| {
        let pod = js.spec.replicated_jobs[0]
            .template
            .spec
            .as_mut()
            .unwrap()
            .template
            .spec
            .as_mut()
            .unwrap();
        pod.host_pid = Some(true);
    });
    assert_eq!(marks(&hosted), plain("worker,other"));

    let limit = |js: &JobSet, daemons: bool| {
        let jobs = Jobs::new(js, Features::default(), &Agents::ByNode);
        let jobs = if daemons { jobs } else { jobs.without_daemons() };
        let job = jobs.make(&js.spec.replicated_jobs[0], 0);
        job.spec.unwrap().backoff_limit.unwrap()
    };
    assert_eq!((limit(&hosted, true), limit(&hosted, false)), (i32::MAX, 0));
    let never = hosted.with(|js| {
        let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        job.template.spec.as_mut().unwrap().restart_policy = Some("Never".to_owned());
    });
    assert_eq!((limit(&never, true), marks(&never)), (0, (None, None)));
    assert_eq!(limit(&js, false), i32::MAX);

    let spec = Jobs::new(&js, Features::default(), &Agents::ByNode)
        .make(&js.spec.replicated_jobs[0], 0)
        .spec
        .unwrap();
    assert_eq!(spec.backoff_limit, Some(i32::MAX));
    assert_eq!(spec.pod_replacement_policy.as_deref(), Some("Failed"));
}

#[test]
fn pods_say_what_is_started_ahead_if_their_workers_have_agents() {
    let of_job = |js: JobSet, value: &str| {
        js.with(|js| {
            let meta = js.spec.replicated_jobs[0]
                .template
                .metadata
                .get_or_insert_default();
            let said = meta.annotations.get_or_insert_default();
            said.insert(annotations::STANDBY.to_owned(), value.to_owned());
        })
    };
    let on_pods = |js: &JobSet| {
        let job = Jobs::new(js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
        annotation(
            pod_template(&job).metadata.as_ref().unwrap(),
            annotations::STANDBY,
        )
        .map(str::to_owned)
    };
    let js = jobset([replicated_job("a", 1)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let python = Some("python".to_owned());
    assert_eq!(on_pods(&js), None);
    let asked = js.clone().annotated(annotations::STANDBY, "python");
    assert_eq!(on_pods(&asked), python);
    assert_eq!(on_pods(&of_job(asked.clone(), "none")), None);
    assert_eq!(on_pods(&of_job(js.clone(), "python")), python);
    assert_eq!(
        on_pods(&of_job(asked.clone(), "program")),
        Some("program".to_owned())
    );
    assert_eq!(on_pods(&js.annotated(annotations::STANDBY, "none")), None);
    // Without agents there is nobody to start anything ahead.
    let plain = asked.clone().annotated(annotations::SUPERVISE, "none");
    assert_eq!(on_pods(&plain), None);
    let recreated = asked.restarting(RestartStrategy::Recreate, 3);
    assert_eq!(on_pods(&of_job(recreated, "python")), None);
}

#[test]
fn templates_include_the_agent_if_nodes_cannot_add_it() {
    let js = jobset([replicated_job("a", 1).pod_spec(|pod| {
        pod.containers[0].command = Some(vec!["run".to_owned()]);
    })])
    .restarting(RestartStrategy::InPlaceRestart, 3);
    let agents = Agents::ByTemplate("image".to_owned());
    let made = |js: &JobSet| {
        let job = Jobs::new(js, Features::default(), &agents).make(&js.spec.replicated_jobs[0], 0);
        let init = pod_template(&job).spec.as_ref().unwrap().init_containers.clone();
        (
            init.is_some(),
            annotation(
                pod_template(&job).metadata.as_ref().unwrap(),
                annotations::IN_PLACE,
            )
            .map(str::to_owned),
        )
    };
    assert_eq!(made(&js), (true, Some("supervised".to_owned())));
    let refused = js.clone().annotated(annotations::SUPERVISE, "none");
    assert_eq!(made(&refused), (false, Some("plain".to_owned())));
    let recreated = js.restarting(RestartStrategy::Recreate, 3);
    assert_eq!(made(&recreated), (false, None));
}

#[test]
fn a_template_cannot_mark_its_own_pods_for_the_daemons() {
    let js = jobset([replicated_job("a", 1).job_spec(|spec| {
        let map = [
            (annotations::IN_PLACE, "supervised"),
            (annotations::SUPERVISE, "worker"),
            (annotations::STOP_WITHOUT_AGENT, "true"),
            (annotations::STANDBY, "python"),
        ];
        let map = map.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        spec.template.metadata = Some(ObjectMeta {
            annotations: Some(map),
            ..ObjectMeta::default()
        });
    })]);
    let job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
    let meta = pod_template(&job).metadata.as_ref().unwrap();
    assert_eq!(annotation(meta, annotations::IN_PLACE), None);
    assert_eq!(annotation(meta, annotations::SUPERVISE), None);
    assert_eq!(annotation(meta, annotations::STOP_WITHOUT_AGENT), None);
    assert_eq!(annotation(meta, annotations::STANDBY), None);
}

#[test]
fn a_job_without_completions_is_not_made_one_that_needs_them() {
    let mode = |parallelism, completions| {
        let js = jobset([replicated_job("a", 1).job_spec(|spec| {
            spec.parallelism = parallelism;
            spec.completions = completions;
        })]);
        let job = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
        job.spec.unwrap().completion_mode
    };
    assert_eq!(mode(None, None).as_deref(), Some("Indexed"));
    assert_eq!(mode(Some(2), Some(2)).as_deref(), Some("Indexed"));
    assert_eq!(mode(Some(2), None), None);
}
