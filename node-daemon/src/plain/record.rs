//! What is written down of workers without an agent, so that a daemon that was killed neither stops a container twice nor forgets to.
//!
//! One file per pod, `<state-dir>/plain/<pod uid>.json`, replaced by renaming. The directory does not outlive the node's boot, and neither do
//! containers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::worker::types::{BootNanos, ContainerId, Epoch, Generation, PodUid};

const SUFFIX: &str = ".json";
/// No pod has so many workers that their records are larger, in bytes.
const LARGEST: u64 = 1 << 20;

/// One worker of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The newest container whose generation is known.
    pub container: ContainerId,
    /// Its attempt: how many containers of this worker came before it.
    pub attempt: u32,
    /// Its generation.
    pub generation: Generation,
    /// The generation of the container after it, once it is to end, or has ended, for that.
    pub next: Option<Generation>,
    /// A container after it that was created before this time is older than `next`. Daemons of before
    /// have written another clock's time, under another name.
    #[serde(rename = "next_since_boot", default)]
    pub next_since: BootNanos,
    /// Counted restarts, as known with the newest of these generations.
    pub counter: u64,
    /// The epoch under which this was ordered.
    pub epoch: Epoch,
}

/// The records of one pod, by container name.
pub type Records = BTreeMap<String, Record>;

/// Where records are kept.
pub trait Journal {
    /// Replaces the records of a pod.
    ///
    /// # Errors
    /// When they are not kept; then those of before are.
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

    /// All records of before. What cannot be read is left out: its containers are taken for ones that nobody has told a generation yet.
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
    fs::File::open(path)?.take(LARGEST).read_to_end(&mut text)?;
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
mod tests;
