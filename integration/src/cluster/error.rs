//! Errors of clusters.

use std::path::{Path, PathBuf};

use super::ProcessId;
use crate::command::CommandError;
use crate::image::ImageError;
use crate::tools::{ToolError, packages};
use crate::wait::TimedOut;

/// A cluster could not be started, used or removed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// A program could be neither found nor built.
    #[error(transparent)]
    Tools(#[from] ToolError),
    /// A Debian package is missing.
    #[error(transparent)]
    Packages(#[from] packages::MissingPackages),
    /// A program failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// An image could not be built.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A certificate could not be created.
    #[error("cannot create certificates: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The API server refused a request.
    #[error(transparent)]
    Kube(#[from] Box<kube::Error>),
    /// The kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] Box<kube::config::KubeconfigError>),
    /// A condition did not become true in time.
    #[error(transparent)]
    TimedOut(#[from] TimedOut),
    /// A daemon exited unexpectedly.
    #[error("{name} exited; the end of its log:\n{log}")]
    Died {
        /// The daemon.
        name: String,
        /// The last lines that it wrote.
        log: String,
    },
    /// Processes that remain after SIGKILL.
    #[error("processes that cannot be killed: {0:?}")]
    Unkillable(Vec<ProcessId>),
    /// Too many instances on this machine.
    #[error("all {0} slots for clusters are taken on this machine")]
    NoSlot(u8),
    /// An invalid name or number.
    #[error("{0}")]
    Invalid(String),
    /// The instance does not exist.
    #[error("no cluster called {0} is up")]
    NotUp(String),
    /// The node does not exist.
    #[error("there is no node {0}")]
    NoNode(u8),
}

impl ClusterError {
    pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}

impl From<kube::Error> for ClusterError {
    fn from(error: kube::Error) -> Self {
        Self::Kube(Box::new(error))
    }
}

impl From<kube::config::KubeconfigError> for ClusterError {
    fn from(error: kube::config::KubeconfigError) -> Self {
        Self::Kubeconfig(Box::new(error))
    }
}
