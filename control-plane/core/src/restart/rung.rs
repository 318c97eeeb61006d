//! The ladder: how a restart is done, from the cheapest way to the dearest.

/// A way to restart all workers. Later ones are dearer; a restart that one of them cannot end falls to a later one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// The agents start the worker processes again.
    #[default]
    Process,
    /// The containers are killed, and kubelet starts them again.
    Container,
    /// A lost pod is replaced, and the workers of the others wait for it.
    Pod,
    /// The child Jobs are made anew.
    Recreate,
}

impl Rung {
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

    /// The rung of this name, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Process, Self::Container, Self::Pod, Self::Recreate]
            .into_iter()
            .find(|rung| rung.as_str() == name)
    }
}
