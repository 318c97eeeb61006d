//! An API server with some pods and nodes that remembers its requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Clones share the same server.
#[derive(Clone, Default)]
pub(super) struct Api {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Value>,
    nodes: BTreeMap<String, Value>,
    requests: Vec<String>,
    bodies: Vec<Value>,
    /// The number of deletions that will still fail.
    failures: u32,
}

impl Api {
    pub(super) fn node(self, name: &str, labels: Value) -> Self {
        self.state.lock().unwrap().nodes.insert(name.to_owned(), labels);
        self
    }

    pub(super) fn pod(self, pod: Value) -> Self {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        self.state.lock().unwrap().pods.insert(name, pod);
        self
    }

    pub(super) fn failing(self, deletions: u32) -> Self {
        self.state.lock().unwrap().failures = deletions;
        self
    }

    pub(super) fn client(&self) -> Client {
        let state = Arc::clone(&self.state);
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = Arc::clone(&state);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let (code, answer) = state.lock().unwrap().answer(&head, &body);
                let body = serde_json::to_vec(&answer).unwrap();
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body)).unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// The method, path and label selector of each request so far.
    pub(super) fn requests(&self) -> Vec<String> {
        self.state.lock().unwrap().requests.clone()
    }

    /// The bodies of the writes so far.
    pub(super) fn bodies(&self) -> Vec<Value> {
        self.state.lock().unwrap().bodies.clone()
    }
}

impl State {
    fn answer(&mut self, head: &http::request::Parts, body: &[u8]) -> (u16, Value) {
        let path = head.uri.path();
        let query = head.uri.query().unwrap_or_default();
        let selector = query
            .split('&')
            .find_map(|part| part.strip_prefix("labelSelector="))
            .map(decoded)
            .unwrap_or_default();
        self.requests
            .push(format!("{} {path} {selector}", head.method).trim_end().to_owned());
        if head.method != Method::GET {
            self.bodies.push(serde_json::from_slice(body).unwrap());
        }
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match (&head.method, segments.as_slice()) {
            (&Method::GET, ["api", "v1", "nodes", name]) => match self.nodes.get(*name) {
                Some(labels) => (200, json!({"metadata": {"name": name, "labels": labels}})),
                None => not_found(),
            },
            (&Method::GET, [.., "pods"]) => {
                let chosen = self.pods.values().filter(|pod| {
                    selector.split(',').all(|term| {
                        let (key, value) = term.split_once('=').unwrap();
                        pod["metadata"]["labels"][key] == value
                    })
                });
                (200, json!({"metadata": {}, "items": chosen.collect::<Vec<_>>()}))
            }
            (&Method::PATCH, [.., "pods", name, "status"]) => match self.pods.get(*name) {
                Some(pod) => (200, pod.clone()),
                None => not_found(),
            },
            (&Method::DELETE, [.., "pods", _]) if self.failures > 0 => {
                self.failures -= 1;
                (500, status(500, "InternalError"))
            }
            (&Method::DELETE, [.., "pods", name]) => match self.pods.remove(*name) {
                Some(pod) => (200, pod),
                None => not_found(),
            },
            _ => (405, status(405, "MethodNotAllowed")),
        }
    }
}

fn not_found() -> (u16, Value) {
    (404, status(404, "NotFound"))
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "reason": reason, "code": code})
}

/// Decodes a query with the few characters of a label selector.
fn decoded(text: &str) -> String {
    text.replace("%2F", "/").replace("%3D", "=").replace("%2C", ",")
}
