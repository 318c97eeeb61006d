//! The modules that standbys do not import ahead, since a standby has ended because of each.

/// Most modules that are left out. If more would have to be, there are no more standbys.
const MAX_SKIP: usize = 64;

/// The modules that are left out, in the order in which they were found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Skip(Vec<String>);

impl Skip {
    /// How many there are. A standby is told all that there are when it starts.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The names, as the hook reads them.
    pub(super) fn joined(&self) -> String {
        self.0.join(",")
    }

    /// Adds a module, since a standby has ended because of it. `told` is the number of modules that
    /// this standby was told to leave out. Returns false if another standby would fail like it.
    pub(super) fn add(&mut self, name: &str, told: usize) -> bool {
        let known = self.0.iter().position(|other| other == name);
        let in_vain = known.is_some_and(|at| at < told) || name.is_empty() || name.contains([',', ';']);
        let full = known.is_none() && self.0.len() >= MAX_SKIP;
        if known.is_none() && !full && !in_vain {
            self.0.push(name.to_owned());
        }
        !in_vain && !full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_that_was_left_out_is_not_found_again() {
        let mut skip = Skip::default();
        // Two standbys that were started before either had failed.
        assert!(skip.add("bad", 0) && skip.add("bad", 0));
        assert!(skip.add("worse.yet", 1));
        assert_eq!((skip.len(), skip.joined().as_str()), (2, "bad,worse.yet"));
        assert!(!skip.add("bad", 1));
        for odd in ["", "a,b", "a;b"] {
            assert!(!skip.add(odd, 2), "{odd}");
        }
        assert_eq!(skip.len(), 2);
    }

    #[test]
    fn modules_that_are_left_out_are_few() {
        let mut skip = Skip::default();
        for at in 0..MAX_SKIP {
            assert!(skip.add(&at.to_string(), at), "{at}");
        }
        assert!(!skip.add("more", MAX_SKIP));
        assert_eq!(skip.len(), MAX_SKIP);
    }
}
