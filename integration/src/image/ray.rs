//! `localhost/ray:2`: Ray from the wheels in `testbed/ray/requirements.txt`, on Debian's Python.

use std::path::Path;

use super::python::{add_libraries, add_tree, python};
use super::wheels::wheels;
use super::{Image, ImageError};

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
    let packages = wheels("ray", Path::new(REQUIREMENTS), &[]).await?;
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
