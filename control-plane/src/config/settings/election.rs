//! How replicas agree on the one that acts, as the flags and `leaderElection` of the file say.

use std::time::Duration;

use super::{SettingsError, non_empty};
use crate::config::file;

/// Name of the leader's Lease.
const LEASE: &str = "lockstep-control-plane";

/// How replicas agree on the one that acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// True if they elect one. Otherwise this process acts whatever others do.
    pub enabled: bool,
    /// Name of the Lease.
    pub lease: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// For how long the lease is held without renewal.
    pub duration: Duration,
    /// For how long a leader acts that cannot see the lease to be its own; less than `duration`.
    pub renew_deadline: Duration,
    /// Between two renewals. Whole seconds, fewer than `duration` has.
    pub retry: Duration,
}

/// What the flags and the file said, with upstream's defaults.
pub(super) fn checked(said: file::LeaderElection, namespace: &str) -> Result<LeaderElection, SettingsError> {
    let given = |time: Option<Duration>, default| {
        time.filter(|time| !time.is_zero())
            .unwrap_or(Duration::from_secs(default))
    };
    let duration = given(said.lease_duration, 15);
    let renew_deadline = given(said.renew_deadline, 10);
    let retry_period = given(said.retry_period, 2);
    if duration <= renew_deadline {
        return Err(SettingsError::invalid(
            "leaderElection.leaseDuration",
            "leaseDuration must be greater than renewDeadline",
        ));
    }
    if renew_deadline <= retry_period.mul_f64(1.2) {
        return Err(SettingsError::invalid(
            "leaderElection.renewDeadline",
            "renewDeadline must be greater than retryPeriod*JitterFactor",
        ));
    }
    // The Lease counts in whole seconds.
    if duration.as_secs() < 2 {
        return Err(SettingsError::invalid(
            "leaderElection.leaseDuration",
            "leaseDuration must be at least 2s",
        ));
    }
    if let Some(lock) = non_empty(said.resource_lock).filter(|lock| lock != "leases") {
        return Err(SettingsError::invalid(
            "leaderElection.resourceLock",
            format!("{lock:?} is not supported, use \"leases\""),
        ));
    }
    let duration = Duration::from_secs(duration.as_secs());
    Ok(LeaderElection {
        enabled: said.leader_elect.unwrap_or(true),
        lease: non_empty(said.resource_name).unwrap_or_else(|| LEASE.to_owned()),
        namespace: non_empty(said.resource_namespace).unwrap_or_else(|| namespace.to_owned()),
        duration,
        renew_deadline: renew_deadline.min(duration),
        retry: Duration::from_secs(retry_period.as_secs().clamp(1, duration.as_secs() - 1)),
    })
}
