//! Places of those who watch at the same time.
//!
//! Who may watch one namespace is often a tenant, and who may watch all of them a platform. So: one namespace has a part of the places, and all
//! watches of single namespaces together leave some to those of everything. Nobody waits: who finds no place is told so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::refused::{Reason, Refused};

/// Watches over all callers.
const ALL: usize = 256;
/// Of these, watches of single namespaces, whichever they are.
const OF_NAMESPACES: usize = 192;
/// Of these, watches of one namespace. It may be the only one that a platform uses, and each of its JobSets be watched by name.
const OF_ONE: usize = 128;

/// The places, and whose they are.
#[derive(Clone, Default)]
pub(super) struct Places(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    /// Watches of everything.
    wide: usize,
    /// Watches of single namespaces, all of them and by namespace.
    narrow: usize,
    of: HashMap<String, usize>,
}

/// The place of one watch, until it is dropped.
pub(super) struct Place {
    places: Places,
    namespace: String,
}

impl Places {
    /// A place for one who watches this namespace (empty: all).
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn take(&self, namespace: &str) -> Result<Place, Refused> {
        let mut taken = self.taken();
        let none = |limit: usize, of: &str| {
            let message = format!("more than {limit} watches{of} at once");
            Err(Refused::new(Reason::TooManyWatches, message).with("limit", limit.to_string()))
        };
        if taken.wide + taken.narrow >= ALL {
            return none(ALL, "");
        }
        if namespace.is_empty() {
            taken.wide += 1;
        } else {
            let of_it = taken.of.get(namespace).copied().unwrap_or_default();
            if of_it >= OF_ONE {
                return none(OF_ONE, " of one namespace");
            }
            if taken.narrow >= OF_NAMESPACES {
                return none(OF_NAMESPACES, " of single namespaces");
            }
            taken.narrow += 1;
            taken.of.insert(namespace.to_owned(), of_it + 1);
        }
        Ok(Place {
            places: self.clone(),
            namespace: namespace.to_owned(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Nothing that holds this lock can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if self.namespace.is_empty() {
            taken.wide -= 1;
            return;
        }
        taken.narrow -= 1;
        if let Some(of_it) = taken.of.get_mut(&self.namespace) {
            *of_it -= 1;
            if *of_it == 0 {
                taken.of.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as there are for watches of this namespace.
    fn fill(places: &Places, namespace: &str) -> Vec<Place> {
        (0..2 * ALL).map_while(|_| places.take(namespace).ok()).collect()
    }

    #[test]
    fn one_namespace_keeps_no_other_out() {
        let places = Places::default();
        let greedy = fill(&places, "greedy");
        assert_eq!(greedy.len(), OF_ONE);
        assert!(places.take("greedy").is_err());
        let _other = places.take("other").unwrap();
        let _everything = places.take("").unwrap();
        drop(greedy);
        places.take("greedy").unwrap();
    }

    #[test]
    fn watches_of_namespaces_leave_places_to_those_of_everything() {
        let places = Places::default();
        let narrow: Vec<Vec<Place>> = (0..ALL).map(|n| fill(&places, &format!("n{n}"))).collect();
        assert_eq!(narrow.iter().map(Vec::len).sum::<usize>(), OF_NAMESPACES);
        let wide = fill(&places, "");
        assert_eq!(wide.len(), ALL - OF_NAMESPACES);
        drop((narrow, wide));
        let taken = places.taken();
        assert_eq!((taken.wide, taken.narrow, taken.of.len()), (0, 0, 0));
    }

    #[test]
    fn all_places_may_be_those_of_everything() {
        let places = Places::default();
        let wide = fill(&places, "");
        assert_eq!(wide.len(), ALL);
        assert!(places.take("any").is_err());
    }
}
