//! Which programs the worker starts through the agent, how many of each run at once, and how many
//! standbys of each are wanted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::Duration;

use super::files::List;
use super::skip::Skip;
use super::wire::Environment;

/// Most kinds that are known at once.
const MAX_KINDS: usize = 16;
/// Most ranks, and most standbys of ranks.
pub(super) const MAX_RANKS: usize = 64;
/// Bounds of the wait before the next standby of a kind, if one after the other ends.
const RANK_AGAIN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));
/// Variables that each rank has for itself: beginnings of names, and whole names. Its standby is
/// started without them.
const OWN_PREFIXES: [&str; 2] = ["MASTER_", "TORCHELASTIC_"];
const OWN: [&str; 5] = [
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "LOCKSTEP_HEARTBEAT",
];

/// The command, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) command: Vec<OsString>,
    pub(super) folder: OsString,
}

/// Ranks that are alike.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) id: u32,
    pub(super) program: Program,
    /// The variables of the attempt's first rank, without those that each rank has for itself.
    pub(super) environment: Rc<Environment>,
    /// The modules that its ranks have imported.
    pub(super) list: List,
    /// Modules that are not imported ahead.
    pub(super) skip: Skip,
    /// Memory of the last standby that was ready, in KiB.
    pub(super) size_kib: Option<u64>,
    /// The rank that notes its imports now. Only one does so at a time.
    pub(super) learner: Option<u64>,
    running: usize,
    /// The most ranks that ran at once in this attempt. Those that ended before the worker was up
    /// do not count, since scripts run other programs first.
    most: usize,
    /// Set once another standby would fail like the last one.
    hopeless: bool,
    /// When the next standby may be started.
    at: Duration,
    again: Duration,
}

/// All kinds.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    known: Vec<Kind>,
    next: u32,
}

impl Kinds {
    /// The next attempt begins.
    pub(super) fn begin(&mut self) {
        for kind in &mut self.known {
            (kind.running, kind.most, kind.learner) = (0, 0, None);
            kind.list.forget();
        }
    }

    /// The kind of a rank that is about to run. `None` if there are too many kinds already.
    pub(super) fn admit(&mut self, program: &Program, environment: &Environment) -> io::Result<Option<u32>> {
        let shared = || {
            let own = |name: &OsStr| {
                let name = name.as_bytes();
                OWN.iter().any(|own| own.as_bytes() == name)
                    || OWN_PREFIXES.iter().any(|own| name.starts_with(own.as_bytes()))
            };
            let mut shared = environment.clone();
            shared.retain(|name, _| !own(name));
            Rc::new(shared)
        };
        if let Some(kind) = self.known.iter_mut().find(|kind| kind.program == *program) {
            if kind.most == 0 {
                kind.environment = shared();
            }
            return Ok(Some(kind.id));
        }
        if self.known.len() >= MAX_KINDS {
            return Ok(None);
        }
        self.next += 1;
        self.known.push(Kind {
            id: self.next,
            program: program.clone(),
            environment: shared(),
            list: List::new()?,
            skip: Skip::default(),
            size_kib: None,
            learner: None,
            running: 0,
            most: 0,
            hopeless: false,
            at: Duration::ZERO,
            again: Duration::ZERO,
        });
        Ok(Some(self.next))
    }

    pub(super) fn get(&mut self, id: u32) -> Option<&mut Kind> {
        self.known.iter_mut().find(|kind| kind.id == id)
    }

    pub(super) fn started(&mut self, id: u32) {
        if let Some(kind) = self.get(id) {
            kind.running += 1;
            kind.most = kind.most.max(kind.running);
        }
    }

    /// A rank has ended. `up` is true if the worker was up by then.
    pub(super) fn ended(&mut self, id: u32, up: bool) {
        if let Some(kind) = self.get(id) {
            kind.running = kind.running.saturating_sub(1);
            if kind.running == 0 && !up {
                kind.most = 0;
            }
        }
    }

    /// A standby of this kind has not become a rank. If several end during one wait, that is as if
    /// one did: they often have the same reason.
    pub(super) fn failed(&mut self, id: u32, now: Duration) {
        if let Some(kind) = self.get(id)
            && kind.at <= now
        {
            kind.again = (kind.again * 2).clamp(RANK_AGAIN.0, RANK_AGAIN.1);
            kind.at = now + kind.again;
        }
    }

    /// The next standbys of this kind do not import this module ahead, since one has ended because
    /// of it. `skipped` is the number of modules that this one was to leave out.
    pub(super) fn leave_out(&mut self, id: u32, name: &str, skipped: usize) {
        if let Some(kind) = self.get(id) {
            kind.hopeless |= !kind.skip.add(name, skipped);
        }
    }

    /// A standby of this kind has become a rank.
    pub(super) fn served(&mut self, id: u32) {
        if let Some(kind) = self.get(id) {
            kind.again = Duration::ZERO;
            // It may have a list of its own.
            kind.list.begin();
        }
    }

    /// The kind of the next standby, and when it may be started. `waiting` counts the standbys of a
    /// kind.
    pub(super) fn next(&self, waiting: impl Fn(u32) -> usize) -> Option<(Duration, u32)> {
        let all: usize = self.known.iter().map(|kind| waiting(kind.id)).sum();
        self.known
            .iter()
            .filter(|kind| all < MAX_RANKS && !kind.hopeless && waiting(kind.id) < kind.most)
            .map(|kind| (kind.at, kind.id))
            .min()
    }

    /// How many standbys of a kind are wanted, once the attempt has started all of its ranks.
    pub(super) fn wanted(&self, id: u32) -> usize {
        self.known
            .iter()
            .find(|kind| kind.id == id)
            .map_or(0, |kind| kind.most)
    }

    /// How many standbys of all kinds are wanted.
    pub(super) fn all_wanted(&self) -> usize {
        self.known
            .iter()
            .map(|kind| kind.most)
            .sum::<usize>()
            .min(MAX_RANKS)
    }

    /// Drops the kinds that this attempt has not used.
    pub(super) fn forget(&mut self) {
        self.known.retain(|kind| kind.most > 0);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Kind> {
        self.known.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn program(name: &str) -> Program {
        Program {
            command: vec!["python3".into(), name.into()],
            folder: "/".into(),
        }
    }

    fn environment(names: &[&str]) -> Environment {
        names.iter().map(|name| (name.into(), "1".into())).collect()
    }

    fn admit(kinds: &mut Kinds, name: &str) -> u32 {
        kinds.admit(&program(name), &Environment::new()).unwrap().unwrap()
    }

    #[test]
    fn as_many_are_wanted_as_ran_at_once() {
        let mut kinds = Kinds::default();
        let (one, two) = (admit(&mut kinds, "a"), admit(&mut kinds, "b"));
        assert_ne!(one, two);
        for _ in 0..3 {
            assert_eq!(admit(&mut kinds, "a"), one);
            kinds.started(one);
            kinds.started(one);
            kinds.started(one);
            for _ in 0..3 {
                kinds.ended(one, false);
            }
            assert_eq!(kinds.wanted(one), 0, "they ended before the worker was up");
        }
        kinds.started(one);
        kinds.started(one);
        kinds.ended(one, false);
        kinds.started(two);
        kinds.ended(two, true);
        assert_eq!(
            (kinds.wanted(one), kinds.wanted(two), kinds.all_wanted()),
            (2, 1, 3)
        );
        assert_eq!(kinds.next(|_| 0), Some((Duration::ZERO, one)));
        assert_eq!(
            kinds.next(|id| if id == one { 2 } else { 0 }),
            Some((Duration::ZERO, two))
        );
        assert_eq!(kinds.next(|_| 2), None);
        kinds.begin();
        assert_eq!(kinds.next(|_| 0), None);
        assert!(!kinds.get(two).unwrap().list.is_begun());
        kinds.started(two);
        kinds.served(two);
        assert!(kinds.get(two).unwrap().list.is_begun());
        kinds.forget();
        assert_eq!(kinds.wanted(one), 0);
        assert_ne!(admit(&mut kinds, "a"), one);
    }

    #[test]
    fn kinds_and_ranks_are_bounded() {
        let mut kinds = Kinds::default();
        for name in 0..MAX_KINDS {
            let id = admit(&mut kinds, &name.to_string());
            for _ in 0..MAX_RANKS {
                kinds.started(id);
            }
        }
        assert_eq!(kinds.admit(&program("more"), &Environment::new()).unwrap(), None);
        assert_eq!(kinds.all_wanted(), MAX_RANKS);
        assert_eq!(kinds.next(|_| MAX_RANKS / MAX_KINDS), None);
    }

    #[test]
    fn a_standby_has_the_first_ranks_environment_without_what_is_its_own() {
        let mut kinds = Kinds::default();
        let first = environment(&[
            "A",
            "RANK",
            "LOCAL_RANK",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "WORLD_SIZE",
        ]);
        let id = kinds.admit(&program("a"), &first).unwrap().unwrap();
        let of = |kinds: &mut Kinds| kinds.get(id).unwrap().environment.clone();
        assert_eq!(*of(&mut kinds), environment(&["A", "WORLD_SIZE"]));
        kinds.started(id);
        kinds.admit(&program("a"), &environment(&["B"])).unwrap();
        assert_eq!(*of(&mut kinds), environment(&["A", "WORLD_SIZE"]));
        kinds.begin();
        kinds.admit(&program("a"), &environment(&["B"])).unwrap();
        assert_eq!(*of(&mut kinds), environment(&["B"]));
    }

    #[test]
    fn one_that_ends_again_and_again_is_tried_ever_less() {
        let mut kinds = Kinds::default();
        let id = admit(&mut kinds, "a");
        kinds.started(id);
        let (mut waits, mut now) = (Vec::new(), NOW);
        for _ in 0..7 {
            // All that end at once count as one.
            kinds.failed(id, now);
            kinds.failed(id, now);
            let (next, _) = kinds.next(|_| 0).unwrap();
            waits.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
        kinds.served(id);
        kinds.failed(id, now);
        assert_eq!(kinds.next(|_| 0), Some((now + RANK_AGAIN.0, id)));
    }

    #[test]
    fn a_module_that_fails_although_it_was_left_out_leaves_no_hope() {
        let mut kinds = Kinds::default();
        let id = admit(&mut kinds, "a");
        kinds.started(id);
        kinds.leave_out(id, "bad", 0);
        assert!(kinds.next(|_| 0).is_some());
        kinds.leave_out(id, "bad", 1);
        assert_eq!(kinds.next(|_| 0), None);
    }
}
