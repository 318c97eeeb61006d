//! `localhost/ray:2`: Ray from the wheels in `testbed/ray/requirements.txt`, on Debian's Python.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::python::{add_libraries, add_tree, interpreter, python};
use super::{Image, ImageError, io};
use crate::command::run;
use crate::tools::cache_root;

const REQUIREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/ray/requirements.txt");
/// The folder in which Debian's Python looks for other packages.
const PACKAGES: &str = "/usr/local/lib/python3.11/dist-packages";
/// The shell with which Ray starts its processes.
const SHELL: &str = "/usr/bin/bash";
/// Large parts that tests do not need.
const LEFT_OUT: [&str; 3] = ["bin", "jars", "rllib"];
/// The command `ray` for the image's interpreter.
const COMMAND: &str =
    "#!/usr/bin/python3\nimport sys\nfrom ray.scripts.scripts import main\nsys.exit(main())\n";

/// Ray with its dashboard. Its wheels are unpacked into the cache once.
pub async fn ray() -> Result<Image, ImageError> {
    let packages = packages().await?;
    let mut image = python()
        .await?
        .named("localhost/ray:2")
        .env("RAY_USAGE_STATS_ENABLED", "0")
        .bytes("/usr/bin/ray", COMMAND, 0o755)
        .file(SHELL, SHELL)?
        .symlink("/bin/bash", SHELL);
    let mut binaries = vec![SHELL.into()];
    add_tree(
        &mut image,
        &packages,
        Path::new(PACKAGES),
        &LEFT_OUT,
        &mut binaries,
    )?;
    let core = packages.join("ray/core/src/ray");
    binaries.extend(["gcs/gcs_server", "raylet/raylet"].map(|program| core.join(program)));
    add_libraries(&mut image, &binaries)?;
    Ok(image)
}

/// The folder with the unpacked wheels, which is named by a hash of the list of wheels.
async fn packages() -> Result<PathBuf, ImageError> {
    let listed = fs::read(REQUIREMENTS).map_err(io(Path::new(REQUIREMENTS)))?;
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
        .join("ray");
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
        .into_iter()
        .chain(["--only-binary=:all:", "--requirement", REQUIREMENTS, "--target"])
        .map(PathBuf::from)
        .chain([target.clone()]);
    run(interpreter()?, args).await?;
    match fs::rename(&target, &done) {
        // Another process was faster.
        Err(_) if done.is_dir() => Ok(done),
        renamed => renamed.map(|()| done).map_err(io(&target)),
    }
}
