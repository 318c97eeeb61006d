//! Python packages from the wheels of a list, unpacked into the cache once.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::python::interpreter;
use super::{ImageError, io};
use crate::command::run;
use crate::tools::cache_root;

/// The folder with the unpacked wheels that `requirements` lists with their hashes. It is named by
/// a hash of that list. `options` are further ones for pip.
pub(super) async fn wheels(name: &str, requirements: &Path, options: &[&str]) -> Result<PathBuf, ImageError> {
    let listed = fs::read(requirements).map_err(io(requirements))?;
    let hash: String = Sha256::digest(&listed)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let root = cache_root()
        .map_err(|error| ImageError::Missing {
            path: "the cache".into(),
            how: error.to_string(),
        })?
        .join(name);
    let done = root.join(&hash);
    if done.is_dir() {
        return Ok(done);
    }
    fs::create_dir_all(&root).map_err(io(&root))?;
    // Unpacked beside it and renamed when complete, so that an interrupted run leaves no such
    // folder.
    let part = tempfile::tempdir_in(&root).map_err(io(&root))?;
    let target = part.path().join("packages");
    let args = ["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"];
    let args = args
        .iter()
        .chain(&["--only-binary=:all:"])
        .chain(options)
        .map(PathBuf::from)
        .chain(["--requirement".into(), requirements.to_owned()])
        .chain(["--target".into(), target.clone()]);
    run(interpreter()?, args).await?;
    match fs::rename(&target, &done) {
        // Another process was faster.
        Err(_) if done.is_dir() => Ok(done),
        renamed => renamed.map(|()| done).map_err(io(&target)),
    }
}
