//! The submission of a job to Ray, which happens once.

use super::*;

#[test]
fn kuberay_756_ids_are_written_down_before_anything_is_made() {
    let mut stage = Stage::new(json!({}));
    assert!(stage.step().add_finalizer);
    let plan = stage.step();
    assert!(plan.create_cluster.is_none() && plan.create_submitter.is_none());
    let (id, cluster) = (
        stage.status().job_id.clone(),
        stage.status().ray_cluster_name.clone(),
    );
    assert!(
        id.starts_with("rj-") && cluster.starts_with("rj-") && id.len() == 8,
        "{id} {cluster}"
    );
    assert_eq!(stage.phase(), Phase::Initializing);
    // After a lost status the ids are the same.
    stage.job.status = None;
    stage.step();
    assert_eq!(
        (&stage.status().job_id, &stage.status().ray_cluster_name),
        (&id, &cluster)
    );
}

#[test]
fn kuberay_756_a_write_that_conflicts_makes_no_second_job() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready().settle();
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: None,
    };
    stage.step();
    let before = stage.job.status.clone();
    assert!(stage.step().create_submitter.is_some());
    // The status was not written: the submitter exists, and is recognized.
    stage.job.status = before;
    stage.settle();
    assert_eq!(
        (stage.submitted.len(), stage.clusters.len(), stage.phase()),
        (1, 1, Phase::Running)
    );
}

#[test]
fn kuberay_2314_2317_the_death_of_a_submitter_does_not_touch_the_job() {
    for (type_, reason) in [
        ("Failed", "BackoffLimitExceeded"),
        ("Failed", "DeadlineExceeded"),
        ("Complete", ""),
    ] {
        let mut stage = running(json!({}));
        stage.submitter_ends(type_, reason);
        assert_eq!(
            (stage.phase(), stage.status().failed),
            (Phase::Running, 0),
            "{reason}"
        );
        // Another submitter for the same job, which attaches to it.
        assert_eq!(stage.submitted, vec![stage.status().job_id.clone(); 2]);
        assert!(stage.stopped.is_empty());
        stage.submitter = None;
        stage.settle();
        assert!(stage.submitter.is_some());
        stage.says("SUCCEEDED");
        assert_eq!(stage.phase(), Phase::Complete);
    }
}

#[test]
fn kuberay_3211_a_submitter_that_ends_well_does_not_make_a_failed_job_good() {
    let mut stage = running(json!({}));
    stage.submitter_ends("Complete", "");
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.status().succeeded), (Phase::Failed, 0));
}

#[test]
fn what_the_submitter_saw_counts_if_ray_is_gone() {
    for (type_, reason, phase) in [
        ("Complete", "", Phase::Complete),
        ("Failed", "PodFailurePolicy", Phase::Failed),
    ] {
        let mut stage = running(json!({}));
        stage.ray = Ray::Unreachable;
        stage.submitter_ends(type_, reason);
        assert_eq!(stage.phase(), phase);
    }
}

#[test]
fn kuberay_4199_the_head_is_enough_unless_all_pods_are_asked_for() {
    let mut stage = Stage::new(json!({"waitForAllPodsHealthy": true}));
    stage.settle().head_is_ready().settle();
    assert_eq!((stage.phase(), question(&stage.job)), (Phase::Initializing, None));
    let status = stage.cluster.as_mut().unwrap().status.as_mut().unwrap();
    let mut provisioned = status.conditions[0].clone();
    provisioned.type_ = conditions::PROVISIONED.to_owned();
    status.conditions.push(provisioned);
    status.desired_worker_replicas = 2;
    status.ready_worker_replicas = 1;
    stage.settle().session("s0");
    assert_eq!(stage.phase(), Phase::Initializing);
    stage
        .cluster
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .ready_worker_replicas = 2;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Running);
}

#[test]
fn http_mode_submits_once_for_each_attempt() {
    let asked = json!({"submissionMode": "HTTPMode", "entrypointNumCpus": 0.5, "entrypointNumGpus": 1});
    let mut stage = Stage::new(asked);
    stage.settle().head_is_ready().settle();
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: None,
    };
    stage.step();
    let plan = stage.step();
    let body = plan.submit.unwrap();
    assert_eq!(
        (&body["entrypoint"], &body["entrypoint_num_cpus"]),
        (&json!("python main.py"), &json!(0.5))
    );
    assert_eq!(body["entrypoint_num_gpus"], json!(1.0));
    assert_eq!(body["runtime_env"]["env_vars"]["RAYJOB_ATTEMPT"], "0");
    assert_eq!(stage.submitted.len(), 1);
    stage.says("RUNNING").wait(60);
    assert_eq!((stage.submitted.len(), stage.phase()), (1, Phase::Running));
    assert!(stage.submitter.is_none());
}

#[test]
fn the_submitter_has_what_the_job_asks_for() {
    let stage = running(json!({
        "runtimeEnvYAML": "env_vars:\n  A: \"1\"\npip: [x]\n",
        "metadata": {"k": "v"},
        "entrypointNumCpus": 0.5,
        "entrypointNumGpus": 1,
        "entrypointResources": "{\"slots\": 1}",
        "activeDeadlineSeconds": 100,
    }));
    let job = stage.submitter.as_ref().unwrap().spec.as_ref().unwrap();
    let labels = job.template.metadata.clone().unwrap().labels.unwrap();
    assert_eq!(
        (
            labels["ray.io/originated-from-cr-name"].as_str(),
            labels["ray.io/originated-from-crd"].as_str()
        ),
        ("rj", "RayJob")
    );
    assert_eq!(
        (job.backoff_limit, job.active_deadline_seconds),
        (Some(2), Some(160))
    );
    let pod = job.template.spec.as_ref().unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    let container = &pod.containers[0];
    assert_eq!(
        (container.name.as_str(), container.image.as_deref()),
        ("ray-job-submitter", Some("rayproject/ray:2.46.0"))
    );
    assert!(container.lifecycle.is_none());
    let env = |name: &str| {
        let mut env = container.env.iter().flatten();
        env.find(|variable| variable.name == name)
            .and_then(|variable| variable.value.clone())
            .unwrap()
    };
    assert_eq!(
        (env("RAY_JOB_SUBMISSION_ID"), env("RAYJOB_SESSION")),
        (stage.status().job_id.clone(), "s0".to_owned())
    );
    let words: Vec<String> = serde_json::from_str(&env("RAYJOB_SUBMIT")).unwrap();
    let environment: Value = serde_json::from_str(&words[1]).unwrap();
    assert_eq!(
        environment,
        json!({"env_vars": {"A": "1", "RAYJOB_ATTEMPT": "0"}, "pip": ["x"]})
    );
    assert_eq!(words[2..4], ["--metadata-json", "{\"k\":\"v\"}"]);
    assert_eq!(
        words[4..8],
        ["--entrypoint-num-cpus", "0.5", "--entrypoint-num-gpus", "1"]
    );
    assert_eq!(
        words[8..],
        ["--entrypoint-resources", "{\"slots\": 1}", "--", "python main.py"]
    );
}

#[test]
fn only_the_container_that_submits_tells_that_the_job_has_failed() {
    let beside = json!({"spec": {"containers": [{"name": "submits", "image": "ray"}, {"name": "proxy", "image": "proxy"}]}});
    for (template, named) in [(Value::Null, "ray-job-submitter"), (beside, "submits")] {
        let stage = submitted(json!({"submitterPodTemplate": template}));
        let job = stage.submitter.unwrap().spec.unwrap();
        let rules = job.pod_failure_policy.unwrap().rules;
        let failing = rules.iter().find_map(|rule| rule.on_exit_codes.as_ref()).unwrap();
        assert_eq!(
            (failing.container_name.as_deref(), failing.values.as_slice()),
            (Some(named), [1].as_slice())
        );
    }
}

/// A job with a ready head, in HTTP mode.
fn over_http(limit: i64) -> Stage {
    let mut stage = Stage::new(json!({"submissionMode": "HTTPMode", "activeDeadlineSeconds": limit}));
    stage.settle().head_is_ready().settle();
    stage
}

#[test]
fn a_dashboard_that_does_not_accept_the_job_counts_as_unreachable_and_is_reported() {
    let mut stage = over_http(10_000);
    stage.ray = Ray::Failing("500 Internal Server Error: no agent".to_owned());
    stage.settle();
    let status = stage.status();
    assert!(
        status.message.contains("has not accepted the job: 500") && status.unreachable_since.is_some(),
        "{status:?}"
    );
    stage.wait(301);
    assert_eq!(stage.status().reason, "JobStatusCheckTimeoutExceeded");

    let mut stage = over_http(10_000);
    stage.ray = Ray::Failing("503".to_owned());
    stage.settle();
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: None,
    };
    stage.says("RUNNING");
    assert_eq!(
        (stage.phase(), stage.status().unreachable_since.is_some()),
        (Phase::Running, false)
    );
}

#[test]
fn a_head_that_is_not_ready_is_not_out_of_reach() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready();
    stage.ray = Ray::Unreachable;
    stage.settle();
    assert!(stage.status().unreachable_since.is_some());
    stage.cluster.as_mut().unwrap().status = None;
    stage.wait(301);
    let status = stage.status();
    assert_eq!(
        (&status.unreachable_since, status.message.as_str(), stage.phase()),
        (&None, "", Phase::Initializing)
    );
    // The count starts over.
    stage.head_is_ready().settle();
    assert_eq!(stage.phase(), Phase::Initializing);
}

#[test]
fn a_dashboard_that_denies_access_is_reported_with_its_answer() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready();
    stage.ray = Ray::Denied("401 Unauthorized".to_owned());
    stage.settle();
    let status = stage.status();
    assert!(status.unreachable_since.is_some());
    assert!(
        status.message.ends_with(":8265 answered 401 Unauthorized"),
        "{}",
        status.message
    );
    // It is given up as unreachable.
    stage.wait(301);
    assert_eq!(stage.status().reason, "JobStatusCheckTimeoutExceeded");
}

#[test]
fn a_dashboard_without_sessions_gets_its_job() {
    for mode in ["K8sJobMode", "HTTPMode"] {
        let mut stage = Stage::new(json!({"submissionMode": mode, "backoffLimit": 1}));
        stage.settle().head_is_ready().settle();
        // Each request finds Ray unchanged: here it does not learn of submissions.
        for _ in 0..3 {
            stage.ray = Ray::Reached {
                session: String::new(),
                job: None,
            };
            stage.step();
        }
        assert!(!stage.submitted.is_empty(), "{mode}");
        stage.says("RUNNING").says("SUCCEEDED");
        assert_eq!(stage.phase(), Phase::Complete, "{mode}");
    }
}

#[test]
fn an_answer_without_a_session_is_not_believed_after_one_with_a_session() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.session("");
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Running, 0));
    assert!(stage.status().unreachable_since.is_some());
    stage.session("s0").says("FAILED").session("").wait(60);
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Retrying, 1));
}

#[test]
fn the_cluster_has_the_jobs_labels() {
    let mut stage = Stage::new(json!({"submissionMode": "HTTPMode"}));
    let labels = json!({"team": "a", "ray.io/originated-from-cr-name": "another"});
    stage.job.metadata.labels = serde_json::from_value(labels).unwrap();
    stage.settle();
    let labels = stage.cluster.unwrap().metadata.labels.unwrap();
    let expected = json!({
        "team": "a",
        "ray.io/originated-from-cr-name": "rj",
        "ray.io/originated-from-crd": "RayJob",
        "ray.io/job-submission-mode": "HTTPMode",
    });
    assert_eq!(json!(labels), expected);
}

/// A text as the kubelet passes it on as the value of a variable.
fn expanded(text: &str) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = match after.strip_prefix('$') {
            Some(rest) => rest,
            None if after.starts_with('(') => panic!("a variable is put in: {text}"),
            None => after,
        };
        expanded.push('$');
    }
    expanded + rest
}

#[test]
fn dollars_arrive_unchanged() {
    let entrypoint = "echo 'a$$b $(RAYJOB_ATTEMPT)' $HOME $";
    let stage = submitted(json!({
        "entrypoint": entrypoint,
        "runtimeEnvYAML": "env_vars: {PASSWORD: \"pa$$w0rd\", $(A): $(B)}",
        "metadata": {"$$": "$(C)"},
        "entrypointResources": "{\"$$\": 1}",
    }));
    let job = stage.submitter.unwrap().spec.unwrap();
    let container = &job.template.spec.unwrap().containers[0];
    let mut env = container.env.iter().flatten();
    let submit = env.find(|variable| variable.name == "RAYJOB_SUBMIT").unwrap();
    let words: Vec<String> = serde_json::from_str(&expanded(submit.value.as_ref().unwrap())).unwrap();
    let environment: Value = serde_json::from_str(&words[1]).unwrap();
    assert_eq!(
        environment["env_vars"],
        json!({"PASSWORD": "pa$$w0rd", "$(A)": "$(B)", "RAYJOB_ATTEMPT": "0"})
    );
    assert_eq!(words[3], "{\"$$\":\"$(C)\"}");
    assert_eq!(words[5], "{\"$$\": 1}");
    assert_eq!(words.last().unwrap(), entrypoint);
}
