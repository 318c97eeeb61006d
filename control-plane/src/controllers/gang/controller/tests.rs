use std::sync::Mutex;

use axum::body::Body;
use axum::http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use lockstep_api::{Gang, GangPhase, GangStatus, JobSetStatus};
use lockstep_core::gang::{GroupPolicy, PodGroupRef, PodRef, Write};
use serde_json::{Value, json};
use tower::service_fn;

use super::view::{NO_ROOM, REPEAT, object};
use super::*;
use crate::k8s::watch::namespace_budget::Budget;

/// The method and path of a request to an API server.
type Asked = Arc<Mutex<Vec<(Method, String)>>>;
/// The reason and note of each event, and how long after the start.
type Published = Arc<Mutex<Vec<(Duration, String, String)>>>;

/// A controller, and the API server that it writes to.
struct Scene {
    writer: Writer,
    view: View,
    asked: Asked,
    published: Published,
    start: Instant,
}

/// `ns/js`, with a gang `w` in this phase.
fn jobset(phase: GangPhase) -> JobSet {
    let mut jobset = JobSet::default();
    jobset.metadata.name = Some("js".to_owned());
    jobset.metadata.namespace = Some("ns".to_owned());
    jobset.metadata.uid = Some("u".to_owned());
    jobset.metadata.resource_version = Some("1".to_owned());
    jobset.spec.gang = Some(Gang::default());
    jobset.status = Some(JobSetStatus {
        gangs: vec![gang(phase, None)],
        ..JobSetStatus::default()
    });
    jobset
}

fn gang(phase: GangPhase, message: Option<&str>) -> GangStatus {
    GangStatus {
        name: "w".to_owned(),
        phase,
        message: message.map(str::to_owned),
        ..GangStatus::default()
    }
}

fn refused(code: u16, message: &str) -> (u16, Value) {
    let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "No", "message": message});
    (code, refused)
}

impl Scene {
    /// `answer` gets a method, a path, and the number of earlier requests, and returns the API
    /// server's answer. Without one the request succeeds.
    fn new(
        jobset: &JobSet,
        answer: impl Fn(&Method, &str, usize) -> Option<(u16, Value)> + Send + Sync + 'static,
    ) -> Self {
        let start = Instant::now();
        let (asked, published) = (Asked::default(), Published::default());
        let (all, events) = (Arc::clone(&asked), Arc::clone(&published));
        let answer = Arc::new(answer);
        let there = serde_json::to_value(jobset).unwrap();
        let service = service_fn(move |request: Request<kube::client::Body>| {
            let (all, events, answer, there) = (
                Arc::clone(&all),
                Arc::clone(&events),
                Arc::clone(&answer),
                there.clone(),
            );
            async move {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let body = request.into_body().collect().await?.to_bytes();
                let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
                let (code, body) = if path.ends_with("/events") {
                    let word = |field: &str| sent[field].as_str().unwrap_or_default().to_owned();
                    let event = (start.elapsed(), word("reason"), word("note"));
                    events.lock().unwrap().push(event);
                    (201, sent)
                } else {
                    let before = all.lock().unwrap().len();
                    let answered = answer(&method, &path, before);
                    let well = if path.contains("/jobsets/") { there } else { sent };
                    all.lock().unwrap().push((method, path));
                    answered.unwrap_or((200, well))
                };
                let response = Response::builder()
                    .status(code)
                    .body(Body::from(body.to_string()));
                Ok::<_, tower::BoxError>(response?)
            }
        });
        let stores = Stores::showing(jobset);
        let controller = Controller::new(
            Client::new(service, "default"),
            stores,
            PodGroups::unknown(),
            Arc::new(Metrics::default()),
        );
        let Controller {
            writer,
            mut view,
            publisher,
        } = controller;
        tokio::spawn(publisher.run());
        view.refresh(&ObjectRef::from_obj(jobset));
        Self {
            writer,
            view,
            asked,
            published,
            start,
        }
    }

    async fn act(&mut self, decision: Decision) {
        carry_out_all(&self.writer, &mut self.view, vec![decision]).await;
    }

    /// Acts on the result of `decide` for this long, each time that something may be tried again.
    async fn act_for(&mut self, lasts: Duration, decide: impl Fn(u32) -> Decision) {
        for number in 0.. {
            self.act(decide(number)).await;
            if self.start.elapsed() >= lasts {
                break;
            }
            let next = self.view.write_failures.next().unwrap_or(REPEAT);
            sleep(next).await;
        }
        // All events are published, because time stands still while anything can be done.
        sleep(Duration::from_millis(1)).await;
    }

    /// How many requests had a path with this end.
    fn asked(&self, method: &Method, end: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        let same = asked
            .iter()
            .filter(|(how, path)| how == method && path.ends_with(end));
        same.count()
    }

    fn published(&self) -> Vec<(Duration, String, String)> {
        self.published.lock().unwrap().clone()
    }
}

fn decision() -> Decision {
    Decision {
        namespace: "ns".to_owned(),
        name: "js".to_owned(),
        uid: "u".to_owned(),
        ..Decision::default()
    }
}

fn asks_for(policy: GroupPolicy) -> Decision {
    let group = PodGroupRef {
        name: "group".to_owned(),
        policy,
        priority_class: None,
        exact: matches!(policy, GroupPolicy::Gang(_)),
    };
    Decision {
        pod_groups: vec![group],
        ..decision()
    }
}

fn writes(phase: GangPhase, message: &str, urgent: bool) -> Decision {
    let write = Write {
        gangs: vec![gang(phase, Some(message))],
        urgent,
        announcements: Vec::new(),
    };
    Decision {
        write: Some(write),
        ..decision()
    }
}

/// A foreign PodGroup has the same name.
fn foreign(method: &Method, path: &str) -> Option<(u16, Value)> {
    let exists = "podgroups \"group\" already exists";
    match (method, path.rsplit('/').next()?) {
        (&Method::POST, "podgroups") => Some(refused(409, exists)),
        (&Method::GET, "group") => Some((
            200,
            json!({"metadata": {"name": "group"}, "spec": {"schedulingPolicy": {"basic": {}}}}),
        )),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_pod_group_is_reported_once_and_after_a_while() {
    let mut scene = Scene::new(&jobset(GangPhase::Waiting), |method, path, _| {
        foreign(method, path)
    });
    let lasts = Duration::from_secs(20 * 60);
    scene.act_for(lasts, |_| asks_for(GroupPolicy::Gang(2))).await;
    let published = scene.published();
    let [(at, reason, note)] = &published[..] else {
        panic!("{published:?}")
    };
    assert!((10..60).contains(&at.as_secs()), "{at:?}");
    assert_eq!(reason, "GangNotStarted");
    assert_eq!(note, "PodGroup ns/group: podgroups \"group\" already exists");
    assert_eq!(scene.asked(&Method::DELETE, "group"), 0);
}

/// The used amount changes with each answer, and in between the gang waits behind another.
#[tokio::test(start_paused = true)]
async fn a_quota_is_reported_once_even_if_its_text_changes_and_messages_are_written() {
    let mut scene = Scene::new(&jobset(GangPhase::Waiting), |method, path, before| {
        let is_made = method == Method::POST && path.ends_with("podgroups");
        is_made.then(|| refused(403, &format!("exceeded quota: used {before}")))
    });
    let lasts = Duration::from_secs(20 * 60);
    let decide = |number| match number % 2 {
        0 => asks_for(GroupPolicy::Gang(2)),
        _ => writes(GangPhase::Waiting, &format!("behind {number}"), false),
    };
    scene.act_for(lasts, decide).await;
    let published = scene.published();
    let [(at, reason, note)] = &published[..] else {
        panic!("{published:?}")
    };
    assert!((10..60).contains(&at.as_secs()), "{at:?}");
    assert_eq!(reason, "GangNotStarted");
    assert!(
        note.starts_with("PodGroup ns/group: exceeded quota: used "),
        "{note}"
    );
    assert!(
        scene.asked(&Method::PATCH, "/status") > 10,
        "messages are written"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_group_that_can_be_created_after_a_while_is_not_reported() {
    let mut scene = Scene::new(&jobset(GangPhase::Waiting), |method, path, before| {
        let is_made = method == Method::POST && path.ends_with("podgroups");
        (is_made && before < 10).then(|| refused(500, "restarting"))
    });
    let lasts = Duration::from_secs(60);
    scene.act_for(lasts, |_| asks_for(GroupPolicy::Gang(2))).await;
    assert_eq!(scene.published(), []);
    assert_eq!(scene.view.write_failures.next(), None);
    let made = scene.asked(&Method::POST, "podgroups");
    assert!((4..8).contains(&made), "it is created once: {made}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_a_running_gang_is_not_reported_as_not_started() {
    let no = |method: &Method, _: &str, _| (method != Method::GET).then(|| refused(403, "no"));
    let mut scene = Scene::new(&jobset(GangPhase::Scheduled), no);
    let optional = PodRef {
        name: "js-w-0-2".to_owned(),
        uid: "pod".to_owned(),
    };
    let decision = Decision {
        ungate: vec![vec![optional]],
        ..asks_for(GroupPolicy::Basic)
    };
    let lasts = Duration::from_secs(60);
    scene.act_for(lasts, |_| decision.clone()).await;
    let bound = writes(GangPhase::Scheduled, "", true);
    let mut starting = Scene::new(&jobset(GangPhase::Scheduling), no);
    starting.act_for(lasts, |_| bound.clone()).await;
    let published = [scene.published(), starting.published()].concat();
    let published = published
        .iter()
        .map(|(_, reason, note)| format!("{reason}: {note}"));
    let mut published: Vec<String> = published.collect();
    published.sort_unstable();
    assert_eq!(
        published,
        [
            "GangNotUpdated: PodGroup ns/group: no",
            "GangNotUpdated: gate of pod ns/js-w-0-2: no",
            "GangNotUpdated: status of JobSet ns/js: no",
        ]
    );
}

/// The reconciler writes the same status at that moment.
#[tokio::test(start_paused = true)]
async fn a_message_is_written_at_once_again_after_a_conflict() {
    let mut scene = Scene::new(&jobset(GangPhase::Waiting), |method, _, before| {
        (method == Method::PATCH && before == 0).then(|| refused(409, "conflict"))
    });
    for expected in [1, 2, 2, 2] {
        scene.act(writes(GangPhase::Waiting, "short", false)).await;
        assert_eq!(scene.asked(&Method::PATCH, "/status"), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_of_another_write_does_not_advance_a_message() {
    let mut scene = Scene::new(&jobset(GangPhase::Waiting), |method, _, before| {
        (method == Method::PATCH && before == 1).then(|| refused(409, "conflict"))
    });
    scene.act(writes(GangPhase::Waiting, "short", false)).await;
    scene.act(writes(GangPhase::Scheduling, "urgent", true)).await;
    scene.act(writes(GangPhase::Waiting, "shorter", false)).await;
    assert_eq!(scene.asked(&Method::PATCH, "/status"), 2);
    tokio::time::advance(REPEAT).await;
    scene.act(writes(GangPhase::Waiting, "shorter", false)).await;
    assert_eq!(scene.asked(&Method::PATCH, "/status"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_jobset_without_room_waits_for_room_and_is_reported_once() {
    let mut large = jobset(GangPhase::Waiting);
    let job =
        json!([{"name": "w", "replicas": 1, "template": {"spec": {"parallelism": 32_000, "template": {}}}}]);
    large.spec.replicated_jobs = serde_json::from_value(job).unwrap();
    let mut scene = Scene::new(&large, |_, _, _| None);
    let view = &mut scene.view;
    let key = ("ns".to_owned(), "js".to_owned());
    view.jobsets.clear();
    view.room = Budget::new(2_500, 10_000);
    let (object, others) = (object(&key), 2_000);
    assert!(view.room.takes("ns", None, others));
    view.refresh(&object);
    view.refresh(&object);
    assert!(view.jobsets.is_empty());
    let published: Vec<_> = view.events.drain(..).map(|(_, event)| event.reason).collect();
    assert_eq!(published, ["NoRoom"]);
    tokio::time::advance(NO_ROOM).await;
    assert!(view.look_again().is_some() && view.jobsets.is_empty());
    view.room.release("ns", others);
    tokio::time::advance(NO_ROOM).await;
    view.look_again();
    assert!(view.jobsets.contains_key(&key) && view.without_room.is_empty());
    // A later call does not take it away.
    assert!(view.room.takes("ns", None, 450));
    view.refresh(&object);
    assert!(view.jobsets.contains_key(&key));
}
