//! The highest epoch under which a hub has welcomed this node, over all daemons since the machine
//! booted.
//!
//! The daemon trusts no other record of former leaders: neither a pod nor an agent can change this
//! one. It is one file, `<state-dir>/epoch`, which only root can read. It is replaced by renaming
//! before anything is done under a higher epoch. Neither the directory nor agents outlive the
//! node's boot.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::types::Epoch;

const NAME: &str = "epoch";
/// Digits of the largest number, and a line feed.
const MAX_TEXT: u64 = 21;

/// Records the highest epoch.
pub trait Epochs {
    /// Records it.
    ///
    /// # Errors
    /// When it could not be recorded; the former one then stays.
    fn keep(&self, epoch: Epoch) -> io::Result<()>;
}

/// The epoch as a file.
#[derive(Debug)]
pub struct EpochFile {
    path: PathBuf,
}

impl EpochFile {
    /// The file in `state_dir`.
    #[must_use]
    pub fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join(NAME),
        }
    }

    /// The highest epoch of former daemons; 0 if there was none.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no number.
    pub fn read(&self) -> io::Result<Epoch> {
        let file = match fs::File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Epoch::default()),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(MAX_TEXT).read_to_string(&mut text)?;
        text.trim().parse().map(Epoch).map_err(io::Error::other)
    }
}

impl Epochs for EpochFile {
    fn keep(&self, epoch: Epoch) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        // The file is replaced, not overwritten: a former one's mode would stay.
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        writeln!(file, "{epoch}")?;
        fs::rename(&fresh, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_highest_epoch_outlives_the_daemon_and_only_root_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = EpochFile::new(dir.path());
        assert_eq!(file.read().unwrap(), Epoch(0));
        for epoch in [7, u64::MAX].map(Epoch) {
            file.keep(epoch).unwrap();
            assert_eq!(EpochFile::new(dir.path()).read().unwrap(), epoch);
        }
        let path = dir.path().join(NAME);
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_rest_of_an_interrupted_write_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = EpochFile::new(dir.path());
        file.keep(Epoch(7)).unwrap();
        fs::write(dir.path().join("epoch.new"), "9").unwrap();
        assert_eq!(file.read().unwrap(), Epoch(7));
        file.keep(Epoch(8)).unwrap();
        assert_eq!(file.read().unwrap(), Epoch(8));
    }

    #[test]
    fn a_damaged_record_is_an_error_and_not_a_number() {
        let dir = tempfile::tempdir().unwrap();
        for damaged in ["", "12x", "-1", "999999999999999999999999"] {
            fs::write(dir.path().join(NAME), damaged).unwrap();
            assert!(EpochFile::new(dir.path()).read().is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn an_epoch_that_cannot_be_recorded_is_an_error() {
        assert!(EpochFile::new(Path::new("/nonexistent")).keep(Epoch(1)).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_the_number_that_they_spell(
            bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..40), "[0-9 \n+-]{0,24}".prop_map(String::into_bytes)],
        ) {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(NAME), &bytes).unwrap();
            let file = EpochFile::new(dir.path());
            if let Ok(epoch) = file.read() {
                let text = String::from_utf8(bytes).unwrap();
                prop_assert!(text.trim_start().trim_start_matches(['+', '0']).starts_with(&epoch.to_string()) || epoch == Epoch(0));
            }
            // It can be written again, whatever was there.
            file.keep(Epoch(3)).unwrap();
            prop_assert_eq!(file.read().unwrap(), Epoch(3));
        }
    }
}
