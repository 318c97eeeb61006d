//! Health of the node's container runtime: CRI and NRI, the daemon's two ways to it, are open or
//! not. It is for people; nothing is decided by it.
//!
//! Each user of a way reports each outcome, and the link passes on changes. It is a level, so
//! nothing queues up while the control plane is away. Refused connections to pods' sockets are
//! counted here, too.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::watch;

use crate::clock::unix_nanos;
use crate::worker::types::UnixNanos;

/// Longest reason that is passed on, in bytes.
const LONGEST: usize = 256;

/// One way to the container runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Access {
    /// It has not been tried for long enough to say.
    #[default]
    Unknown,
    /// It is open since then.
    Well(UnixNanos),
    /// It is not, since then, and why.
    Away(UnixNanos, String),
}

impl Access {
    /// Takes in an outcome. True if the state has changed: a row of errors is one state, with the
    /// first one's reason.
    fn find(&mut self, found: Result<(), &dyn Display>, now: UnixNanos) -> bool {
        match (&self, found) {
            (Self::Well(_), Ok(())) | (Self::Away(..), Err(_)) => return false,
            (_, Ok(())) => *self = Self::Well(now),
            (_, Err(why)) => {
                let mut why = why.to_string();
                why.truncate(why.floor_char_boundary(LONGEST));
                *self = Self::Away(now, why);
            }
        }
        true
    }

    /// It stays away, now for this reason. True if the reason is new.
    fn explain(&mut self, because: &str) -> bool {
        let Self::Away(_, why) = self else { return false };
        let is_news = why != because;
        if is_news {
            because.clone_into(why);
        }
        is_news
    }
}

/// Access to the container runtime, both ways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeAccess {
    /// Containers are listed and killed by this one.
    pub cri: Access,
    /// Agents get into containers by this one.
    pub nri: Access,
}

/// Access as it is now, for its users and for the link, and a count of what was refused.
#[derive(Debug, Default)]
pub struct Health {
    access: watch::Sender<RuntimeAccess>,
    refused: AtomicU32,
}

impl Health {
    /// CRI has answered, or why not.
    pub fn cri(&self, found: Result<(), &dyn Display>) {
        let now = unix_nanos();
        self.access.send_if_modified(|access| access.cri.find(found, now));
    }

    /// NRI has accepted the daemon as a plugin, or the reason why not.
    pub fn nri(&self, found: Result<(), &dyn Display>) {
        let now = unix_nanos();
        self.access.send_if_modified(|access| access.nri.find(found, now));
    }

    /// NRI stays away, for this reason instead of the first one.
    pub fn nri_stays_away(&self, because: &str) {
        self.nri(Err(&because));
        self.access.send_if_modified(|access| access.nri.explain(because));
    }

    /// True if NRI has accepted the daemon as a plugin and tells it of containers.
    #[must_use]
    pub fn has_nri(&self) -> bool {
        matches!(self.access.borrow().nri, Access::Well(_))
    }

    /// The present access, and its changes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<RuntimeAccess> {
        self.access.subscribe()
    }

    /// A connection to an agents' socket was refused.
    pub fn agent_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were, since the daemon began. It wraps around.
    #[must_use]
    pub fn refused_agents(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_changes_when_its_state_does() {
        let mut way = Access::default();
        assert!(way.find(Err(&"no such file"), UnixNanos(1)));
        assert!(!way.find(Err(&"refused"), UnixNanos(2)));
        assert_eq!(way, Access::Away(UnixNanos(1), "no such file".to_owned()));
        assert!(way.find(Ok(()), UnixNanos(3)));
        assert!(!way.find(Ok(()), UnixNanos(4)));
        assert_eq!(way, Access::Well(UnixNanos(3)));
        assert!(way.find(Err(&"ä".repeat(LONGEST)), UnixNanos(5)));
        assert_eq!(way, Access::Away(UnixNanos(5), "ä".repeat(LONGEST / 2)));
    }

    #[test]
    fn a_way_that_stays_away_has_its_last_reason() {
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
    fn watchers_hear_of_changes_alone() {
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
