//! What a node's daemon says of the container runtime there.

use jiff::Timestamp;
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use crate::view::time;

/// The lowest level by which a worker that starts on a node now can be restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RestartLevel {
    /// Agents get into its containers.
    Process,
    /// They do not, but containers can be killed.
    Container,
    /// In another pod alone.
    Pod,
}

impl RestartLevel {
    /// As the platform API says it; where no daemon is connected nothing restarts in place. `None`: the daemon has not said it.
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

/// A way of a daemon to the container runtime.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuntimeAccess {
    pub(crate) state: AccessState,
    pub(crate) since: Option<Timestamp>,
    /// Why it is away.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
}

/// Its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum AccessState {
    Well,
    Away,
    /// The daemon has not said it.
    Unknown,
}

impl RuntimeAccess {
    pub(super) fn of(said: Option<&pb::RuntimeAccess>) -> Self {
        let said = said.cloned().unwrap_or_default();
        Self {
            state: match said.state() {
                pb::RuntimeAccessState::Well => AccessState::Well,
                pb::RuntimeAccessState::Away => AccessState::Away,
                pb::RuntimeAccessState::Unspecified => AccessState::Unknown,
            },
            since: time::from_nanos(said.since_unix_nanos),
            detail: said.detail,
        }
    }

    /// In a few words, at this time.
    pub(crate) fn words(&self, now: Timestamp) -> String {
        match (self.state, self.since) {
            (AccessState::Well, _) => "well".to_owned(),
            (AccessState::Away, Some(since)) => format!("away for {}", time::ago(since, now)),
            (AccessState::Away, None) => "away".to_owned(),
            (AccessState::Unknown, _) => "unknown".to_owned(),
        }
    }
}
