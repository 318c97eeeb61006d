//! The pod agent: PID 1 of a worker container.
//!
//! It owns the worker process: it starts it when the group is released, stops its whole process
//! tree when the group restarts, and starts it again, while the container around it lives on. It is
//! single-threaded and allocates next to nothing while idle.

mod args;
mod cgroup;
mod convert;
mod heartbeat;
mod link;
mod mounts;
mod procs;
mod shim;
mod sockets;
mod standby;
mod supervisor;
mod sys;
mod worker;

use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use lockstep_pod_agent::machine;

use crate::args::{Invocation, parse};
use crate::supervisor::Supervisor;

/// Name of this program.
const NAME: &str = "lockstep-pod-agent";
/// Exit code of an agent that could not do its work at all; it says why on stderr.
const UNUSABLE: u8 = 125;

fn main() -> ExitCode {
    if let Some(called) = sys::called().and_then(|path| shim::called(&path)) {
        return shim::run(&called);
    }
    let args = match parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Run(args)) => args,
        Ok(Invocation::Print(text)) => {
            worker::say(&text);
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Copy(dir)) => {
            return match copy_to(&dir) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    worker::say(&format!("cannot copy the agent to {}: {error}", dir.display()));
                    ExitCode::from(UNUSABLE)
                }
            };
        }
        Err(error) => {
            worker::say(&format!("{error}; see --help"));
            return ExitCode::from(UNUSABLE);
        }
    };
    match Supervisor::new(args).and_then(Supervisor::run) {
        Ok(code) => std::process::exit(code),
        Err(error) => {
            worker::say(&error.to_string());
            ExitCode::from(UNUSABLE)
        }
    }
}

/// Copies the running program into `dir`, where the containers of its pod find it: an init
/// container does that if the node daemon cannot. An earlier copy may be running, so it is
/// replaced, not changed.
///
/// # Errors
/// When the file system refuses.
fn copy_to(dir: &Path) -> io::Result<()> {
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
            copy_to(dir.path()).unwrap();
            let copy = fs::read(dir.path().join(NAME)).unwrap();
            assert!(copy == fs::read("/proc/self/exe").unwrap());
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(copy_to(&dir.path().join("missing")).is_err());
    }
}
