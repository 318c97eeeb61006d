//! A stub of all dashboards, which the control plane reaches as through an HTTP proxy. Hosts
//! distinguish them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

/// The session of a dashboard that does not serve versions, which KubeRay never asks for.
pub(crate) const NO_SESSION: &str = "";

/// One run of Ray, and the requests to it.
#[derive(Clone, Default)]
pub(crate) struct Head {
    /// A new session is a new run. With `None` the dashboard does not answer.
    pub(crate) session: Option<String>,
    /// How often a client has asked for its session.
    pub(crate) asked: usize,
    /// If set, it refuses all submissions with this code and text.
    pub(crate) refuses: Option<(u16, &'static str)>,
    /// Status by id.
    pub(crate) jobs: BTreeMap<String, String>,
    /// Bodies of submissions over HTTP.
    pub(crate) submitted: Vec<Value>,
    pub(crate) stopped: Vec<String>,
}

/// By host and port.
static HEADS: LazyLock<Mutex<BTreeMap<String, Head>>> = LazyLock::new(Mutex::default);

/// Reads or changes one head.
pub(crate) fn with<T>(host: &str, act: impl FnOnce(&mut Head) -> T) -> T {
    let mut heads = HEADS.lock().unwrap_or_else(PoisonError::into_inner);
    act(heads.entry(host.to_owned()).or_default())
}

/// Serves all dashboards on a thread of its own, until the tests end.
pub(crate) fn start() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let router = Router::new()
                .route("/api/version", get(version))
                .route("/api/jobs/", post(submit))
                .route("/api/jobs/{id}", get(job))
                .route("/api/jobs/{id}/stop", post(stop));
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        })
    });
    Ok(address)
}

/// The answer of a head, unless the head does not answer.
fn answer(headers: &HeaderMap, act: impl FnOnce(&mut Head) -> Response) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    with(host, |head| match head.session {
        Some(_) => act(head),
        None => StatusCode::BAD_GATEWAY.into_response(),
    })
}

fn json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

async fn version(headers: HeaderMap) -> Response {
    answer(&headers, |head| {
        head.asked += 1;
        match head.session.as_deref() {
            Some(NO_SESSION) => StatusCode::NOT_FOUND.into_response(),
            session => json(&json!({"version": "4", "session_name": session})),
        }
    })
}

async fn job(Path(id): Path<String>, headers: HeaderMap) -> Response {
    answer(&headers, |head| match head.jobs.get(&id) {
        Some(status) => json(&json!({
            "submission_id": id, "status": status, "message": format!("it is {status}"), "start_time": 1_700_000_000_000_i64,
        })),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

async fn submit(headers: HeaderMap, body: Bytes) -> Response {
    answer(&headers, |head| {
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let id = body["submission_id"].as_str().unwrap_or_default().to_owned();
        head.submitted.push(body);
        if let Some((code, text)) = head.refuses {
            let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return (code, text).into_response();
        }
        if head.jobs.contains_key(&id) {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        head.jobs.insert(id.clone(), "PENDING".to_owned());
        json(&json!({"submission_id": id}))
    })
}

async fn stop(Path(id): Path<String>, headers: HeaderMap) -> Response {
    answer(&headers, |head| {
        head.stopped.push(id.clone());
        head.jobs.insert(id, "STOPPED".to_owned());
        json(&json!({"stopped": true}))
    })
}
