//! Images with Python 3.13 of Debian 13: `localhost/torch:2` and `localhost/jax:1`.

use std::path::Path;

use super::base::with_busybox;
use super::python::add_tree;
use super::wheels::wheels;
use super::{Image, ImageError};
use crate::command::run;

/// The script that unpacks packages of Debian 13 into the cache.
const UNPACK_TRIXIE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/trixie/unpack");
/// JAX and what it needs.
const JAX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/jax/requirements.txt");

/// PyTorch 2.6 for CPUs with `torchrun`, and Python 3.13.
pub async fn torch2() -> Result<Image, ImageError> {
    // Debian builds PyTorch without libuv, and PyTorch asks for it unless told otherwise.
    let image = trixie("localhost/torch:2", &["python3-torch"]).await?;
    Ok(image.env("USE_LIBUV", "0"))
}

/// JAX for CPUs, from the wheels in `testbed/jax/requirements.txt`, and Python 3.13.
pub async fn jax() -> Result<Image, ImageError> {
    let mut image = trixie("localhost/jax:1", &["libstdc++6"]).await?;
    // pip itself runs on this machine's Python, for which it would refuse them.
    let options = ["--python-version", "3.13", "--ignore-requires-python"];
    let packages = wheels("jax", Path::new(JAX), &options).await?;
    let at = Path::new("/usr/local/lib/python3.13/dist-packages");
    add_tree(&mut image, &packages, at, &["bin"], &mut Vec::new())?;
    Ok(image)
}

/// Python 3.13 and these packages of Debian 13, with all that they need, and busybox as a shell.
async fn trixie(name: &str, packages: &[&str]) -> Result<Image, ImageError> {
    let folder = run(UNPACK_TRIXIE, packages).await?;
    let image = Image::new(name)
        .dated()
        .env("PATH", "/usr/bin:/bin")
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .cmd(["python3"])
        .symlink("/usr/bin/python", "python3");
    let mut image = with_busybox(image)?;
    let folder = Path::new(folder.trim());
    add_tree(&mut image, folder, Path::new("/"), &[], &mut Vec::new())?;
    Ok(image)
}
