//! The pod controller, on paused time.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::k8s::watch::notify;
use crate::telemetry::metrics::Metrics;

/// Notifies the controller once of Job `job`, and runs it until `done` returns true.
async fn enforce(placement: &Placement, done: impl Future<Output = ()>) {
    let (notifier, changes) = notify::channel();
    notifier.add(JobRef::new("ns", "job"));
    let shutdown = CancellationToken::new();
    let controller = Controller::new(placement.clone(), Arc::new(Metrics::default()));
    let run = controller.run(changes, shutdown.clone());
    tokio::join!(run, async {
        done.await;
        shutdown.cancel();
    });
}

/// Longer than any first attempt takes. Time is paused, so it passes only when nothing else is left
/// to do.
async fn quiet() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

fn writes(api: &Api) -> Vec<String> {
    let mut writes: Vec<String> = api
        .requests()
        .into_iter()
        .filter(|request| !request.starts_with("GET"))
        .collect();
    writes.sort();
    writes
}

fn job() -> [Value; 4] {
    [
        on(pod("0", "a"), "n1"),
        selecting(pod("1", "a"), "r1"),
        selecting(pod("2", "a"), "r2"),
        pod("3", "a"),
    ]
}

fn api(pods: &[Value]) -> Api {
    pods.iter()
        .cloned()
        .fold(Api::default().node("n1", json!({RACK: "r1"})), Api::pod)
}

#[tokio::test(start_paused = true)]
async fn misplaced_followers_are_marked_and_deleted_and_the_others_stay() {
    let pods = job();
    let api = api(&pods);
    enforce(&placement(&api, &pods), quiet()).await;
    assert_eq!(
        writes(&api),
        [
            "DELETE /api/v1/namespaces/ns/pods/js-w-0-2-a",
            "DELETE /api/v1/namespaces/ns/pods/js-w-0-3-a",
            "PATCH /api/v1/namespaces/ns/pods/js-w-0-2-a/status",
            "PATCH /api/v1/namespaces/ns/pods/js-w-0-3-a/status",
        ]
    );
    let bodies = api.bodies();
    let of_pod_2 = |body: &&Value| body.to_string().contains("uid-2-a");
    let sent: Vec<&Value> = bodies.iter().filter(of_pod_2).collect();
    let condition = &sent[0]["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("DisruptionTarget"), &json!("True"))
    );
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (
            &json!("ExclusivePlacementViolation"),
            &json!("Pod violated JobSet exclusive placement policy")
        )
    );
    assert_eq!(sent[1]["propagationPolicy"], "Background");
    assert_eq!(sent[1]["preconditions"], json!({"uid": "uid-2-a"}));
}

#[tokio::test(start_paused = true)]
async fn a_second_check_before_the_watch_shows_the_deletion_writes_nothing() {
    let pods = job();
    let api = api(&pods);
    let placement = placement(&api, &pods);
    enforce(&placement, quiet()).await;
    let before = api.requests().len();
    enforce(&placement, quiet()).await;
    assert_eq!(writes(&api).len(), 4);
    assert!(api.requests().len() <= before + 1, "{:?}", api.requests());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_marked_already_is_only_deleted() {
    let condition = json!({"conditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let pods = [
        on(pod("0", "a"), "n1"),
        with(selecting(pod("1", "a"), "r2"), "/status", condition),
    ];
    let api = api(&pods);
    enforce(&placement(&api, &pods), quiet()).await;
    assert_eq!(writes(&api), ["DELETE /api/v1/namespaces/ns/pods/js-w-0-1-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_is_tried_again() {
    let pods = [on(pod("0", "a"), "n1"), selecting(pod("1", "a"), "r2")];
    let api = api(&pods).failing(3);
    let deleted = async {
        while writes(&api)
            .iter()
            .filter(|write| write.starts_with("DELETE"))
            .count()
            < 4
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let started = tokio::time::Instant::now();
    enforce(&placement(&api, &pods), deleted).await;
    // 100, 200 and 400 ms.
    assert!(started.elapsed() >= Duration::from_millis(700));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_while_the_domain_of_the_leader_is_unknown() {
    let pods = job();
    for api in [Api::default(), Api::default().node("n1", json!({"disk": "ssd"}))] {
        let long = tokio::time::sleep(Duration::from_secs(60));
        enforce(&placement(&api, &pods), long).await;
        assert_eq!(writes(&api), Vec::<String>::new());
        let asked = api.requests().len();
        assert!((5..20).contains(&asked), "asked {asked} times in a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn a_well_placed_job_costs_one_read_of_a_node() {
    let pods = [on(pod("0", "a"), "n1"), selecting(pod("1", "a"), "r1")];
    let api = api(&pods);
    let placement = placement(&api, &pods);
    enforce(&placement, quiet()).await;
    enforce(&placement, quiet()).await;
    assert_eq!(api.requests(), ["GET /api/v1/nodes/n1"]);
}
