//! Whether KubeRay's controller runs in this cluster: its leader holds a Lease.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::sync::Mutex;

/// Name of the Lease by which KubeRay's replicas elect one that acts.
const LEASE: &str = "ray-operator-leader";
/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(15);
/// A leader renews its Lease every few seconds.
const SILENCE: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// Knows whether KubeRay's controller runs.
pub(crate) struct KubeRay {
    leases: Api<Lease>,
    answer: Mutex<Option<(Instant, bool)>>,
}

impl KubeRay {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            leases: Api::all(client),
            answer: Mutex::default(),
        }
    }

    /// Asks, where the last answer is old.
    ///
    /// # Errors
    /// The API server does not answer.
    pub(crate) async fn runs(&self) -> kube::Result<bool> {
        let mut answer = self.answer.lock().await;
        if let Some((at, runs)) = *answer
            && at.elapsed() < HOLDS
        {
            return Ok(runs);
        }
        let named = ListParams::default().fields(&format!("metadata.name={LEASE}"));
        let leases = self.leases.list(&named).await?;
        let now = Timestamp::now();
        let runs = leases.iter().any(|lease| is_held(lease, now));
        *answer = Some((Instant::now(), runs));
        Ok(runs)
    }
}

fn is_held(lease: &Lease, now: Timestamp) -> bool {
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    let held = renewed.is_some_and(|renewed| now.duration_since(renewed.0) < SILENCE);
    lease.name_any() == LEASE && held
}
