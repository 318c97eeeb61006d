//! Feature gates, with upstream's names.

use std::fmt;

#[cfg(test)]
mod tests;

/// The enabled features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `InPlaceRestart` (KEP-467): workers restart inside their running pods. On by default, unlike
    /// upstream.
    pub in_place_restart: bool,
    /// `RestartJob`: failure policy actions that recreate only the failed Job. Off by default.
    pub restart_job: bool,
    /// `ElasticJobSet` (KEP-463): parallelism and completions of running Jobs follow the JobSet.
    /// Off by default.
    pub elastic_jobset: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            in_place_restart: true,
            restart_job: false,
            elastic_jobset: false,
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
    pub const NAMES: [&str; 6] = [
        "AllAlpha",
        "AllBeta",
        "ElasticJobSet",
        "InPlaceRestart",
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
            "AllAlpha" => {
                *self = Self {
                    in_place_restart: enabled,
                    restart_job: enabled,
                    elastic_jobset: enabled,
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
