//! Records on disk about workers without an agent, so that after a crash the daemon neither stops a
//! container twice nor forgets to stop it.
//!
//! One file per pod, `<state-dir>/plain/<pod uid>.json`, replaced by renaming. Neither the
//! directory nor containers outlive the node's boot.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::worker::types::{BootNanos, ContainerId, Epoch, Generation, PodUid};

const SUFFIX: &str = ".json";
/// Longest file that is read, in bytes: far more than the records of one pod.
const MAX_FILE: u64 = 1 << 20;

/// One worker of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The newest container whose generation is known.
    pub container: ContainerId,
    /// Its attempt: how many containers of this worker came before it.
    pub attempt: u32,
    /// Its generation.
    pub generation: Generation,
    /// The generation of the container after it, once this one is to end, or has ended, for it.
    pub next: Option<Generation>,
    /// A later container that was created before this time belongs to a generation below `next`.
    /// Older daemons wrote the time of another clock, under another name.
    #[serde(rename = "next_since_boot", default)]
    pub next_since: BootNanos,
    /// Counted restarts, as known with the newest of these generations.
    #[serde(rename = "counter")]
    pub counted_restarts: u64,
    /// The epoch under which this was ordered.
    pub epoch: Epoch,
}

/// The records of one pod, by container name.
pub type Records = BTreeMap<String, Record>;

/// Stores records.
pub trait Journal {
    /// Replaces the records of a pod.
    ///
    /// # Errors
    /// When they could not be stored; the former ones then stay.
    fn write(&self, pod: &PodUid, records: &Records) -> io::Result<()>;

    /// Removes the records of a pod that is gone.
    fn erase(&self, pod: &PodUid);
}

/// Records as files.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
}

impl Files {
    /// Files below `<state_dir>/plain`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        let dir = state_dir.join("plain");
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// The records of former daemons. Unreadable ones are left out: their containers count as
    /// having no generation yet.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn read(&self) -> io::Result<BTreeMap<PodUid, Records>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(uid) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) else {
                continue;
            };
            match read(&entry.path()) {
                Ok(records) => drop(all.insert(PodUid::from(uid), records)),
                Err(error) => warn!(pod = uid, %error, "records of a pod cannot be read"),
            }
        }
        Ok(all)
    }

    fn path(&self, pod: &PodUid) -> io::Result<PathBuf> {
        let uid = pod.as_str();
        let is_name = !uid.is_empty()
            && uid
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_name {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("pod uid {uid:?} cannot name a file"),
            ));
        }
        Ok(self.dir.join(format!("{uid}{SUFFIX}")))
    }
}

fn read(path: &Path) -> io::Result<Records> {
    let mut text = Vec::new();
    fs::File::open(path)?.take(MAX_FILE).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

impl Journal for Files {
    fn write(&self, pod: &PodUid, records: &Records) -> io::Result<()> {
        let path = self.path(pod)?;
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(records)?)?;
        fs::rename(&fresh, &path)
    }

    fn erase(&self, pod: &PodUid) {
        let erased = self.path(pod).and_then(fs::remove_file);
        match erased {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(%pod, %error, "cannot remove the records of a pod");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn records(generation: u64) -> Records {
        let record = Record {
            container: "c1".into(),
            attempt: 2,
            generation: Generation(generation),
            next: Some(Generation(generation + 1)),
            next_since: BootNanos(1),
            counted_restarts: 3,
            epoch: Epoch(7),
        };
        [("worker".to_owned(), record)].into()
    }

    #[test]
    fn the_next_daemon_reads_what_was_written_last() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        assert_eq!(files.read().unwrap(), BTreeMap::new());
        files.write(&"a".into(), &records(1)).unwrap();
        files.write(&"a".into(), &records(2)).unwrap();
        files.write(&"b".into(), &records(9)).unwrap();
        files.erase(&"b".into());
        files.erase(&"never-there".into());
        let next = Files::open(dir.path()).unwrap();
        assert_eq!(next.read().unwrap(), BTreeMap::from([("a".into(), records(2))]));
    }

    /// The next version reads what this one has written, and the other way round.
    #[test]
    fn the_names_in_the_files_stay() {
        let text = serde_json::to_string(&records(1)).unwrap();
        let names = [
            "container",
            "attempt",
            "generation",
            "next",
            "next_since_boot",
            "counter",
            "epoch",
        ];
        assert!(
            names.iter().all(|name| text.contains(&format!("\"{name}\":"))),
            "{text}"
        );
    }

    #[test]
    fn damaged_records_are_left_out_and_nothing_is_written_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        files.write(&"a".into(), &records(1)).unwrap();
        fs::write(dir.path().join("plain/b.json"), "{\"worker\": {").unwrap();
        fs::write(dir.path().join("plain/c.new"), "").unwrap();
        // Nor does one of them keep the daemon from starting.
        fs::create_dir(dir.path().join("plain/d.json")).unwrap();
        assert_eq!(files.read().unwrap().len(), 1);
        for uid in ["", "../a", "a/b"] {
            files.write(&uid.into(), &records(1)).unwrap_err();
        }
    }

    fn record() -> impl Strategy<Value = Record> {
        let numbers = any::<(u32, u64, Option<u64>, u64, u64, u64)>();
        (".{0,8}", numbers).prop_map(|(container, numbers)| Record {
            container: container.into(),
            attempt: numbers.0,
            generation: Generation(numbers.1),
            next: numbers.2.map(Generation),
            next_since: BootNanos(numbers.3),
            counted_restarts: numbers.4,
            epoch: Epoch(numbers.5),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn records_are_read_as_they_were_written_unless_they_are_damaged(
            records in prop::collection::btree_map("[a-z]{1,4}", record(), 0..3),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            garbage in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let files = Files::open(dir.path()).unwrap();
            files.write(&"a".into(), &records).unwrap();
            let mut damaged = fs::read(dir.path().join("plain/a.json")).unwrap();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            fs::write(dir.path().join("plain/b.json"), &damaged).unwrap();
            fs::write(dir.path().join("plain/c.json"), &garbage).unwrap();
            let read = files.read().unwrap();
            prop_assert_eq!(read.get(&"a".into()), Some(&records));
            let same = |bytes: &[u8]| serde_json::from_slice::<Records>(bytes).ok();
            prop_assert_eq!(read.get(&"b".into()).cloned(), same(&damaged));
            prop_assert_eq!(read.get(&"c".into()).cloned(), same(&garbage));
        }
    }
}
