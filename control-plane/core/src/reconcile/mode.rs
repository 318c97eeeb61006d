//! How the workers of a JobSet restart, and what that depends on.

use lockstep_api::{InPlaceKind, JobSetStatus};

use crate::jobset::failure_policy::RecreationScope;
use crate::jobset::in_place::InPlaceMode;
use crate::jobset::observed::Observed;
use crate::jobset::upstream_agent;

#[cfg(test)]
mod tests;

/// How the workers of a JobSet restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestartMode {
    /// With new Jobs.
    Recreate,
    /// In place, by upstream's agents in its pod templates (KEP-467).
    UpstreamAgents,
    /// In place, by upstream's agents if its pods report any: node daemons take no part.
    UpstreamReports,
    /// In place, by the kubelet only: no node daemon is connected, and none has started its
    /// workers.
    KubeletOnly(InPlaceMode),
    /// In place, by the group's coordinator.
    Coordinated(InPlaceMode),
    /// In place, by the group's coordinator, which is away while the hub is. When it returns, it
    /// finds what was done meanwhile.
    CoordinatorAway(InPlaceKind),
    /// With new Jobs, but formerly by the group's coordinator: the JobSet no longer asks for
    /// restarts in place, or their feature gate is off. The coordinator may return.
    FormerlyCoordinated(InPlaceKind),
}

impl RestartMode {
    /// The mode of a JobSet. `in_place` follows from its templates and its status.
    pub(super) fn of(observed: &Observed, in_place: Option<InPlaceMode>, status: &JobSetStatus) -> Self {
        let reports_upstream = upstream_agent::reports(&observed.agent_pods);
        let before = coordinated_kind(status).filter(|_| !reports_upstream);
        match in_place {
            None => before.map_or(Self::Recreate, Self::FormerlyCoordinated),
            Some(in_place) if in_place.kind == InPlaceKind::UpstreamAgent => Self::UpstreamAgents,
            Some(_) if reports_upstream => Self::UpstreamReports,
            Some(_) if !observed.has_daemons => before.map_or(Self::UpstreamReports, Self::CoordinatorAway),
            Some(in_place) if observed.is_attended || was_attended(status) => Self::Coordinated(in_place),
            Some(in_place) => Self::KubeletOnly(in_place),
        }
    }

    /// How it restarts in place, if its group now has a coordinator.
    pub(super) fn coordinated(&self) -> Option<&InPlaceMode> {
        match self {
            Self::Coordinated(in_place) | Self::KubeletOnly(in_place) => Some(in_place),
            _ => None,
        }
    }

    /// Its kind, if its group formerly had a coordinator but has none now.
    pub(super) fn coordinated_before(&self) -> Option<&InPlaceKind> {
        match self {
            Self::CoordinatorAway(kind) | Self::FormerlyCoordinated(kind) => Some(kind),
            _ => None,
        }
    }

    /// True if a coordinator counts its restarts, now or when it returns.
    pub(super) fn is_coordinated_or_was(&self) -> bool {
        self.coordinated().is_some() || self.coordinated_before().is_some()
    }

    /// True if the reports of upstream's agents decide.
    pub(super) fn follows_upstream(&self) -> bool {
        matches!(
            self,
            Self::UpstreamAgents | Self::UpstreamReports | Self::CoordinatorAway(_)
        )
    }

    /// What a restart may recreate. All workers of a group restart together: its coordinator, or
    /// the next one, would mistake the recreation of a single Job for another failure, and count it
    /// again.
    pub(super) fn recreation_scope(&self) -> RecreationScope {
        let is_of_group = match self {
            Self::Coordinated(in_place) | Self::KubeletOnly(in_place) => in_place.level.is_some(),
            Self::CoordinatorAway(_) | Self::FormerlyCoordinated(_) => true,
            Self::Recreate | Self::UpstreamAgents | Self::UpstreamReports => false,
        };
        if is_of_group {
            RecreationScope::AllJobs
        } else {
            RecreationScope::SingleJob
        }
    }
}

/// True if node daemons have started its workers.
fn was_attended(status: &JobSetStatus) -> bool {
    let in_place = status.in_place_restart.as_ref();
    in_place.is_some_and(|in_place| !in_place.started.is_empty())
}

/// Its kind, if a coordinator of its group has ever restarted it, or could have. Those restarts
/// still count.
fn coordinated_kind(status: &JobSetStatus) -> Option<InPlaceKind> {
    let kind = status.in_place_restart.as_ref()?.kind.clone()?;
    matches!(kind, InPlaceKind::Supervised | InPlaceKind::Plain).then_some(kind)
}
