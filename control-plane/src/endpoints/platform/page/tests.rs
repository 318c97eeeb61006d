//! The page over a real socket, with groups that the test shows on the board.

use std::net::SocketAddr;
use std::sync::Mutex;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use lockstep_core::restart::{
    Announcement, Cause, Generation, GroupPhase, Observed, Reason, RestartLevel, Scope, StandbyReport,
    Standbys, Starts, Timeline, UnixNanos,
};
use serde_json::{Value, json};

use super::*;
use crate::endpoints::platform::tests::{identity, running};

const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    board: Arc<Board>,
    leader: Arc<Mutex<Option<String>>>,
    address: SocketAddr,
    shutdown: CancellationToken,
}

impl Served {
    async fn start() -> Self {
        let (board, shutdown) = (Board::new(), CancellationToken::new());
        let leader: Arc<Mutex<Option<String>>> = Arc::default();
        let who = Arc::clone(&leader);
        let replica = Replica {
            name: "pod-a".into(),
            namespace: "lockstep-system".into(),
        };
        let page = StatusPage::new(
            Arc::clone(&board),
            replica,
            Arc::new(move || who.lock().unwrap().clone()),
            shutdown.clone(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(page.serve(listener));
        Self {
            board,
            leader,
            address,
            shutdown,
        }
    }

    async fn leading() -> Self {
        let served = Self::start().await;
        served.board.set_leading();
        served
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> hyper::Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = hyper::Request::builder().method(method).uri(path);
        if headers.iter().all(|(name, _)| *name != "host") {
            request = request.header("host", "localhost:8082");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        tokio::time::timeout(PATIENCE, sender.send_request(request))
            .await
            .unwrap()
            .unwrap()
    }

    async fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.ask("GET", path, headers).await.status().as_u16()
    }

    async fn state(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, &[]).await;
        assert_eq!(answer.status(), 200, "{path}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    async fn text(&self, path: &str, headers: &[(&str, &str)]) -> String {
        let answer = self.ask("GET", path, headers).await;
        assert_eq!(answer.status(), 200, "{path}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    async fn events(&self, path: &str) -> Events {
        let answer = self.ask("GET", path, &[]).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        Events {
            body: answer.into_body(),
            read: String::new(),
        }
    }
}

struct Events {
    body: Incoming,
    read: String,
}

impl Events {
    /// The next state; `None` if the stream has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                match event.strip_prefix("data: ") {
                    Some(data) => return Some(serde_json::from_str(data).unwrap()),
                    None => continue,
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.unwrap()?;
            let data = frame.unwrap().into_data().unwrap();
            self.read.push_str(std::str::from_utf8(&data).unwrap());
        }
    }
}

#[tokio::test]
async fn the_list_tells_where_each_group_stands() {
    let served = Served::leading().await;
    let post = served.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 4));
    let state = served.state("/state").await;
    let group = json!({
        "namespace": "ours", "name": "js", "uid": "uid-js", "kind": "Supervised", "phase": "InSync", "generation": 4, "released": 4,
        "restarts": 1, "maxRestarts": 3, "workersExpected": 2, "workersUp": 1, "lastLevel": "", "lastCause": null,
    });
    let expected = json!({
        "replica": "pod-a", "namespace": "lockstep-system", "port": served.address.port(), "leads": true, "leader": null,
        "groups": [group], "found": 1, "all": 1,
    });
    assert_eq!(state, expected);
    for (search, found) in [("ours/j", 1), ("s/js", 1), ("theirs", 0), ("", 1)] {
        let state = served.state(&format!("/state?search={search}")).await;
        assert_eq!(
            (&state["found"], &state["all"]),
            (&json!(found), &json!(1)),
            "{search}"
        );
    }
}

#[tokio::test]
async fn of_too_many_groups_those_in_trouble_are_shown() {
    let served = Served::leading().await;
    let names: Vec<String> = (0..view::ROWS + 20)
        .map(|number| format!("js-{number:04}"))
        .collect();
    let posts: Vec<_> = names
        .iter()
        .map(|name| {
            let post = served.board.open_post("ours", name, UnixNanos(1));
            let mut state = running("ours", name, 1);
            if name.ends_with("0519") {
                state.phase = GroupPhase::Stopping;
            }
            post.replace_state(state);
            post
        })
        .collect();
    let state = served.state("/state").await;
    let groups = state["groups"].as_array().unwrap();
    assert_eq!((groups.len(), &state["found"]), (view::ROWS, &json!(names.len())));
    assert_eq!(
        (&groups[0]["name"], &groups[view::ROWS - 1]["name"]),
        (&json!("js-0000"), &json!("js-0519"))
    );
    drop(posts);
}

#[tokio::test]
async fn a_group_is_shown_with_its_graph_workers_and_restarts() {
    let served = Served::leading().await;
    let post = served.board.open_post("ours", "js", UnixNanos(2_000_000));
    let at = |millis: i64| UnixNanos(1_000_000_000 + millis * 1_000_000);
    let cause = Cause {
        reason: Reason::WorkerExited,
        identity: Some(identity(1)),
        pod: "pod-1".into(),
        node: "n2".into(),
        exit: None,
        at: Some(at(0)),
        said: None,
    };
    let timeline = Timeline {
        generation: Generation(4),
        failed_at: at(0),
        detected_at: at(2),
        stopped_at: at(10),
        running_at: at(30),
        workers: 2,
        ..Timeline::default()
    };
    let announcement = Announcement::Restarted {
        scope: Scope::Group,
        timeline,
        cause,
        level: RestartLevel::Process,
    };
    post.record(&announcement, at(31));
    post.replace_state(running("ours", "js", 4));
    let state = served.state("/state/ours/js").await;
    let stage = &state["group"]["stages"][0];
    assert_eq!(
        (&stage["name"], &stage["jobsExpected"]),
        (&json!("w"), &json!(0)),
        "the stage is shown although the graph lacks it"
    );
    let workers = json!([
        {"index": 0, "container": "worker", "pod": "pod-0", "node": "n1", "phase": "Running", "generation": 4, "since": 0, "step": 12, "section": "load"},
        {"index": 1, "container": "worker", "pod": "", "node": "", "phase": "Pending", "generation": 0, "since": 0},
    ]);
    assert_eq!(stage["jobs"], json!([{"name": "js-w-0", "workers": workers}]));
    let restart = &state["restarts"]["last"][0];
    assert_eq!(
        (&restart["took"], &restart["outcome"], &restart["level"]),
        (&json!(30.0), &json!("Done"), &json!("Process"))
    );
    assert_eq!(
        restart["phases"][0],
        json!({"name": "detect", "from": 0.0, "took": 2.0})
    );
    assert_eq!(
        (&restart["begun"], &state["restarts"]["since"]),
        (&json!(1000), &json!(2))
    );

    let state = served.state("/state/ours/none").await;
    assert_eq!(
        (&state["group"], &state["restarts"]["last"]),
        (&json!(null), &json!([]))
    );
}

#[tokio::test]
async fn a_worker_says_how_it_was_started_and_what_waits() {
    let served = Served::leading().await;
    let post = served.board.open_post("ours", "js", UnixNanos(1));
    let mut state = running("ours", "js", 4);
    let mut observed = Observed::clone(&state.observed);
    for report in observed.reports.values_mut() {
        report.standby = Some(Arc::new(StandbyReport {
            starts: Some(Starts {
                standby: 1,
                cold: 0,
                ahead_ms: 1234,
            }),
            standbys: Some(Standbys {
                wanted: 4,
                ready: 2,
                reason: "memory is short".to_owned(),
                ..Standbys::default()
            }),
        }));
    }
    state.observed = Arc::new(observed);
    post.replace_state(state);
    let state = served.state("/state/ours/js").await;
    let workers = &state["group"]["stages"][0]["jobs"][0]["workers"];
    assert_eq!(
        (&workers[0]["started"], &workers[0]["standbys"]),
        (
            &json!("started from standby (1.2 s ahead)"),
            &json!("2 of 4 standbys ready: memory is short")
        )
    );
    assert_eq!(workers[1]["standbys"], json!(null));
}

#[tokio::test]
async fn the_graph_tells_what_each_replicated_job_waits_for() {
    let served = Served::leading().await;
    let post = served.board.open_post("ours", "js", UnixNanos(1));
    let job = |name: &str, depends_on: Value| {
        let template = json!({"spec": {"template": {"spec": {"containers": []}}}});
        json!({"name": name, "replicas": 2, "template": template, "dependsOn": depends_on})
    };
    let mut state = running("ours", "js", 4);
    let waits = json!([{"name": "driver", "status": "Ready"}]);
    let jobset = json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"namespace": "ours", "name": "js", "uid": "uid-js"},
        "spec": {"replicatedJobs": [job("driver", json!([])), job("w", waits)]},
    });
    state.jobset = Arc::new(serde_json::from_value(jobset).unwrap());
    post.replace_state(state);
    let state = served.state("/state/ours/js").await;
    let [driver, workers] = [0, 1].map(|place| state["group"]["stages"][place].clone());
    assert_eq!(
        (&driver["name"], &driver["dependsOn"], &driver["jobs"]),
        (&json!("driver"), &json!([]), &json!([]))
    );
    let depends_on = json!([{"stage": "driver", "until": "ready", "reached": false}]);
    assert_eq!(
        (&workers["dependsOn"], &workers["jobsExpected"]),
        (&depends_on, &json!(2))
    );
    assert_eq!(workers["jobs"][0]["workers"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_reader_gets_every_change_and_nothing_twice() {
    let served = Served::leading().await;
    let [ours, other] = ["js", "other"].map(|name| served.board.open_post("ours", name, UnixNanos(1)));
    ours.replace_state(running("ours", "js", 1));
    let mut list = served.events("/events").await;
    let mut one = served.events("/events/ours/js").await;
    assert_eq!(list.next().await.unwrap()["all"], 1);
    assert_eq!(one.next().await.unwrap()["group"]["generation"], 1);
    // The last of several quick changes is sent in the end, and an unchanged state is not sent
    // again.
    for generation in 2..=40 {
        ours.replace_state(running("ours", "js", generation));
        other.replace_state(running("ours", "other", 1));
    }
    let mut told = 0;
    loop {
        told += 1;
        if one.next().await.unwrap()["group"]["generation"] == 40 {
            break;
        }
    }
    assert!(told <= 2, "{told} states");
    loop {
        let state = list.next().await.unwrap();
        if state["all"] == 2 && state["groups"][0]["generation"] == 40 {
            break;
        }
    }
    ours.replace_state(running("ours", "js", 40));
    drop(other);
    assert_eq!(list.next().await.unwrap()["all"], 1);
    drop(ours);
    assert_eq!(one.next().await.unwrap()["group"], Value::Null);
    assert_eq!(list.next().await.unwrap()["all"], 0);

    served.shutdown.cancel();
    assert_eq!((list.next().await, one.next().await), (None, None));
}

#[tokio::test]
async fn a_replica_that_does_not_lead_names_the_leader() {
    let served = Served::start().await;
    *served.leader.lock().unwrap() = Some("pod-b".into());
    let mut events = served.events("/events").await;
    let state = events.next().await.unwrap();
    assert_eq!(
        (&state["leads"], &state["leader"]),
        (&json!(false), &json!("pod-b"))
    );
    served.board.set_leading();
    assert_eq!(events.next().await.unwrap()["leads"], true);
}

#[tokio::test]
async fn pages_of_other_sites_read_nothing() {
    let served = Served::leading().await;
    for host in [
        "localhost:8082",
        "LOCALHOST",
        "127.0.0.1:1",
        "[::1]:8082",
        "127.9.9.9",
    ] {
        assert_eq!(served.status("/state", &[("host", host)]).await, 200, "{host}");
    }
    for host in [
        "evil.example:8082",
        "localhost.evil.example",
        "10.0.0.1:8082",
        "",
        "a@localhost",
        "127.0.0.1.evil.example",
    ] {
        assert_eq!(served.status("/state", &[("host", host)]).await, 421, "{host:?}");
    }
    assert_eq!(served.status("http://evil.example/state", &[]).await, 421);
    for (site, status) in [
        ("same-origin", 200),
        ("none", 200),
        ("same-site", 403),
        ("cross-site", 403),
    ] {
        assert_eq!(
            served.status("/events", &[("sec-fetch-site", site)]).await,
            status,
            "{site}"
        );
    }
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(
        (
            served.status("/", &link).await,
            served.status("/state", &link).await
        ),
        (200, 403)
    );
}

#[tokio::test]
async fn nothing_can_be_done_and_nothing_else_is_run() {
    let served = Served::leading().await;
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
        for path in ["/", "/state", "/state/ours/js", "/events"] {
            let status = served.ask(method, path, &[]).await.status();
            assert_eq!(status, 405, "{method} {path}");
        }
    }
    for (path, kind, _) in FILES {
        let answer = served.ask("HEAD", path, &[]).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (200, &kind.parse().unwrap())
        );
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none';") && !policy.contains("unsafe"),
            "{policy}"
        );
    }
    for path in [
        "/favicon.ico",
        "/state/ours",
        "/state/a/b/c",
        "/files/page.js",
        "/../mod.rs",
    ] {
        assert_eq!(served.status(path, &[]).await, 404, "{path}");
    }
    for path in [
        "/state/Ours/js",
        "/state/ours/%2e%2e",
        "/state?search=%3C",
        "/events?name=js",
        "/state/ours/js%0a",
    ] {
        assert_eq!(served.status(path, &[]).await, 400, "{path}");
    }
}

#[tokio::test]
async fn so_many_pages_are_open_at_once_and_those_that_close_make_room() {
    let served = Served::leading().await;
    let mut open = Vec::new();
    for _ in 0..MAX_READERS {
        open.push(served.events("/events").await);
    }
    assert_eq!(served.status("/events", &[]).await, 503);
    // A browser does not see the HTTP status: an event tells it, and the stream ends.
    let told = served.text("/events", &[("accept", "text/event-stream")]).await;
    assert_eq!(
        told,
        "event: full\ndata: 64 pages are already open, which is the limit\n\n"
    );
    assert_eq!(served.status("/state", &[]).await, 200);
    open.pop();
    let again = async {
        while served.status("/events", &[]).await != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
}

#[test]
fn the_page_fetches_and_runs_nothing_from_elsewhere() {
    for (path, _, text) in FILES {
        let foreign = [
            "http:",
            "https:",
            "//cdn",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "style=",
            "onclick=",
        ];
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for part in foreign {
            assert!(!text.contains(part), "{part} in {path}");
        }
    }
}
