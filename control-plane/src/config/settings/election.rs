//! The election of the leader, from the flags and `leaderElection` of the file.

use std::time::Duration;

use super::{SettingsError, non_empty};
use crate::config::file;

/// Name of the leader's Lease.
const LEASE: &str = "lockstep-control-plane";

/// The election of the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    /// True if replicas elect a leader. Otherwise this process acts regardless of others.
    pub enabled: bool,
    /// Name of the Lease.
    pub lease: String,
    /// Namespace of the Lease.
    pub namespace: String,
    /// How long the lease lasts without renewal.
    pub duration: Duration,
    /// How long a leader acts without a confirmed renewal; less than `duration`.
    pub renew_deadline: Duration,
    /// The interval between renewals, in whole seconds; less than `duration`.
    pub retry: Duration,
}

/// Checks the combined flags and file, and applies upstream's defaults.
pub(super) fn checked(given: file::LeaderElection, namespace: &str) -> Result<LeaderElection, SettingsError> {
    let or_default = |time: Option<Duration>, default| {
        time.filter(|time| !time.is_zero())
            .unwrap_or(Duration::from_secs(default))
    };
    let duration = or_default(given.lease_duration, 15);
    let renew_deadline = or_default(given.renew_deadline, 10);
    let retry_period = or_default(given.retry_period, 2);
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
    if let Some(lock) = non_empty(given.resource_lock).filter(|lock| lock != "leases") {
        return Err(SettingsError::invalid(
            "leaderElection.resourceLock",
            format!("{lock:?} is not supported, use \"leases\""),
        ));
    }
    let duration = Duration::from_secs(duration.as_secs());
    Ok(LeaderElection {
        enabled: given.leader_elect.unwrap_or(true),
        lease: non_empty(given.resource_name).unwrap_or_else(|| LEASE.to_owned()),
        namespace: non_empty(given.resource_namespace).unwrap_or_else(|| namespace.to_owned()),
        duration,
        renew_deadline: renew_deadline.min(duration),
        retry: Duration::from_secs(retry_period.as_secs().clamp(1, duration.as_secs() - 1)),
    })
}
