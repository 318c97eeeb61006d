//! Puts the agent's binary where worker containers can mount it from.
//!
//! Its directory is named by its content, so a daemon of another version does not touch what
//! containers run from, and a mounted directory never changes under them. A directory that no
//! container runs from and no daemon hands out is removed.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// Name of the binary.
const NAME: &str = "lockstep-pod-agent";
/// Hexadecimal digits of the content's hash in the directory's name.
const DIGITS: usize = 12;

/// Why the agent cannot be installed.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct InstallError {
    path: PathBuf,
    source: io::Error,
}

/// The agent that this daemon puts into containers. While this value lives, no other daemon removes
/// the agent.
#[derive(Debug)]
pub struct Installed {
    /// Its directory on the host.
    pub dir: PathBuf,
    /// The directory, locked: in a rollout two daemons may run at once.
    _lock: File,
}

/// Copies `binary` to `<state_dir>/bin/<hash>/lockstep-pod-agent`, unless it is there.
///
/// # Errors
/// When the file system refuses.
pub fn install(binary: &Path, state_dir: &Path) -> Result<Installed, InstallError> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| InstallError { path, source }
    };
    let content = fs::read(binary).map_err(at(binary))?;
    let mut name: String = Sha256::digest(&content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    name.truncate(DIGITS);
    let bin = state_dir.join("bin");
    let dir = bin.join(name);
    for part in [state_dir, &bin, &dir] {
        fs::create_dir_all(part).map_err(at(part))?;
        fs::set_permissions(part, Permissions::from_mode(0o755)).map_err(at(part))?;
    }
    let lock = File::open(&dir).map_err(at(&dir))?;
    lock.lock_shared().map_err(at(&dir))?;
    let target = dir.join(NAME);
    if fs::read(&target).is_ok_and(|present| present == content) {
        return Ok(Installed { dir, _lock: lock });
    }
    let fresh = dir.join(format!(".{NAME}.new"));
    write(&fresh, &content).map_err(at(&fresh))?;
    fs::rename(&fresh, &target).map_err(at(&target))?;
    Ok(Installed { dir, _lock: lock })
}

impl Installed {
    /// Removes the other agents that no container uses (`used`: directories of agents that
    /// containers mount) and that no other daemon holds. Returns the outcome of each removal; what
    /// the file system refuses is tried again the next time.
    pub fn prune(&self, used: &BTreeSet<PathBuf>) -> Vec<Result<PathBuf, InstallError>> {
        let bin = self.dir.parent().unwrap_or(&self.dir);
        let entries = match fs::read_dir(bin) {
            Ok(entries) => entries,
            Err(source) => {
                let path = bin.to_owned();
                return vec![Err(InstallError { path, source })];
            }
        };
        let mut removed = Vec::new();
        for entry in entries.flatten() {
            let dir = entry.path();
            if dir == self.dir || used.contains(&dir) || !dir.is_dir() {
                continue;
            }
            match remove_unless_held(&dir) {
                Ok(true) => removed.push(Ok(dir)),
                Ok(false) => {}
                // Another daemon was faster.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => removed.push(Err(InstallError { path: dir, source })),
            }
        }
        removed
    }
}

fn remove_unless_held(dir: &Path) -> io::Result<bool> {
    let lock = File::open(dir)?;
    if lock.try_lock().is_err() {
        return Ok(false);
    }
    fs::remove_dir_all(dir)?;
    Ok(true)
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file: File = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(path)?;
    file.write_all(content)?;
    // The umask may have removed permissions.
    file.set_permissions(Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_live_side_by_side() {
        let dir = tempfile::tempdir().unwrap();
        let (state, binary) = (dir.path().join("state"), dir.path().join("agent"));
        fs::write(&binary, "one").unwrap();
        let one = install(&binary, &state).unwrap().dir;
        assert_eq!(one, install(&binary, &state).unwrap().dir);
        fs::write(&binary, "two").unwrap();
        let two = install(&binary, &state).unwrap().dir;
        assert_ne!(one, two);
        assert_eq!(fs::read_to_string(one.join(NAME)).unwrap(), "one");
        let installed = two.join(NAME);
        assert_eq!(fs::read_to_string(&installed).unwrap(), "two");
        assert_eq!(
            fs::metadata(&installed).unwrap().permissions().mode() & 0o777,
            0o755
        );
        assert_eq!(fs::read_dir(&two).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_copy_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("agent");
        fs::write(&binary, "one").unwrap();
        let installed = install(&binary, dir.path()).unwrap().dir.join(NAME);
        fs::write(&installed, "on").unwrap();
        install(&binary, dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&installed).unwrap(), "one");
    }

    fn removed(own: &Installed, used: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
        own.prune(used).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn agents_that_no_container_and_no_daemon_uses_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("agent");
        let version = |content: &str| {
            fs::write(&binary, content).unwrap();
            install(&binary, dir.path()).unwrap()
        };
        let [mounted, forgotten] = ["mounted", "forgotten"].map(|content| version(content).dir);
        // The former daemon still runs, and may put its agent into the next container.
        let beside = version("beside");
        let own = version("own");
        let used = BTreeSet::from([mounted.clone(), "/elsewhere".into()]);
        fs::write(dir.path().join("no-directory"), "").unwrap();
        assert_eq!(removed(&own, &used), [forgotten]);
        assert!(removed(&own, &used).is_empty());
        for kept in [&mounted, &beside.dir, &own.dir] {
            assert!(kept.join(NAME).is_file(), "{}", kept.display());
        }
        let ended = beside.dir.clone();
        drop(beside);
        assert_eq!(removed(&own, &used), [ended]);
    }

    #[test]
    fn a_missing_binary_is_named() {
        let error = install(Path::new("/nonexistent/agent"), Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/agent"), "{error}");
    }
}
