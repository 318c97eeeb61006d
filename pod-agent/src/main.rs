//! The pod agent: PID 1 of a worker container.
//!
//! It owns the worker process: it starts it when the group is released, stops its whole process
//! tree when the group restarts, and starts it again, while the container around it lives on. It is
//! single-threaded and allocates next to nothing while idle.

mod args;
mod cgroup;
mod convert;
mod copy;
mod heartbeat;
mod link;
mod mounts;
mod procs;
mod sockets;
mod supervisor;
mod sys;
mod worker;

use std::process::ExitCode;

use lockstep_pod_agent::target;

use crate::args::{Invocation, parse};
use crate::supervisor::Supervisor;

/// Exit code of an agent that could not do its work at all; it says why on stderr.
const UNUSABLE: u8 = 125;

fn main() -> ExitCode {
    let args = match parse(std::env::args_os().skip(1)) {
        Ok(Invocation::Run(args)) => args,
        Ok(Invocation::Print(text)) => {
            worker::say(&text);
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Copy(dir)) => {
            return match copy::to(&dir) {
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
