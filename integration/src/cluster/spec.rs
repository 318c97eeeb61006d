//! The specification of a cluster.

use super::network::MAX_NODES;
use super::{ClusterError, Mode};
use crate::progress::Progress;
use crate::tools::packages;

/// The specification of a cluster.
#[derive(Debug, Clone)]
pub struct Spec {
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) nodes: u8,
    pub(super) keep: bool,
    pub(super) soon_lost: bool,
    pub(super) job_groups: bool,
    pub(super) progress: Progress,
}

impl Spec {
    /// A cluster of one node. The name consists of lower-case letters, digits and `-`.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            mode: Mode::Nodes,
            nodes: 1,
            keep: keep_all(),
            soon_lost: false,
            job_groups: false,
            progress: Progress::new(),
        }
    }

    /// Only an API server, with a unique name. It does not need root.
    pub fn api_server() -> Self {
        let name = format!("api-{:08x}", rand::random::<u32>());
        let mode = Mode::ApiServer {
            controllers: false,
            scheduler: false,
            brisk: false,
        };
        Self {
            mode,
            nodes: 0,
            progress: Progress::quiet(),
            ..Self::new(name)
        }
    }

    /// With an API server: also runs kube-controller-manager.
    #[must_use]
    pub fn with_controllers(mut self) -> Self {
        if let Mode::ApiServer { controllers, .. } = &mut self.mode {
            *controllers = true;
        }
        self
    }

    /// With an API server: its controllers have no rate limit. By default they make 20 requests a
    /// second, for which concurrent tests would wait.
    #[must_use]
    pub fn brisk(mut self) -> Self {
        if let Mode::ApiServer { brisk, .. } = &mut self.mode {
            *brisk = true;
        }
        self
    }

    /// With an API server: also runs kube-scheduler, and serves the API of its gang scheduling
    /// (Kubernetes KEP-4671, from 1.36 on). It and the controllers are [`Self::brisk`].
    #[must_use]
    pub fn with_scheduler(mut self) -> Self {
        if let Mode::ApiServer { scheduler, brisk, .. } = &mut self.mode {
            (*scheduler, *brisk) = (true, true);
        }
        self
    }

    /// With this number of nodes, at most [`MAX_NODES`].
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// A node that does not report counts as lost after 12 s instead of Kubernetes' default of 50
    /// s.
    #[must_use]
    pub fn soon_lost(mut self) -> Self {
        self.soon_lost = true;
        self
    }

    /// With controllers and a scheduler: the Job controller creates a PodGroup for each Job
    /// (`WorkloadWithJob`, Kubernetes KEP-5547).
    #[must_use]
    pub fn job_groups(mut self) -> Self {
        self.job_groups = true;
        self
    }

    /// The cluster stays up when it is dropped.
    #[must_use]
    pub fn keep(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Where progress is reported.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Checks that this machine can run such a cluster.
    pub(super) fn check(&self) -> Result<(), ClusterError> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 40 || !self.name.chars().all(fits) {
            let text = "a cluster's name consists of up to 40 lower-case letters, digits and `-`";
            return Err(ClusterError::Invalid(text.to_owned()));
        }
        if self.nodes > MAX_NODES {
            return Err(ClusterError::Invalid(format!(
                "a cluster has at most {MAX_NODES} nodes"
            )));
        }
        if self.mode == Mode::Nodes {
            if !nix::unistd::geteuid().is_root() {
                return Err(ClusterError::Invalid("nodes need root".to_owned()));
            }
            packages::check(packages::Purpose::Run)?;
        }
        Ok(())
    }
}

/// True if `LOCKSTEP_KEEP` asks to keep every cluster for inspection, even one that fails to start.
pub(super) fn keep_all() -> bool {
    std::env::var_os("LOCKSTEP_KEEP").is_some_and(|value| value == "1")
}
