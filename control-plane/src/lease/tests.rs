//! What is written to the Lease while others write it too.

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

use super::*;

/// A Lease that somebody else writes before each of the next so many writes that rely on its version.
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

    /// The answer to a patch, or to a look where there is none.
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

/// A Lease of that version, under so many races, on which this epoch is written down.
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

async fn outlive(leases: Api<Lease>, epoch: u64) -> Result<(), LeaseError> {
    let leadership = Leadership {
        epoch: Epoch(1),
        name: "lease".to_owned(),
        leases,
        held: None,
    };
    leadership.outlive(Epoch(epoch)).await
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
        outlive(leases, 500).await.unwrap();
        assert_eq!(after.lock().unwrap().epoch.as_deref(), Some("500"));
    }
    // Not for ever.
    assert!(is_conflict(begin(&played(7, "100", u32::MAX).0).await));
    assert!(is_conflict(outlive(played(7, "100", u32::MAX).0, 500).await));
}

#[tokio::test]
async fn an_epoch_that_is_known_already_is_not_written() {
    let (leases, after) = played(7, "100", 0);
    outlive(leases, 100).await.unwrap();
    assert_eq!(after.lock().unwrap().version, 7);
    let (leases, after) = played(200, "100", 0);
    assert_eq!(begin(&leases).await.unwrap(), Epoch(201));
    assert_eq!(after.lock().unwrap().epoch.as_deref(), Some("100"));
}
