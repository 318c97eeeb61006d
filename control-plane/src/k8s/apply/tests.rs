use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::Resource;
use lockstep_api::labels::REPLICATED_JOB_NAME;
use lockstep_core::jobset::plan::{Change, JobChange, JobRef, Resume};
use serde_json::{Value, json};
use tower::service_fn;

use super::refused_templates::Order;
use super::*;

const QUOTA: &str = "services \"js\" is forbidden: exceeded quota: q, requested: services=1, used: services=1, limited: services=1";

/// The API server's answer to a method on a path, or on paths that end like this.
type Answer = (Method, &'static str, u16, Value);

fn status(code: u16, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message,
        "reason": if code == 409 { "AlreadyExists" } else { "Forbidden" },
    })
}

fn object(kind: &str, name: &str) -> Value {
    json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name, "namespace": "ns"}})
}

/// An API server with these answers that accepts every event. Also returns the notes of the events.
fn api_server(answers: Vec<Answer>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let notes: Arc<Mutex<Vec<String>>> = Arc::default();
    let (answers, told) = (Arc::new(answers), Arc::clone(&notes));
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let (answers, told) = (Arc::clone(&answers), Arc::clone(&told));
        async move {
            let (parts, body) = request.into_parts();
            let (code, answer) = if parts.uri.path().ends_with("/events") {
                let body = body.collect().await.unwrap().to_bytes();
                let event: Value = serde_json::from_slice(&body).unwrap();
                told.lock()
                    .unwrap()
                    .push(event["note"].as_str().unwrap_or_default().to_owned());
                (201, event)
            } else {
                answers
                    .iter()
                    .find(|(method, path, ..)| *method == parts.method && parts.uri.path().ends_with(path))
                    .map_or((404, status(404, "not found")), |(_, _, code, answer)| {
                        (*code, answer.clone())
                    })
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    (Client::new(service, "default"), notes)
}

fn jobset() -> JobSet {
    let mut jobset = JobSet::default();
    jobset.metadata.name = Some("js".to_owned());
    jobset.metadata.namespace = Some("ns".to_owned());
    jobset.metadata.uid = Some("u".to_owned());
    jobset
}

fn named<K: Resource + Default>(name: &str) -> K {
    let mut object = K::default();
    object.meta_mut().name = Some(name.to_owned());
    object
}

fn with_service() -> Plan {
    Plan {
        create_service: Some(Box::new(named::<Service>("js"))),
        ..Plan::default()
    }
}

fn with_claim() -> Plan {
    Plan {
        create_claims: vec![named::<PersistentVolumeClaim>("data-js")],
        ..Plan::default()
    }
}

fn with_jobs() -> Plan {
    Plan {
        create_jobs: vec![named::<Job>("js-a-0")],
        ..Plan::default()
    }
}

/// The result of a plan, and the notes of the events about it.
async fn carried_out(mut plan: Plan, answers: Vec<Answer>) -> (Result<(), ApplyError>, Vec<String>) {
    let (client, notes) = api_server(answers);
    let (applier, publisher) = Applier::new(client, Stores::empty(), Arc::default());
    let new_jobs = std::mem::take(&mut plan.create_jobs);
    let new_jobs = new_jobs.iter().map(NewJob::of).collect();
    let result = applier.apply(&jobset(), plan, new_jobs).await;
    drop(applier);
    publisher.run().await;
    let notes = notes.lock().unwrap().clone();
    (result, notes)
}

#[tokio::test]
async fn events_carry_only_the_message_of_the_api_server() {
    let exists = "jobs.batch \"js-a-0\" already exists";
    let foreign = object("Job", "js-a-0");
    let (result, notes) = carried_out(
        with_jobs(),
        vec![
            (Method::POST, "/jobs", 409, status(409, exists)),
            (Method::GET, "/jobs/js-a-0", 200, foreign),
        ],
    )
    .await;
    let expected = format!("job \"js-a-0\" creation failed with error: {exists}");
    assert_eq!(notes, [expected.as_str()]);
    assert_eq!(result.unwrap_err().to_string(), expected);

    let refused = vec![(Method::POST, "/services", 403, status(403, QUOTA))];
    let (result, notes) = carried_out(with_service(), refused).await;
    assert_eq!(notes, [QUOTA]);
    assert_eq!(
        result.unwrap_err().to_string(),
        format!("headless service \"js\" creation failed with error: {QUOTA}")
    );

    let path = "/persistentvolumeclaims";
    let refused = vec![(Method::POST, path, 403, status(403, "no"))];
    let (result, notes) = carried_out(with_claim(), refused).await;
    assert_eq!(notes, ["no"]);
    assert!(
        matches!(result, Err(ApplyError::CreateClaim { .. })),
        "{result:?}"
    );
}

#[tokio::test]
async fn existing_objects_are_accepted_even_if_the_quota_is_exhausted() {
    for code in [403, 409] {
        let there = vec![
            (Method::POST, "/services", code, status(code, QUOTA)),
            (Method::GET, "/services/js", 200, object("Service", "js")),
        ];
        let (result, notes) = carried_out(with_service(), there).await;
        assert!(result.is_ok(), "{code}: {result:?}");
        assert_eq!(notes, [""; 0]);

        let claim = object("PersistentVolumeClaim", "data-js");
        let there = vec![
            (
                Method::POST,
                "/persistentvolumeclaims",
                code,
                status(code, "exceeded quota"),
            ),
            (Method::GET, "/persistentvolumeclaims/data-js", 200, claim),
        ];
        let (result, notes) = carried_out(with_claim(), there).await;
        assert!(result.is_ok(), "{code}: {result:?}");
        assert_eq!(notes, [""; 0]);
    }
}

#[tokio::test]
async fn a_namespace_with_thousands_of_jobs_to_create_holds_up_no_other() {
    let at_work: Arc<Mutex<usize>> = Arc::default();
    let seen = Arc::clone(&at_work);
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let seen = Arc::clone(&seen);
        async move {
            if request.uri().path().contains("/namespaces/loud/") {
                *seen.lock().unwrap() += 1;
                std::future::pending::<()>().await;
            }
            let created = object("Job", "js-a-0").to_string();
            Ok::<_, Infallible>(Response::builder().status(201).body(Body::from(created)).unwrap())
        }
    });
    let (applier, _publisher) =
        Applier::new(Client::new(service, "default"), Stores::empty(), Arc::default());
    let create = |namespace: &str, jobs: usize| {
        let mut jobset = jobset();
        jobset.metadata.namespace = Some(namespace.to_owned());
        let jobs = (0..jobs).map(|number| NewJob::of(&named(&format!("js-a-{number}"))));
        let (jobs, applier): (Vec<NewJob>, _) = (jobs.collect(), &applier);
        async move { applier.apply(&jobset, Plan::default(), jobs).await }
    };
    // Each is a JobSet.
    let loud = futures::future::join_all((0..8).map(|_| create("loud", 500)));
    let quiet = async {
        while *at_work.lock().unwrap() < OF_ONE as usize {
            tokio::task::yield_now().await;
        }
        create("quiet", 500).await
    };
    let limit = tokio::time::sleep(Duration::from_secs(60));
    tokio::select! {
        created = quiet => created.unwrap(),
        _ = loud => panic!("the API server never answers"),
        () = limit => panic!("it waits for Jobs of another namespace"),
    }
    assert_eq!(*at_work.lock().unwrap(), OF_ONE as usize);
}

#[tokio::test]
async fn once_a_job_is_refused_others_of_its_template_wait_for_one_that_is_accepted() {
    let sent: Arc<Mutex<Vec<String>>> = Arc::default();
    let refuses = Arc::new(Mutex::new(true));
    let (seen, refusing) = (Arc::clone(&sent), Arc::clone(&refuses));
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let (seen, refusing) = (Arc::clone(&seen), Arc::clone(&refusing));
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let object: Value = serde_json::from_slice(&body).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let is_refused = name.starts_with("bad") && *refusing.lock().unwrap();
            seen.lock().unwrap().push(name);
            let (code, answer) = match is_refused {
                true => (422, status(422, "invalid")),
                false => (201, object),
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    let client = Client::new(service, "default");
    let (applier, _publisher) = Applier::new(client, Stores::empty(), Arc::default());
    let jobset = jobset();
    let key = ObjectRef::from_obj(&jobset);
    let jobs = || {
        let job = |part: &str, index: usize| {
            let mut job: Job = named(&format!("{part}-{index:02}"));
            job.metadata.namespace = Some("ns".to_owned());
            let label = (REPLICATED_JOB_NAME.to_owned(), part.to_owned());
            job.metadata.labels = Some([label].into());
            NewJob::of(&job)
        };
        (0..40)
            .flat_map(|index| [job("bad", index), job("good", index)])
            .collect()
    };
    let create = async || {
        sent.lock().unwrap().clear();
        let created = applier.create_jobs(&jobset, &key, jobs()).await;
        let sent = sent.lock().unwrap();
        let bad = sent.iter().filter(|name| name.starts_with("bad")).count();
        (created.map_err(|error| error.to_string()), bad, sent.len() - bad)
    };
    let (created, bad, good) = create().await;
    assert!(bad <= OF_ONE as usize && good == 40, "{bad} {good}");
    assert!(created.unwrap_err().ends_with("\nand other jobs were not tried"));

    let (created, bad, good) = create().await;
    assert_eq!((bad, good), (1, 40));
    let text = created.unwrap_err();
    assert!(text.starts_with("job \"bad-"), "{text}");
    assert!(text.ends_with("invalid\nand other jobs were not tried"), "{text}");

    *refuses.lock().unwrap() = false;
    assert_eq!(create().await, (Ok(()), 40, 40));
    assert_eq!(create().await, (Ok(()), 40, 40));
}

#[tokio::test]
async fn once_a_job_is_not_resumed_others_of_its_template_wait_for_the_next_try() {
    let sent: Arc<Mutex<Vec<String>>> = Arc::default();
    let refusing = Arc::new(AtomicBool::new(true));
    let (seen, refuses) = (Arc::clone(&sent), Arc::clone(&refusing));
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let name = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let (code, answer) = match name.starts_with("bad") && refuses.load(Ordering::Relaxed) {
            true => (422, status(422, "invalid")),
            false => (200, object("Job", &name)),
        };
        seen.lock().unwrap().push(name);
        let response = Response::builder()
            .status(code)
            .body(Body::from(answer.to_string()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    let client = Client::new(service, "default");
    let (applier, _publisher) = Applier::new(client, Stores::empty(), Arc::default());
    let change = |name: String, change: Change| JobChange {
        job: JobRef {
            name,
            uid: String::new(),
        },
        change,
    };
    let resume = |part: &str, index: usize| {
        let resume = Resume {
            replicated_job: part.to_owned(),
            ..Resume::default()
        };
        change(format!("{part}-{index:02}"), Change::Resume(Box::new(resume)))
    };
    let plan = || {
        let resumed = (0..40).flat_map(|index| [resume("bad", index), resume("good", index)]);
        let suspended = change("running".to_owned(), Change::Suspend);
        Plan {
            change_jobs: resumed.chain([suspended]).collect(),
            ..Plan::default()
        }
    };
    for (refuses, bad) in [(true, 1..=OF_ONE as usize), (true, 1..=1), (false, 40..=40)] {
        refusing.store(refuses, Ordering::Relaxed);
        let resumed = applier.apply(&jobset(), plan(), Vec::new()).await;
        let sent = std::mem::take(&mut *sent.lock().unwrap());
        let of = |part: &str| sent.iter().filter(|name| name.starts_with(part)).count();
        assert!(bad.contains(&of("bad")) && of("good") == 40, "{sent:?}");
        assert_eq!(sent[0], "running", "it is suspended first");
        match resumed {
            Ok(()) => assert!(!refuses),
            Err(error) => assert!(error.to_string().contains("job bad-"), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_created_keeps_no_other_from_being_suspended() {
    let patched = (Method::PATCH, "/running", 200, object("Job", "running"));
    let (client, _) = api_server(vec![
        patched,
        (Method::POST, "/jobs", 422, status(422, "invalid")),
    ]);
    let (applier, _publisher) = Applier::new(client, Stores::empty(), Arc::default());
    let suspended = JobChange {
        job: JobRef {
            name: "running".to_owned(),
            uid: String::new(),
        },
        change: Change::Suspend,
    };
    let plan = Plan {
        change_jobs: vec![suspended],
        ..Plan::default()
    };
    let job: Job = named("bad");
    let applied = applier.apply(&jobset(), plan, vec![NewJob::of(&job)]).await;
    assert!(applied.unwrap_err().to_string().contains("invalid"));
    let metrics = applier.metrics.encode().unwrap();
    let suspended = "lockstep_api_writes_total{kind=\"Job\",verb=\"suspend\"} 1";
    assert!(metrics.contains(suspended), "{metrics}");
}

#[test]
fn a_try_ends_with_some_refusals_and_the_next_begins_with_others() {
    let refused = RefusedTemplates::default();
    let key = ObjectRef::new("js").within("ns");
    let invalid = kube::Error::Api(serde_json::from_value(status(422, "no")).unwrap());
    let job = |part: usize| {
        let mut job: Job = named(&format!("js-w{part}-0"));
        job.metadata.labels = Some([(REPLICATED_JOB_NAME.to_owned(), format!("w{part}"))].into());
        NewJob::of(&job)
    };
    let mut tried = Vec::new();
    for _ in 0..2 {
        let refusals = refused.begin(&key);
        let Order { first, then } = refusals.order::<NewJob>((0..100).map(job).collect());
        for (job, is_probe) in first.into_iter().chain(then) {
            if !refusals.skips(&job.replicated_job, is_probe) {
                refusals.failed(&job.name, &job.replicated_job, &invalid);
                tried.push(job.replicated_job);
            }
        }
        refused.end(&key, &refusals);
    }
    let expected: Vec<String> = (0..32).map(|part| format!("w{part}")).collect();
    assert_eq!(tried, expected);
}

#[test]
fn the_first_and_the_last_job_are_probes_in_turn() {
    let refused = RefusedTemplates::default();
    let key = ObjectRef::new("js").within("ns");
    let error = |code| kube::Error::Api(serde_json::from_value(status(code, "no")).unwrap());
    let job = |index: usize| {
        let mut job: Job = named(&format!("w-{index}"));
        job.metadata.labels = Some([(REPLICATED_JOB_NAME.to_owned(), "w".to_owned())].into());
        NewJob::of(&job)
    };
    let mut probed = Vec::new();
    for (refusal, code) in [
        ("w-1", 422),
        ("w-0", 403),
        ("w-1", 500),
        ("w-2", 413),
        ("w-0", 409),
    ] {
        let refusals = refused.begin(&key);
        let order = refusals.order::<NewJob>((0..3).map(job).collect());
        let probes = order.first.iter().filter(|(_, is_probe)| *is_probe);
        probed.push(probes.map(|(job, _)| job.name.clone()).collect::<Vec<_>>());
        refusals.failed(refusal, "w", &error(code));
        refused.end(&key, &refusals);
    }
    // Refusals that concern one Job, or pass, leave it as it was.
    assert_eq!(
        probed,
        [vec![], vec!["w-0"], vec!["w-2"], vec!["w-2"], vec!["w-0"]]
    );
}
