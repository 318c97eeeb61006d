//! What a node's daemon reports about the container runtime there.

use jiff::Timestamp;
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use crate::view::time;

/// The lowest level at which a worker that starts on a node now can be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RestartLevel {
    /// Agents get into its containers.
    Process,
    /// Agents do not get into containers, but containers can be killed.
    Container,
    /// A worker restarts only in another pod.
    Pod,
}

impl RestartLevel {
    /// The level that the platform API reports. Without a connected daemon nothing restarts in
    /// place. `None` if the daemon has not reported it.
    pub(super) fn of(node: Option<&pb::Node>) -> Option<Self> {
        match node.map_or("Pod", |node| node.level.as_str()) {
            "Process" => Some(Self::Process),
            "Container" => Some(Self::Container),
            "Pod" => Some(Self::Pod),
            _ => None,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }
}

/// A daemon's access to the container runtime.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuntimeAccess {
    pub(crate) state: AccessState,
    pub(crate) since: Option<Timestamp>,
    /// Why it is lost.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
}

/// State of a daemon's access to the container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum AccessState {
    Well,
    Away,
    /// The daemon has not reported it.
    Unknown,
}

impl RuntimeAccess {
    pub(super) fn of(reported: Option<&pb::RuntimeAccess>) -> Self {
        let reported = reported.cloned().unwrap_or_default();
        Self {
            state: match reported.state() {
                pb::RuntimeAccessState::Well => AccessState::Well,
                pb::RuntimeAccessState::Away => AccessState::Away,
                pb::RuntimeAccessState::Unspecified => AccessState::Unknown,
            },
            since: time::from_nanos(reported.since_unix_nanos),
            detail: reported.detail,
        }
    }

    /// The state in a few words.
    pub(crate) fn words(&self, now: Timestamp) -> String {
        match (self.state, self.since) {
            (AccessState::Well, _) => "well".to_owned(),
            (AccessState::Away, Some(since)) => format!("away for {}", time::ago(since, now)),
            (AccessState::Away, None) => "away".to_owned(),
            (AccessState::Unknown, _) => "unknown".to_owned(),
        }
    }
}
