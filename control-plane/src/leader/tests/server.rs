//! An API server with one Lease, and replicas that campaign for it.

use http::Method;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::*;

/// A lease of 15 s, renewed every 2 s.
pub(super) const DURATION: Duration = Duration::from_secs(15);
pub(super) const RETRY: Duration = Duration::from_secs(2);
/// Several times the duration of a lease.
pub(super) const LONG: Duration = Duration::from_secs(120);
/// Shorter than the time to notice a silent holder.
const MOMENT: Duration = Duration::from_millis(100);
pub(super) const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// An API server with at most one Lease.
#[derive(Default)]
pub(super) struct Server {
    pub(super) lease: Option<Value>,
    pub(super) version: u64,
    /// When a reader last saw a change.
    pub(super) changed: Option<Instant>,
    /// By how much the clock of the last writer was ahead.
    pub(super) ahead: SignedDuration,
    /// How many of the next renewals and of the next reads fail.
    pub(super) refuses: u32,
    pub(super) hides: u32,
    /// The fault of these requests.
    pub(super) fault: Fault,
    /// The fault of requests that would record the leading process.
    pub(super) no_claims: Option<Fault>,
    /// How long each request takes.
    pub(super) slow: Duration,
    /// Another holder that takes the lease just before the next write.
    pub(super) quicker: Option<&'static str>,
    /// The number of requested writes, and of completed writes.
    pub(super) writes: u32,
}

/// What replaces an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Status(StatusCode),
    /// Without a body.
    Wordless(StatusCode),
    CutOff,
    Silence,
    /// The write is done, but not answered.
    Unheard,
    /// The write is done and answered a moment later, even if the client no longer waits.
    Late,
}

impl Default for Fault {
    fn default() -> Self {
        Self::Status(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

pub(super) type Shared = Arc<Mutex<Server>>;

impl Server {
    /// Sets the Lease to another holder that renews it now, by a clock that differs by this much.
    pub(super) fn hold(&mut self, holder: &str, differs: SignedDuration) {
        let now = (Timestamp::now() + differs).to_string();
        self.put(
            &json!({"spec": {"holderIdentity": holder, "acquireTime": now, "renewTime": now, "leaseDurationSeconds": 15}}),
        );
    }

    pub(super) fn put(&mut self, patch: &Value) {
        self.version += 1;
        let lease = self.lease.get_or_insert_with(|| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lease"}, "spec": {}})
        });
        let before = lease["spec"].clone();
        json_patch::merge(lease, patch);
        if lease["spec"] != before {
            self.changed = Some(Instant::now());
        }
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    pub(super) fn holder(&self) -> Option<String> {
        let holder = self.lease.as_ref()?["spec"]["holderIdentity"].as_str();
        holder.map(str::to_owned)
    }

    /// True if this request is one of those that fail.
    fn fails(&mut self, method: &Method, body: &Value) -> Option<Fault> {
        let left = match method {
            &Method::GET => &mut self.hides,
            _ if body["metadata"]["annotations"].is_object() => return self.no_claims,
            _ if body["spec"]["renewTime"].is_string() => &mut self.refuses,
            _ => return None,
        };
        *left = left.checked_sub(1)?;
        Some(self.fault)
    }

    fn answer(&mut self, method: &Method, is_apply: bool, body: &Value) -> (StatusCode, Value) {
        match (method, &self.lease) {
            (&Method::GET, None) => return failure(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::GET, Some(lease)) => return (StatusCode::OK, lease.clone()),
            _ => {}
        }
        let mut patch = body.clone();
        if let Some(time) = body["spec"]["renewTime"].as_str() {
            let time: Timestamp = time.parse().unwrap();
            patch["spec"]["renewTime"] = json!((time + self.ahead).to_string());
        }
        let takes = body["spec"]["holderIdentity"].is_string();
        if let Some(quicker) = self.quicker.take_if(|_| body["spec"].is_object()) {
            self.hold(quicker, -HOUR);
        }
        let on = body["metadata"]["resourceVersion"].as_str();
        let is_other = self
            .holder()
            .is_some_and(|holder| holder != body["spec"]["holderIdentity"]);
        // One rule of server-side apply matters here: no manager overwrites a value of another.
        if on.is_some_and(|on| on != self.version.to_string()) || is_apply && takes && is_other {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        self.writes += 1;
        self.put(&patch);
        (StatusCode::OK, self.lease.clone().unwrap_or_default())
    }
}

fn failure(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16(), "message": reason});
    (code, status)
}

pub(super) fn server() -> (Client, Shared) {
    let shared = Shared::default();
    let server = Arc::clone(&shared);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (head, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect().await?.to_bytes()).unwrap_or_default();
            let is_apply = head
                .headers
                .values()
                .any(|value| value.as_bytes().starts_with(b"application/apply-patch"));
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
            let slow = server.lock().unwrap().slow;
            tokio::time::sleep(slow).await;
            let is_lease = head.uri.path().contains("/leases");
            let fault = match is_lease {
                true => server.lock().unwrap().fails(&head.method, &body),
                false => None,
            };
            let (status, answer) = match fault {
                Some(Fault::Status(status)) => failure(status, "Fault"),
                Some(Fault::Wordless(status)) => (status, Value::Null),
                Some(Fault::CutOff) => return Err("cut off".into()),
                Some(Fault::Silence) => std::future::pending().await,
                Some(Fault::Unheard) => {
                    server.lock().unwrap().answer(&head.method, is_apply, &body);
                    std::future::pending().await
                }
                Some(Fault::Late) => {
                    let done = tokio::spawn(async move {
                        tokio::time::sleep(MOMENT).await;
                        server.lock().unwrap().answer(&head.method, is_apply, &body)
                    });
                    done.await?
                }
                None if is_lease => server.lock().unwrap().answer(&head.method, is_apply, &body),
                None => (StatusCode::OK, namespace),
            };
            let body = match answer {
                Value::Null => Body::empty(),
                answer => Body::from(answer.to_string().into_bytes()),
            };
            let answer = Response::builder().status(status).body(body);
            Ok::<_, tower::BoxError>(answer?)
        }
    });
    (Client::new(service, "default"), shared)
}

pub(super) fn by_default() -> LeaderElection {
    LeaderElection {
        duration: DURATION,
        ..election(10, 2)
    }
}

/// A replica that campaigns. Returns once it leads.
pub(super) async fn lead(client: &Client, election: LeaderElection) -> Leadership {
    let own = Identity::read().unwrap();
    let shutdown = CancellationToken::new();
    let leadership = Leadership::acquire(client, &election, &own, None, &shutdown).await;
    leadership.unwrap().unwrap()
}
