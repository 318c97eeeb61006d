//! The ladder: how a restart is done, from the cheapest way to the most expensive one.

/// A way to restart all workers. Later ones cost more; a restart that one of them cannot end falls
/// to a later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RestartLevel {
    /// The agents start the worker processes again.
    #[default]
    Process,
    /// The containers are killed, and the kubelet starts them again.
    Container,
    /// A lost pod is replaced, and the workers of the others wait for it.
    Pod,
    /// The child Jobs are recreated.
    Recreate,
}

impl RestartLevel {
    /// The name used in status, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Process => "Process",
            Self::Container => "Container",
            Self::Pod => "Pod",
            Self::Recreate => "Recreate",
        }
    }

    /// The level of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Process, Self::Container, Self::Pod, Self::Recreate]
            .into_iter()
            .find(|level| level.as_str() == name)
    }
}
