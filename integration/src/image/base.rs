//! The images that every cluster has.

use std::path::{Path, PathBuf};

use super::{Image, ImageError, io};
use crate::command::{run, run_blocking};

/// The image of pod sandboxes.
pub const PAUSE: &str = "localhost/pause:1";

/// `localhost/pause:1`, compiled from `testbed/pause.c`.
pub async fn pause() -> Result<Image, ImageError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/pause.c");
    let dir = tempfile::tempdir().map_err(io(Path::new("/tmp")))?;
    let binary = dir.path().join("pause");
    let arguments = ["-static", "-Os", "-s", "-o"]
        .map(PathBuf::from)
        .into_iter()
        .chain([binary.clone(), source]);
    run("gcc", arguments).await?;
    let content = std::fs::read(&binary).map_err(io(&binary))?;
    Ok(Image::new(PAUSE)
        .bytes("/pause", content, 0o755)
        .entrypoint(["/pause"]))
}

/// `localhost/busybox:1`: Debian's static busybox with a link for each of its commands.
pub fn busybox() -> Result<Image, ImageError> {
    let image = Image::new("localhost/busybox:1").env("PATH", "/bin").cmd(["sh"]);
    with_busybox(image)
}

/// Adds busybox to an image, under `/bin`.
pub(super) fn with_busybox(image: Image) -> Result<Image, ImageError> {
    let local = ["/bin/busybox", "/usr/bin/busybox"]
        .map(Path::new)
        .into_iter()
        .find(|path| path.exists());
    let Some(local) = local else {
        return Err(ImageError::Missing {
            path: "/bin/busybox".into(),
            how: "apt-get install busybox-static".to_owned(),
        });
    };
    let mut image = image.file("/bin/busybox", local)?;
    for command in run_blocking(local, ["--list"])?
        .lines()
        .filter(|name| *name != "busybox")
    {
        let path = Path::new("/bin").join(command);
        if !image.files.contains_key(&path) {
            image = image.symlink(path, "busybox");
        }
    }
    Ok(image
        .bytes(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
            0o644,
        )
        .bytes("/etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644))
}
