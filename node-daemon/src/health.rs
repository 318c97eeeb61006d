//! Health of the node's container runtime: the state of CRI and NRI, the daemon's two interfaces to
//! it. It is for people. The daemon itself uses it only to decide how to list containers and how
//! often to try NRI.
//!
//! Each user of an interface reports each outcome, and the link passes on changes. The state is a
//! level, so nothing queues up while the control plane is away. Refused connections to pods'
//! sockets are counted here, too.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::watch;

use crate::clock::unix_nanos;
use crate::worker::types::UnixNanos;

/// Longest reason that is passed on, in bytes.
const MAX_REASON: usize = 256;

/// State of one interface to the container runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Access {
    /// Not tried for long enough to say.
    #[default]
    Unknown,
    /// Works since this time.
    Well(UnixNanos),
    /// Does not work since this time, for this reason.
    Away(UnixNanos, String),
}

impl Access {
    /// Takes in an outcome. Returns true if the state has changed: errors in a row are one state,
    /// with the first one's reason.
    fn find(&mut self, found: Result<(), &dyn Display>, now: UnixNanos) -> bool {
        match (&self, found) {
            (Self::Well(_), Ok(())) | (Self::Away(..), Err(_)) => return false,
            (_, Ok(())) => *self = Self::Well(now),
            (_, Err(why)) => {
                let mut why = why.to_string();
                why.truncate(why.floor_char_boundary(MAX_REASON));
                *self = Self::Away(now, why);
            }
        }
        true
    }

    /// Replaces the reason while it does not work. Returns true if the reason is new.
    fn explain(&mut self, because: &str) -> bool {
        let Self::Away(_, why) = self else { return false };
        let is_new = why != because;
        if is_new {
            because.clone_into(why);
        }
        is_new
    }
}

/// Access to the container runtime, by both interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeAccess {
    /// Lists and kills containers.
    pub cri: Access,
    /// Puts agents into containers.
    pub nri: Access,
}

/// The current access, for its users and for the link, and the count of refused connections.
#[derive(Debug, Default)]
pub struct Health {
    access: watch::Sender<RuntimeAccess>,
    refused: AtomicU32,
}

impl Health {
    /// Reports that CRI has answered, or why not.
    pub fn cri(&self, found: Result<(), &dyn Display>) {
        let now = unix_nanos();
        self.access.send_if_modified(|access| access.cri.find(found, now));
    }

    /// Reports that NRI has accepted the daemon as a plugin, or why not.
    pub fn nri(&self, found: Result<(), &dyn Display>) {
        let now = unix_nanos();
        self.access.send_if_modified(|access| access.nri.find(found, now));
    }

    /// Reports that NRI still does not work, for this reason instead of the first one.
    pub fn nri_stays_away(&self, because: &str) {
        self.nri(Err(&because));
        self.access.send_if_modified(|access| access.nri.explain(because));
    }

    /// True if NRI has accepted the daemon as a plugin and tells it of containers.
    #[must_use]
    pub fn has_nri(&self) -> bool {
        matches!(self.access.borrow().nri, Access::Well(_))
    }

    /// The current access, and its changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<RuntimeAccess> {
        self.access.subscribe()
    }

    /// Counts a refused connection to a pod's socket.
    pub fn agent_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections refused since the daemon started. The count wraps around.
    #[must_use]
    pub fn refused_agents(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_changes_only_with_its_state() {
        let mut access = Access::default();
        assert!(access.find(Err(&"no such file"), UnixNanos(1)));
        assert!(!access.find(Err(&"refused"), UnixNanos(2)));
        assert_eq!(access, Access::Away(UnixNanos(1), "no such file".to_owned()));
        assert!(access.find(Ok(()), UnixNanos(3)));
        assert!(!access.find(Ok(()), UnixNanos(4)));
        assert_eq!(access, Access::Well(UnixNanos(3)));
        assert!(access.find(Err(&"ä".repeat(MAX_REASON)), UnixNanos(5)));
        assert_eq!(access, Access::Away(UnixNanos(5), "ä".repeat(MAX_REASON / 2)));
    }

    #[test]
    fn access_that_still_fails_has_its_last_reason() {
        let health = Health::default();
        let mut seen = health.watch();
        health.nri(Err(&"closed"));
        let since = match seen.borrow_and_update().nri.clone() {
            Access::Away(since, _) => since,
            other => panic!("{other:?}"),
        };
        health.nri_stays_away("too large");
        assert_eq!(
            seen.borrow_and_update().nri,
            Access::Away(since, "too large".to_owned())
        );
        health.nri_stays_away("too large");
        assert!(!seen.has_changed().unwrap() && !health.has_nri());
        health.nri(Ok(()));
        assert!(health.has_nri());
    }

    #[test]
    fn watchers_see_only_changes() {
        let health = Health::default();
        let mut seen = health.watch();
        assert_eq!(*seen.borrow_and_update(), RuntimeAccess::default());
        health.cri(Ok(()));
        assert!(seen.has_changed().unwrap());
        assert!(matches!(seen.borrow_and_update().cri, Access::Well(_)));
        health.cri(Ok(()));
        assert!(!seen.has_changed().unwrap());
        health.nri(Err(&"gone"));
        assert!(matches!(&seen.borrow_and_update().nri, Access::Away(_, why) if why == "gone"));
    }
}
