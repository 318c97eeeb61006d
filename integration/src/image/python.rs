//! `localhost/python:3`, which is Debian's Python, and `localhost/torch:1`, which adds PyTorch.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::base::with_busybox;
use super::{Entry, Image, ImageError, io};
use crate::command::{run, run_blocking};

/// Large modules that workers in containers do not need.
const LEFT_OUT: [&str; 7] = [
    "test",
    "ensurepip",
    "idlelib",
    "tkinter",
    "lib2to3",
    "pydoc_data",
    "dist-packages",
];

/// The script that unpacks PyTorch into the cache.
const UNPACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/torch/unpack");

/// Debian's `/usr/bin/python3`.
pub(super) fn interpreter() -> Result<PathBuf, ImageError> {
    let local = Path::new("/usr/bin/python3");
    local.canonicalize().map_err(|_| ImageError::Missing {
        path: local.to_owned(),
        how: "apt-get install python3".to_owned(),
    })
}

/// [`interpreter`] with its standard library, the shared libraries of both, and busybox as a shell.
pub async fn python() -> Result<Image, ImageError> {
    let interpreter = interpreter()?;
    let asked = run(
        &interpreter,
        [
            "-I",
            "-c",
            "import sysconfig; print(sysconfig.get_path('stdlib'))",
        ],
    )
    .await?;
    let library = PathBuf::from(asked.trim());

    let mut image = Image::new("localhost/python:3")
        // Python ignores its compiled modules if the modification times of the sources differ.
        .dated()
        .env("PATH", "/usr/bin:/bin")
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .cmd(["python3"])
        .file("/usr/bin/python3", &interpreter)?
        .symlink("/usr/bin/python", "python3");
    image = with_busybox(image)?;
    let mut binaries = vec![interpreter];
    add_tree(&mut image, &library, &library, &LEFT_OUT, &mut binaries)?;
    add_libraries(&mut image, &binaries)?;
    Ok(image)
}

/// PyTorch for CPUs with NumPy and the libraries of both, which `testbed/torch/unpack` unpacks into
/// the cache once.
pub async fn torch() -> Result<Image, ImageError> {
    let folder = run(UNPACK, [""; 0]).await?;
    let mut image = python().await?.named("localhost/torch:1");
    let unpacked = PathBuf::from(folder.trim()).join("usr/lib");
    // The whole folder, since its libraries need the files beside them.
    let mut binaries = Vec::new();
    add_tree(&mut image, &unpacked, Path::new("/usr/lib"), &[], &mut binaries)?;
    Ok(image)
}

/// Adds a folder as `at`. Extension modules are also appended to `binaries`.
pub(super) fn add_tree(
    image: &mut Image,
    dir: &Path,
    at: &Path,
    left_out: &[&str],
    binaries: &mut Vec<PathBuf>,
) -> Result<(), ImageError> {
    for entry in fs::read_dir(dir).map_err(io(dir))? {
        let entry = entry.map_err(io(dir))?;
        let (path, name) = (entry.path(), entry.file_name());
        let at = at.join(&name);
        let name = name.to_string_lossy();
        if left_out.contains(&name.as_ref()) || name.starts_with("config-") {
            continue;
        }
        let kind = entry.file_type().map_err(io(&path))?;
        if kind.is_dir() {
            add_tree(image, &path, &at, left_out, binaries)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(io(&path))?;
            image.files.insert(at, Entry::Symlink(target));
        } else {
            if name.ends_with(".so") {
                binaries.push(path.clone());
            }
            image.add_file(at, path)?;
        }
    }
    Ok(())
}

/// Adds the shared libraries that `binaries` need, at their paths on this machine.
pub(super) fn add_libraries(image: &mut Image, binaries: &[PathBuf]) -> Result<(), ImageError> {
    for shared in shared_libraries(binaries)? {
        let source = shared.canonicalize().map_err(io(&shared))?;
        image.add_file(shared, source)?;
    }
    Ok(())
}

/// All files that the loader would load for `binaries`, including the loader. Extension modules
/// whose libraries are not installed here cannot be imported in the image either.
fn shared_libraries(binaries: &[PathBuf]) -> Result<BTreeSet<PathBuf>, ImageError> {
    let listed = run_blocking("ldd", binaries)?;
    Ok(parse_ldd(&listed))
}

/// The paths in the output of `ldd`, such as `libz.so.1 => /lib/…/libz.so.1 (0x…)` and
/// `/lib64/ld-….so.2 (0x…)`.
pub(super) fn parse_ldd(text: &str) -> BTreeSet<PathBuf> {
    text.lines()
        .filter(|line| line.starts_with(['\t', ' ']))
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect()
}
