//! Puts the agent's binary where worker containers can mount it from.
//!
//! It lives in a directory named by its content, so that a daemon of another version leaves what containers run from untouched, and a mounted
//! directory never changes under them.

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

/// Copies `binary` to `<state_dir>/bin/<hash>/lockstep-pod-agent`, unless it is there; returns that directory.
///
/// # Errors
/// When the file system refuses.
pub fn install(binary: &Path, state_dir: &Path) -> Result<PathBuf, InstallError> {
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
    let target = dir.join(NAME);
    if fs::read(&target).is_ok_and(|present| present == content) {
        return Ok(dir);
    }
    let fresh = dir.join(format!(".{NAME}.new"));
    write(&fresh, &content).map_err(at(&fresh))?;
    fs::rename(&fresh, &target).map_err(at(&target))?;
    Ok(dir)
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file: File = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(path)?;
    file.write_all(content)?;
    // The umask may have taken something away.
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
        let one = install(&binary, &state).unwrap();
        assert_eq!(one, install(&binary, &state).unwrap());
        fs::write(&binary, "two").unwrap();
        let two = install(&binary, &state).unwrap();
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
        let installed = install(&binary, dir.path()).unwrap().join(NAME);
        fs::write(&installed, "on").unwrap();
        install(&binary, dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&installed).unwrap(), "one");
    }

    #[test]
    fn a_missing_binary_is_named() {
        let error = install(Path::new("/nonexistent/agent"), Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/agent"), "{error}");
    }
}
