//! Handles standbys that have ended.

use super::process::{Fault, State};
use super::program::Program;
use super::{ENDED, Standbys, is_sent};
use crate::machine::Exit;

/// The role of a reaped process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A standby that waited, or still imported.
    Waiting { hopeless: bool },
    /// The released standby, before it ran anything of the worker.
    Refused,
    /// The worker, which began as a standby, and ended before its confirmation was read.
    Confirmed,
}

/// How one has ended, for people.
pub(super) fn told(which: &str, exit: Exit, when: &str) -> String {
    match exit {
        Exit::Code(code) => format!("{which} ended with code {code}{when}"),
        Exit::Signal(signal) => format!("{which} was killed by signal {signal}{when}"),
    }
}

impl Standbys {
    /// The role of a reaped process, if it was one of these.
    pub(crate) fn reaped(&mut self, pid: i32, exit: Exit) -> Option<Ended> {
        if self.ranks.as_mut().is_some_and(|ranks| ranks.reaped(pid, exit)) {
            return None;
        }
        let mut process = self.process.take_if(|process| process.pid == pid)?;
        let was_released = process.state == State::Released;
        process.hear_out();
        let before_parking = process.parks && process.state == State::Warming;
        if was_released && process.state == State::Confirmed {
            return Some(Ended::Confirmed);
        }
        // Processes that it has started end with it. Its PID is not used again so soon.
        process.kill_group();
        self.look_at = None;
        match process.cause(is_sent(exit)) {
            Some(fault) => {
                if let Fault::Module { name, .. } = &fault {
                    self.leave_out(name);
                }
                self.reason = fault.told();
            }
            // The reason is known already, such as a lack of memory.
            None if !self.reason.is_empty() => {}
            None => {
                let when = match (was_released, before_parking) {
                    (true, _) => " when it was released",
                    (_, true) => " before it parked",
                    _ => "",
                };
                // If another process has ended it, the next standby may work.
                if before_parking && !is_sent(exit) {
                    self.has_not_parked();
                }
                self.reason = told("the standby", exit, when);
            }
        }
        if self.reason != ENDED {
            self.log.failed(&self.reason);
        }
        if was_released {
            return Some(Ended::Refused);
        }
        let hopeless = self.hopeless;
        Some(Ended::Waiting { hopeless })
    }

    /// A standby has ended by itself without parking.
    pub(super) fn has_not_parked(&mut self) {
        let program = self.way.program_mut();
        self.hopeless |= program.is_some_and(Program::count_failure);
    }

    /// The next standbys do not import this module ahead.
    fn leave_out(&mut self, name: &str) {
        // There is one at a time, which knows them all.
        let told = self.skip.len();
        self.hopeless |= !self.skip.add(name, told);
    }
}
