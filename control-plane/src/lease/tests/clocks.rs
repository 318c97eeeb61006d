//! Clocks that differ, and clocks that are set, while replicas stand for election.
//!
//! The tests' time is paused, and the wall clock as good as stands still: where a lease ends in time, no wall clock has ended it.

use http::Method;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::*;

/// 15 s, renewed every 2 s.
const DURATION: Duration = Duration::from_secs(15);
const RETRY: Duration = Duration::from_secs(2);
/// Several times as long as a lease.
const LONG: Duration = Duration::from_secs(120);
/// Of a lease that is given up.
const SOON: Duration = Duration::from_millis(1200);
const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// An API server with at most one Lease.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
    /// By how much the clock of whoever writes was ahead of now.
    ahead: SignedDuration,
    /// How many of its next renewals are refused.
    refuses: u32,
    /// Who takes the lease just before the next one who would write to it.
    quicker: Option<&'static str>,
    /// Writes of anybody that the server was asked for, and has done.
    writes: u32,
}

type Shared = Arc<Mutex<Server>>;

impl Server {
    /// Puts the Lease of somebody there who renews it now, by a clock that differs by so much.
    fn hold(&mut self, holder: &str, differs: SignedDuration) {
        let now = (Timestamp::now() + differs).to_string();
        self.put(
            &json!({"spec": {"holderIdentity": holder, "acquireTime": now, "renewTime": now, "leaseDurationSeconds": 15}}),
        );
    }

    fn put(&mut self, patch: &Value) {
        self.version += 1;
        let lease = self.lease.get_or_insert_with(|| {
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lease"}, "spec": {}})
        });
        json_patch::merge(lease, patch);
        lease["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn holder(&self) -> Option<String> {
        let holder = self.lease.as_ref()?["spec"]["holderIdentity"].as_str();
        holder.map(str::to_owned)
    }

    fn answer(&mut self, method: &Method, is_apply: bool, body: &Value) -> (StatusCode, Value) {
        let failure = |code: StatusCode, reason: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code.as_u16(), "message": reason});
            (code, status)
        };
        match (method, &self.lease) {
            (&Method::GET, None) => return failure(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::GET, Some(lease)) => return (StatusCode::OK, lease.clone()),
            _ => {}
        }
        let mut patch = body.clone();
        if let Some(time) = body["spec"]["renewTime"].as_str() {
            if self.refuses > 0 {
                self.refuses -= 1;
                return failure(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
            }
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
        // Of server-side apply's rules one matters here: nobody applies a value over that of another.
        if on.is_some_and(|on| on != self.version.to_string()) || is_apply && takes && is_other {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        self.writes += 1;
        self.put(&patch);
        (StatusCode::OK, self.lease.clone().unwrap_or_default())
    }
}

fn server() -> (Client, Shared) {
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
            let (status, answer) = match head.uri.path().contains("/leases") {
                true => server.lock().unwrap().answer(&head.method, is_apply, &body),
                false => (StatusCode::OK, namespace),
            };
            let answer = Response::builder()
                .status(status)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(answer?)
        }
    });
    (Client::new(service, "default"), shared)
}

fn by_default() -> LeaderElection {
    LeaderElection {
        duration: DURATION,
        ..election(10, 2)
    }
}

/// A replica that stands for election, once it leads.
async fn lead(client: &Client, election: LeaderElection) -> Leadership {
    let own = Identity::read().unwrap();
    Leadership::acquire(client, &election, &own, None).await.unwrap()
}

/// Somebody who has taken the lease, and renews it by a clock that differs by so much. Nobody may take it from him.
async fn renew(server: &Shared, holder: &str, differs: SignedDuration) {
    loop {
        tokio::time::sleep(RETRY).await;
        let mut server = server.lock().unwrap();
        assert_eq!(server.holder().as_deref(), Some(holder));
        server.hold(holder, differs);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_renewed_is_left_to_its_holder_whatever_its_times_say() {
    for differs in [-HOUR, SignedDuration::ZERO, HOUR] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", differs);
        tokio::select! {
            _ = lead(&client, by_default()) => panic!("two lead"),
            () = renew(&server, "other", differs) => {}
            () = tokio::time::sleep(LONG) => {}
        }
        assert_eq!(server.lock().unwrap().writes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_silent_is_followed_whatever_its_clock_said() {
    for differs in [-HOUR, SignedDuration::ZERO, HOUR] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", differs);
        let began = Instant::now();
        let mut leadership = lead(&client, by_default()).await;
        let waited = began.elapsed();
        assert!(
            waited >= DURATION && waited < DURATION + Duration::from_secs(1),
            "{differs}: {waited:?}"
        );
        let lost = tokio::time::timeout(LONG, leadership.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_that_follow_a_silent_holder_one_leads() {
    for differs in [-HOUR, SignedDuration::ZERO, HOUR] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", differs);
        let follow = || Box::pin(lead(&client, by_default()));
        let (one, two) = (follow(), follow());
        let (mut leadership, follower) = futures::future::select(one, two).await.factor_first();
        tokio::select! {
            _ = follower => panic!("two lead"),
            lost = leadership.lost() => panic!("{lost}"),
            () = tokio::time::sleep(LONG) => {}
        }
        let renewed = u64::from(server.lock().unwrap().writes);
        assert!(renewed >= LONG.as_secs() / RETRY.as_secs() * 9 / 10, "{renewed}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_slower_leaves_the_lease_to_the_one_who_took_it_and_follows_him() {
    let (client, server) = server();
    server.lock().unwrap().quicker = Some("other");
    let began = Instant::now();
    let held = RETRY * 3;
    let other = async {
        while server.lock().unwrap().quicker.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let renews = renew(&server, "other", -HOUR);
        let _ = tokio::time::timeout_at(began + held, renews).await;
        server
            .lock()
            .unwrap()
            .put(&json!({"spec": {"holderIdentity": ""}}));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = lead(&client, by_default()) => {}
        () = other => {}
    }
    let waited = began.elapsed();
    assert!(waited >= held && waited < held + SOON, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_set_leads_on() {
    for ahead in [HOUR, -HOUR] {
        for election in [by_default(), election(3, 1), election(1, 1)] {
            let (client, server) = server();
            server.lock().unwrap().ahead = ahead;
            let mut leadership = lead(&client, election.clone()).await;
            let clock = async {
                tokio::time::sleep(LONG).await;
                server.lock().unwrap().ahead = SignedDuration::ZERO;
                tokio::time::sleep(LONG).await;
            };
            tokio::select! {
                _ = lead(&client, election.clone()) => panic!("two lead"),
                lost = leadership.lost() => panic!("{ahead}, {election:?}: {lost}"),
                () = clock => {}
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_can_read_the_lease_and_not_renew_it_stops_in_time() {
    let (client, server) = server();
    let election = by_default();
    let mut leadership = lead(&client, election.clone()).await;
    server.lock().unwrap().refuses = 1;
    let lost = tokio::time::timeout(LONG, leadership.lost()).await;
    assert!(lost.is_err(), "one renewal that fails costs nothing");

    server.lock().unwrap().refuses = u32::MAX;
    let began = Instant::now();
    let lost = tokio::time::timeout(LONG, leadership.lost()).await;
    assert!(lost.is_ok(), "it leads on");
    assert!(
        began.elapsed() <= election.renew_deadline,
        "{:?}",
        began.elapsed()
    );
    leadership.release().await.unwrap();
    assert_eq!(server.lock().unwrap().holder(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_lost_the_lease_leaves_it_to_the_next() {
    let (client, server) = server();
    let mut leadership = lead(&client, by_default()).await;
    server.lock().unwrap().hold("other", -HOUR);
    let lost = tokio::time::timeout(RETRY * 2, leadership.lost()).await;
    assert!(lost.is_ok(), "{lost:?}");
    leadership.release().await.unwrap();
    assert_eq!(server.lock().unwrap().holder().as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_up_is_taken_at_once() {
    let left =
        json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
    // As client-go leaves it, and with what an hour ahead was written.
    for left in [
        left,
        json!({"holderIdentity": ""}),
        json!({"holderIdentity": null}),
    ] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", HOUR);
        let held = async {
            let held = renew(&server, "other", HOUR);
            let _ = tokio::time::timeout(DURATION * 3, held).await;
            server.lock().unwrap().put(&json!({"spec": left}));
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        tokio::select! {
            _ = lead(&client, by_default()) => {}
            () = held => {}
        }
        let waited = began.elapsed().saturating_sub(DURATION * 3);
        assert!(waited < SOON, "{left}: {waited:?}");
        assert!(began.elapsed() >= DURATION * 3, "{left}");
    }
}

/// What the manager may write, and whether it is done.
#[tokio::test(start_paused = true)]
async fn the_manager_writes_to_no_lease_but_its_own() {
    let free =
        json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
    let now = Timestamp::now().to_string();
    let renew = json!({"renewTime": now, "leaseDurationSeconds": 15});
    let take =
        json!({"holderIdentity": "own", "acquireTime": now, "renewTime": now, "leaseDurationSeconds": 15});
    for (holder, quicker, spec, is_done) in [
        (Some("own"), None, &renew, true),
        (Some("own"), None, &free, true),
        (Some("own"), Some("other"), &renew, false),
        (Some("own"), Some("other"), &free, false),
        (Some("other"), None, &renew, false),
        (Some("other"), None, &free, false),
        (Some("other"), None, &take, false),
        (None, None, &renew, false),
        (None, None, &take, true),
        (None, Some("other"), &take, false),
    ] {
        let (client, server) = server();
        if let Some(holder) = holder {
            server.lock().unwrap().hold(holder, -HOUR);
        } else {
            server.lock().unwrap().put(&json!({}));
        }
        server.lock().unwrap().quicker = quicker;
        let (manager, _) = guard::guarded(&client, &by_default(), "own");
        let leases: Api<Lease> = Api::namespaced(manager, "default");
        let patch = Patch::Strategic(json!({"spec": spec}));
        let found = leases
            .patch("lease", &PatchParams::default(), &patch)
            .await
            .unwrap();
        let server = server.lock().unwrap();
        let case = format!("{holder:?} {quicker:?} {spec}");
        assert_eq!(server.writes, u32::from(is_done), "{case}");
        assert_eq!(server.holder().as_deref(), super::holder(&found), "{case}");
    }
}
