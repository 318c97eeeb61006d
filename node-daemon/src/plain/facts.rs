//! What goes into the table of workers without an agent, and what comes out.

use crate::worker::types::{
    BootNanos, ContainerId, Desired, Ended, Epoch, GroupUid, Incarnation, Pod, PodUid, StaleOrder, UnixNanos,
    WorkerState,
};

/// A fact.
#[derive(Debug, Clone)]
pub enum Input {
    /// All pods with workers without an agent, and the containers of those workers, ended or not.
    Listed {
        /// The pods.
        pods: Vec<Pod>,
        /// Their containers.
        containers: Vec<PlainContainer>,
    },
    /// A container ended.
    Exited(ContainerId, Ended),
    /// An attempt to stop a container was over a while ago.
    StopOver(ContainerId),
    /// A hub has welcomed this node under this epoch, and the epoch is recorded.
    Welcomed(Epoch),
    /// Orders of the control plane.
    Desired(Vec<Desired>),
    /// The control plane no longer manages this group.
    Forget(GroupUid, Epoch),
}

/// One container of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainContainer {
    /// Its pod.
    pub pod: PodUid,
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: ContainerId,
    /// How many containers of this worker came before it.
    pub attempt: u32,
    /// When it was created.
    pub created: UnixNanos,
    /// How and when it ended, if it has.
    pub ended: Option<Ended>,
}

/// The time of a fact, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// By the wall clock, which may be set.
    pub wall: UnixNanos,
    /// By the boot clock, which never goes back.
    pub boot: BootNanos,
}

impl Moment {
    /// The boot clock's time for `wall`. It is not later than now, whatever the wall clock says.
    pub(super) fn since_boot(self, wall: UnixNanos) -> BootNanos {
        let ago = self.wall.0.saturating_sub(wall.0).max(0);
        BootNanos(self.boot.0.saturating_sub(ago.unsigned_abs()))
    }
}

/// What follows from a fact, besides records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// States that changed.
    pub reports: Vec<WorkerState>,
    /// Incarnations that were reported and are no longer known.
    pub gone: Vec<Incarnation>,
    /// Containers to stop.
    pub stops: Vec<ContainerId>,
    /// Orders that were refused.
    pub stale: Vec<StaleOrder>,
    /// Pods whose records could not be written, and why: none of their containers is stopped.
    pub unwritten: Vec<(PodUid, String)>,
}
