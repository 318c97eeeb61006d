//! Puts this program where the containers of its pod find it: an init container does that if the
//! node daemon cannot.

use std::fs;
use std::io;
use std::path::Path;

/// Name of the program.
const NAME: &str = "lockstep-pod-agent";

/// Copies the running program into `dir`. A copy that is there may be running: it is replaced, not
/// changed.
///
/// # Errors
/// When the file system refuses.
pub(crate) fn to(dir: &Path) -> io::Result<()> {
    let fresh = dir.join(format!(".{NAME}.new"));
    fs::copy("/proc/self/exe", &fresh)?;
    fs::rename(&fresh, dir.join(NAME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_the_program_itself_and_may_be_made_again() {
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            to(dir.path()).unwrap();
            let copy = fs::read(dir.path().join(NAME)).unwrap();
            assert!(copy == fs::read("/proc/self/exe").unwrap());
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(to(&dir.path().join("missing")).is_err());
    }
}
