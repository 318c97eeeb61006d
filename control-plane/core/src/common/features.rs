//! Feature gates, with upstream's names.

use std::fmt;

#[cfg(test)]
mod tests;

/// The enabled features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "gates are switched one by one, and none excludes another"
)]
pub struct Features {
    /// `InPlaceRestart` (KEP-467): workers restart inside their running pods. On by default, unlike
    /// upstream.
    pub in_place_restart: bool,
    /// `RestartJob`: failure policy actions that recreate only the failed Job. Off by default.
    pub restart_job: bool,
    /// `ElasticJobSet` (KEP-463): parallelism and completions of running Jobs follow the JobSet.
    /// Off by default.
    pub elastic_jobset: bool,
    /// `ExecutionAttemptsTracking` (KEP-1282): `status.executionAttempts` counts restarts and
    /// resumptions, and pods have it as an annotation. Off by default.
    pub execution_attempts: bool,
    /// `JobSetActiveDeadlineSeconds` (KEP-1186): `spec.activeDeadlineSeconds` bounds how long a
    /// JobSet runs. Off by default.
    pub active_deadline: bool,
    /// `MutablePodResourcesForSuspendedJobSets` (KEP-1150): the resources of containers may change
    /// while the JobSet is suspended. Off by default.
    pub mutable_resources: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            in_place_restart: true,
            restart_job: false,
            elastic_jobset: false,
            execution_attempts: false,
            active_deadline: false,
            mutable_resources: false,
        }
    }
}

/// Why a gate cannot be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeatureError {
    /// There is no feature gate of this name.
    Unknown(String),
    /// The gate is always on.
    Locked(String),
}

impl fmt::Display for FeatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(
                f,
                "unrecognized feature gate: {name}; known are {}",
                Features::NAMES.join(", ")
            ),
            Self::Locked(name) => write!(
                f,
                "cannot set feature gate {name} to false, feature is locked to true"
            ),
        }
    }
}

impl std::error::Error for FeatureError {}

impl Features {
    /// The names that [`Features::set`] knows. `TLSOptions` is always on.
    pub const NAMES: [&str; 9] = [
        "AllAlpha",
        "AllBeta",
        "ElasticJobSet",
        "ExecutionAttemptsTracking",
        "InPlaceRestart",
        "JobSetActiveDeadlineSeconds",
        "MutablePodResourcesForSuspendedJobSets",
        "RestartJob",
        "TLSOptions",
    ];

    /// True if the name stands for several features. Groups are set first, so that the gate of a
    /// single feature overrides them.
    #[must_use]
    pub fn is_group(name: &str) -> bool {
        matches!(name, "AllAlpha" | "AllBeta")
    }

    /// Switches a feature, or a group of them, on or off.
    ///
    /// # Errors
    /// If there is no gate of this name, or it cannot be switched off.
    pub fn set(&mut self, name: &str, enabled: bool) -> Result<(), FeatureError> {
        match name {
            "InPlaceRestart" => self.in_place_restart = enabled,
            "RestartJob" => self.restart_job = enabled,
            "ElasticJobSet" => self.elastic_jobset = enabled,
            "ExecutionAttemptsTracking" => self.execution_attempts = enabled,
            "JobSetActiveDeadlineSeconds" => self.active_deadline = enabled,
            "MutablePodResourcesForSuspendedJobSets" => self.mutable_resources = enabled,
            "AllAlpha" => {
                *self = Self {
                    in_place_restart: enabled,
                    restart_job: enabled,
                    elastic_jobset: enabled,
                    execution_attempts: enabled,
                    active_deadline: enabled,
                    mutable_resources: enabled,
                };
            }
            // Upstream has no beta feature.
            "AllBeta" => {}
            "TLSOptions" if enabled => {}
            "TLSOptions" => return Err(FeatureError::Locked(name.to_owned())),
            unknown => return Err(FeatureError::Unknown(unknown.to_owned())),
        }
        Ok(())
    }
}
