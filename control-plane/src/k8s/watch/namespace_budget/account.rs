//! What one watch keeps and what it leaves out.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Budget, ENTRY, LOOK, Weighs};
use crate::k8s::watch::left_out;

/// What one watch keeps.
pub(super) struct Account {
    budget: Budget,
    /// The budget for objects of usual size.
    usual: Budget,
    /// By namespace and name.
    kept: HashMap<String, HashMap<String, Entry>>,
    /// Namespaces with objects that are left out.
    pub(super) shortage: HashMap<String, Shortage>,
    /// The shortages before the current list.
    before: HashMap<String, Shortage>,
    /// The number of lists so far.
    lists: u64,
    /// True during a list.
    pub(super) listing: bool,
}

/// A namespace with objects that are left out.
pub(super) struct Shortage {
    smallest: SmallestByClass,
    /// How many objects were left out since the last list. Beyond [`left_out::MOST`] their names
    /// are unknown, so only a list shows which JobSets are complete.
    count: usize,
    /// When a list may run for this namespace, and how long after the previous list that is.
    at: Instant,
    pub(super) wait: Duration,
}

/// The size of the smallest object that is left out, by class.
#[derive(Default)]
struct SmallestByClass {
    usual: Option<usize>,
    other: Option<usize>,
}

/// Which budget an object counts in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SizeClass {
    /// The budget for objects of usual size.
    Usual,
    Other,
}

impl SizeClass {
    fn of<K: Weighs>(object: &K) -> Self {
        if object.is_usual() {
            Self::Usual
        } else {
            Self::Other
        }
    }
}

impl SmallestByClass {
    fn of(&mut self, class: SizeClass) -> &mut Option<usize> {
        match class {
            SizeClass::Usual => &mut self.usual,
            SizeClass::Other => &mut self.other,
        }
    }
}

impl Shortage {
    fn new() -> Self {
        Self {
            smallest: SmallestByClass::default(),
            count: 0,
            wait: LOOK.0,
            at: Instant::now() + LOOK.0,
        }
    }
}

struct Entry {
    bytes: usize,
    class: SizeClass,
    /// The last list that contained it.
    list: u64,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Kept,
    /// It exceeds the budget.
    LeftOut {
        was_kept: bool,
    },
}

impl Account {
    pub(super) fn new(budget: Budget, usual: Budget) -> Self {
        Self {
            budget,
            usual,
            kept: HashMap::new(),
            shortage: HashMap::new(),
            before: HashMap::new(),
            lists: 0,
            listing: true,
        }
    }

    fn budget_of(&self, class: SizeClass) -> &Budget {
        match class {
            SizeClass::Usual => &self.usual,
            SizeClass::Other => &self.budget,
        }
    }

    pub(super) fn admit<K: Weighs>(&mut self, object: &K) -> Fate {
        let (namespace, name) = key_of(object);
        let entry = Entry {
            bytes: object.bytes().saturating_add(ENTRY),
            class: SizeClass::of(object),
            list: self.lists,
        };
        let known = self.kept.get(&namespace).and_then(|kept| kept.get(&name));
        let known = known.map(|known| (known.bytes, known.class));
        if let Some(class) = self.admit_to(&namespace, known, &entry) {
            let entry = Entry { class, ..entry };
            self.kept.entry(namespace).or_default().insert(name, entry);
            return Fate::Kept;
        }
        self.forget(&namespace, &name);
        let shortage = self.shortage.entry(namespace).or_insert_with(Shortage::new);
        shortage.count = shortage.count.saturating_add(1);
        let smallest = shortage.smallest.of(entry.class);
        *smallest = Some(smallest.map_or(entry.bytes, |smallest| smallest.min(entry.bytes)));
        Fate::LeftOut {
            was_kept: known.is_some(),
        }
    }

    /// Takes room for an object, of which `known` was kept before; returns the budget that it now
    /// counts in. An object that changes its class stays in its budget if the other one has no
    /// room.
    fn admit_to(
        &self,
        namespace: &str,
        known: Option<(usize, SizeClass)>,
        entry: &Entry,
    ) -> Option<SizeClass> {
        let moves = known.filter(|(_, before)| *before != entry.class);
        let stays = known.filter(|_| moves.is_none()).map(|(bytes, _)| bytes);
        let budget = self.budget_of(entry.class);
        if budget.takes(namespace, stays, entry.bytes) {
            if let Some((bytes, before)) = moves {
                self.budget_of(before).release(namespace, bytes);
            }
            return Some(entry.class);
        }
        let (bytes, before) = moves?;
        let budget = self.budget_of(before);
        budget
            .takes(namespace, Some(bytes), entry.bytes)
            .then_some(before)
    }

    pub(super) fn forget(&mut self, namespace: &str, name: &str) {
        let Some(kept) = self.kept.get_mut(namespace) else {
            return;
        };
        let entry = kept.remove(name);
        if kept.is_empty() {
            self.kept.remove(namespace);
        }
        if let Some(entry) = entry {
            self.budget_of(entry.class).release(namespace, entry.bytes);
        }
    }

    pub(super) fn begin_list(&mut self) {
        self.lists += 1;
        self.listing = true;
        // An interrupted list showed only a part of the objects, so the waits from before it still
        // apply.
        for (namespace, shortage) in std::mem::take(&mut self.shortage) {
            self.before.entry(namespace).or_insert(shortage);
        }
    }

    pub(super) fn end_list(&mut self) {
        self.listing = false;
        let before = std::mem::take(&mut self.before);
        for (namespace, shortage) in &mut self.shortage {
            if let Some(before) = before.get(namespace) {
                shortage.wait = before.wait.saturating_mul(2).min(LOOK.1);
            }
            shortage.at = Instant::now() + shortage.wait;
        }
        let (budget, usual, list) = (&self.budget, &self.usual, self.lists);
        self.kept.retain(|namespace, kept| {
            kept.retain(|_, entry| {
                let is_there = entry.list == list;
                if !is_there {
                    let budget = match entry.class {
                        SizeClass::Usual => usual,
                        SizeClass::Other => budget,
                    };
                    budget.release(namespace, entry.bytes);
                }
                is_there
            });
            !kept.is_empty()
        });
    }

    /// True if objects are left out and no list is running that may show them.
    pub(super) fn waits(&self) -> bool {
        !self.shortage.is_empty() && !self.listing
    }

    /// True if a list may show objects that are left out, or which JobSets are complete again.
    pub(super) fn needs_list(&self) -> bool {
        let now = Instant::now();
        self.shortage.iter().any(|(namespace, shortage)| {
            let is_room = |class: SizeClass, smallest: Option<usize>| {
                smallest.is_some_and(|smallest| self.budget_of(class).has(namespace, smallest))
            };
            let SmallestByClass { usual, other } = shortage.smallest;
            let is_lost = shortage.count > left_out::MOST;
            shortage.at <= now
                && (is_lost || is_room(SizeClass::Usual, usual) || is_room(SizeClass::Other, other))
        })
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for (namespace, kept) in &self.kept {
            for entry in kept.values() {
                self.budget_of(entry.class).release(namespace, entry.bytes);
            }
        }
    }
}

pub(super) fn key_of<K: Weighs>(object: &K) -> (String, String) {
    let namespace = object.namespace().unwrap_or_default().into_owned();
    (namespace, object.name().unwrap_or_default().into_owned())
}
