//! Feature gates, by the names that upstream gives them.

use std::fmt;

#[cfg(test)]
mod tests;

/// What is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `InPlaceRestart` (KEP-467): workers restart inside their running pods. On, which differs from upstream.
    pub in_place_restart: bool,
    /// `RestartJob`: failure policy actions that recreate the failed Job alone. Off.
    pub restart_job: bool,
    /// `ElasticJobSet` (KEP-463): parallelism and completions of running Jobs change with the JobSet. Off.
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

/// A name that is no feature gate's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFeature(pub String);

impl fmt::Display for UnknownFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unrecognized feature gate: {}; known are {}",
            self.0,
            Features::NAMES.join(", ")
        )
    }
}

impl std::error::Error for UnknownFeature {}

impl Features {
    /// The names that [`Features::set`] knows. `TLSOptions` is always on.
    pub const NAMES: [&str; 4] = ["ElasticJobSet", "InPlaceRestart", "RestartJob", "TLSOptions"];

    /// Switches a feature on or off.
    ///
    /// # Errors
    /// [`UnknownFeature`] where there is no gate of this name.
    pub fn set(&mut self, name: &str, enabled: bool) -> Result<(), UnknownFeature> {
        match name {
            "InPlaceRestart" => self.in_place_restart = enabled,
            "RestartJob" => self.restart_job = enabled,
            "ElasticJobSet" => self.elastic_jobset = enabled,
            "TLSOptions" => {}
            unknown => return Err(UnknownFeature(unknown.to_owned())),
        }
        Ok(())
    }
}
