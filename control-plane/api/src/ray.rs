//! Types of `ray.io/v1`, compatible with KubeRay.
//!
//! Promises: fields that these types do not know are kept by name ([`Unknown`]), so that they can
//! be reported to the user. Only `status` is ever written, so nothing that was stored is lost.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod cluster;
mod cron;
mod job;
pub mod keys;

pub use cluster::{
    HeadGroupSpec, HeadInfo, RayCluster, RayClusterSpec, RayClusterState, RayClusterStatus, WorkerGroupSpec,
};
pub use cron::{ConcurrencyPolicy, RayCronJob, RayCronJobSpec, RayCronJobStatus};
pub use job::{
    RayJob, RayJobDeploymentStatus, RayJobInfo, RayJobRetryPolicy, RayJobSpec, RayJobStatus,
    RayJobSubmissionMode, SubmitterConfig,
};
pub use keys::conditions;

/// API group of Ray's resources.
pub const GROUP: &str = "ray.io";
/// The served and stored version.
pub const VERSION: &str = "v1";
/// `spec.managedBy` of objects that this controller manages. An absent field means the same.
pub const CONTROLLER_NAME: &str = "lockstep.dev/ray-controller";

/// Adds accessors of `spec.managedBy` to a kind.
macro_rules! managed {
    ($kind:ty) => {
        impl $kind {
            /// The controller that manages it; `None` if that is not stated or is this controller.
            pub fn managed_by_another(&self) -> Option<&str> {
                let manager = self.spec.managed_by.as_deref();
                manager.filter(|manager| !manager.is_empty() && *manager != $crate::ray::CONTROLLER_NAME)
            }

            /// True if it names this controller as its manager.
            pub fn is_claimed(&self) -> bool {
                self.spec.managed_by.as_deref() == Some($crate::ray::CONTROLLER_NAME)
            }
        }
    };
}

pub(crate) use managed;

/// The fields of one level that its type does not know, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unknown(pub BTreeMap<String, Value>);

impl Unknown {
    /// The paths below `path` of fields that request something. An empty value, or false, requests
    /// nothing.
    pub fn paths(&self, path: &str) -> impl Iterator<Item = String> {
        let asking = self.0.iter().filter(|(_, value)| !asks_nothing(value));
        asking.map(move |(name, _)| format!("{path}.{name}"))
    }
}

fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(asked) => !asked,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(asks_nothing),
        Value::Object(fields) => fields.values().all(asks_nothing),
    }
}
