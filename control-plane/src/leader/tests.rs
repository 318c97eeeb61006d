//! Writes to the Lease while others also write it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use tokio::time::Instant;

use super::epoch::EPOCH;
use super::expiry::{HighestVersion, unseen};
use super::*;

mod clocks;
mod faults;
mod server;

/// A Lease that another writer changes before each of the next `races` writes that rely on its
/// version.
struct Played {
    version: u64,
    epoch: Option<String>,
    races: u32,
}

impl Played {
    fn lease(&self) -> Value {
        let annotations = self.epoch.as_ref().map(|epoch| json!({EPOCH: epoch}));
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "lease", "resourceVersion": self.version.to_string(), "annotations": annotations},
        })
    }

    /// The answer to a patch, or to a read if there is no patch.
    fn answer(&mut self, patch: &Value) -> (StatusCode, Value) {
        if patch.is_null() {
            return (StatusCode::OK, self.lease());
        }
        let on = &patch["metadata"]["resourceVersion"];
        if !on.is_null() && self.races > 0 {
            self.races -= 1;
            self.version += 1;
        }
        if on.as_str().is_some_and(|on| on.parse() != Ok(self.version)) {
            let status = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "conflict"});
            return (StatusCode::CONFLICT, status);
        }
        let epoch = patch["metadata"]["annotations"][EPOCH].as_str();
        self.epoch = epoch.map(str::to_owned).or(self.epoch.take());
        self.version += 1;
        (StatusCode::OK, self.lease())
    }
}

/// A Lease of this version with this many races, and with this epoch written on it.
fn played(version: u64, epoch: &str, races: u32) -> (Api<Lease>, Arc<Mutex<Played>>) {
    let played = Arc::new(Mutex::new(Played {
        version,
        epoch: Some(epoch.to_owned()),
        races,
    }));
    let server = Arc::clone(&played);
    let service = tower::service_fn(move |request: Request<Body>| {
        let server = Arc::clone(&server);
        async move {
            let body = request.into_body().collect().await?.to_bytes();
            let patch = serde_json::from_slice(&body).unwrap_or_default();
            let (status, answer) = server.lock().unwrap().answer(&patch);
            let answer = Response::builder()
                .status(status)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(answer?)
        }
    });
    (
        Api::namespaced(Client::new(service, "default"), "default"),
        played,
    )
}

async fn begin(leases: &Api<Lease>) -> Result<Epoch, LeaseError> {
    let params = PatchParams::default();
    new_epoch(leases, "lease", ("process", None), &params, Patch::Merge).await
}

async fn reserve_epoch(leases: Api<Lease>, epoch: u64) -> Result<(), LeaseError> {
    let leadership = Leadership {
        epoch: Epoch(1),
        name: "lease".to_owned(),
        leases,
        held: None,
    };
    leadership.reserve_epoch(Epoch(epoch)).await
}

fn is_conflict<T>(done: Result<T, LeaseError>) -> bool {
    matches!(done, Err(LeaseError::Api(error)) if is_status(&error, 409))
}

#[tokio::test]
async fn an_epoch_is_written_down_although_the_lease_is_renewed_meanwhile() {
    for races in [0, 1, RACES] {
        let (leases, after) = played(7, "100", races);
        assert_eq!(begin(&leases).await.unwrap(), Epoch(101));
        assert_eq!(after.lock().unwrap().epoch.as_deref(), Some("101"));

        let (leases, after) = played(7, "100", races);
        reserve_epoch(leases, 500).await.unwrap();
        assert_eq!(after.lock().unwrap().epoch.as_deref(), Some("500"));
    }
    // It does not retry for ever.
    assert!(is_conflict(begin(&played(7, "100", u32::MAX).0).await));
    assert!(is_conflict(
        reserve_epoch(played(7, "100", u32::MAX).0, 500).await
    ));
}

#[tokio::test]
async fn an_epoch_that_is_known_already_is_not_written() {
    let (leases, after) = played(7, "100", 0);
    reserve_epoch(leases, 100).await.unwrap();
    assert_eq!(after.lock().unwrap().version, 7);
    let (leases, after) = played(200, "100", 0);
    assert_eq!(begin(&leases).await.unwrap(), Epoch(201));
    assert_eq!(after.lock().unwrap().epoch.as_deref(), Some("100"));
}

/// The Lease of a leader. Its first reads take these times.
fn slow(readings: &[Duration]) -> Api<Lease> {
    let readings = Arc::new(Mutex::new(VecDeque::from(readings.to_vec())));
    let service = tower::service_fn(move |_: Request<Body>| {
        let takes = readings.lock().unwrap().pop_front().unwrap_or_default();
        async move {
            tokio::time::sleep(takes).await;
            let lease = json!({
                "metadata": {"name": "lease", "annotations": {LEADER_PROCESS: "process"}},
                "spec": {"holderIdentity": "own"},
            });
            let answer = Response::new(Body::from(lease.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(answer)
        }
    });
    Api::namespaced(Client::new(service, "default"), "default")
}

fn election(deadline: u64, retry: u64) -> LeaderElection {
    LeaderElection {
        enabled: true,
        lease: "lease".to_owned(),
        namespace: "default".to_owned(),
        duration: Duration::from_secs(deadline + 1),
        renew_deadline: Duration::from_secs(deadline),
        retry: Duration::from_secs(retry),
    }
}

#[tokio::test(start_paused = true)]
async fn one_look_that_takes_its_time_costs_no_leadership() {
    for (deadline, retry) in [(10, 2), (3, 1), (1, 1)] {
        let election = election(deadline, retry);
        for takes in [Duration::ZERO, election.renew_deadline * 2 / 5] {
            let leases = slow(&[takes]);
            let mut highest = HighestVersion::default();
            let watch = unseen(&leases, &election, ("own", "process"), &mut highest);
            let given_up = tokio::time::timeout(election.duration * 20, watch).await;
            assert!(given_up.is_err(), "{election:?}, {takes:?}");
        }
        let leases = slow(&[Duration::MAX / 4; 100]);
        let began = Instant::now();
        unseen(
            &leases,
            &election,
            ("own", "process"),
            &mut HighestVersion::default(),
        )
        .await;
        assert_eq!(began.elapsed().as_secs(), deadline, "{election:?}");
    }
}

/// The Lease of a leader. Each read returns the next of these versions, and later reads the last
/// one.
fn at_versions(versions: &[&str]) -> Api<Lease> {
    let mut readings: VecDeque<String> = versions.iter().map(|version| (*version).to_owned()).collect();
    let last = readings.pop_back();
    let readings = Arc::new(Mutex::new(readings));
    let service = tower::service_fn(move |_: Request<Body>| {
        let version = readings.lock().unwrap().pop_front().or(last.clone());
        async move {
            let lease = json!({
                "metadata": {
                    "name": "lease", "resourceVersion": version, "annotations": {LEADER_PROCESS: "process"},
                },
                "spec": {"holderIdentity": "own"},
            });
            let answer = Response::new(Body::from(lease.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(answer)
        }
    });
    Api::namespaced(Client::new(service, "default"), "default")
}

#[tokio::test(start_paused = true)]
async fn a_version_of_the_lease_that_falls_ends_the_leadership_and_nothing_else_of_it_does() {
    let election = election(10, 2);
    let began = Instant::now();
    let leases = at_versions(&["100", "101", "99"]);
    let mut highest = HighestVersion::default();
    let why = unseen(&leases, &election, ("own", "process"), &mut highest).await;
    assert_eq!(
        why.to_string(),
        "the API server went back to an older state: the lease was at resourceVersion 101, and is at 99; \
         starting again from what it holds"
    );
    assert_eq!(began.elapsed(), 3 * election.retry);
    // The version that was seen while it waited counts.
    let mut highest = HighestVersion::default();
    unseen(
        &at_versions(&["200", "199"]),
        &election,
        ("own", "process"),
        &mut highest,
    )
    .await;
    let why = unseen(
        &at_versions(&["150"]),
        &election,
        ("own", "process"),
        &mut highest,
    )
    .await;
    assert!(
        matches!(
            why,
            LeaseError::WentBack(WentBack {
                before: 200,
                now: 150
            })
        ),
        "{why}"
    );
    // The same version for long, leaps, and versions that are not numbers.
    for versions in [
        &["7"][..],
        &["7", "7", "100000", "100001"],
        &["opaque", "b", "a"],
        &["", "0"],
    ] {
        let leases = at_versions(versions);
        let mut highest = HighestVersion::default();
        let watch = unseen(&leases, &election, ("own", "process"), &mut highest);
        let given_up = tokio::time::timeout(election.duration * 20, watch).await;
        assert!(given_up.is_err(), "{versions:?}: {given_up:?}");
    }
}
