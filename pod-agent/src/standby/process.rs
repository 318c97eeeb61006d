//! One process that waits, or is about to: its socket and what it has said.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::family::Usage;
use super::reason;
use crate::sys;

/// Longest message of a standby that is read, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Longest part of a reason that is kept, in bytes.
const MAX_REASON: usize = 200;
/// Most messages that are read at once; the rest is read in the next round.
const AT_ONCE: usize = 64;
/// Most messages that are read of one that has ended: more than the kernel keeps for one socket.
/// Processes that it has left behind could go on sending.
const TO_THE_END: usize = 4096;

/// How long the import of one module may take.
pub(super) const LONGEST_IMPORT: Duration = Duration::from_secs(900);

/// A process that imports ahead, or runs up to its call `park()`, or waits to go on.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    socket: UnixDatagram,
    pub(super) state: State,
    /// Set once nothing can be said to it any more, nor heard of it.
    pub(super) closed: bool,
    /// It waits in the program's own call, not in the hook.
    pub(super) parks: bool,
    /// The module that it imports now: the culprit, if it ends.
    importing: Option<String>,
    /// The module that it imported at the last look, and since when.
    looked_at: Option<(String, Duration)>,
    /// Why it does not serve, if it has said so.
    fault: Option<Fault>,
}

/// What a standby is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Warming,
    Ready(Ready),
    /// Told to go on.
    Released,
    /// It goes on: it is the worker's process.
    Confirmed,
}

/// What a standby that is ready has imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) modules: u32,
    pub(super) memory_kib: u64,
    pub(super) ahead: Duration,
}

/// Why a standby does not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Because of this module, which is not imported ahead again.
    Module { name: String, why: String },
    /// For another reason.
    Other(String),
}

impl Fault {
    /// For people.
    pub(super) fn told(self) -> String {
        match self {
            Self::Module { name, why } => format!("module {name} is not imported ahead: {why}"),
            Self::Other(why) => why,
        }
    }
}

/// A message of a standby.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Importing(String),
    Ready(Ready),
    Fault(Fault),
    Started,
}

impl Process {
    pub(super) fn new(pid: i32, socket: UnixDatagram) -> Self {
        Self {
            pid,
            socket,
            state: State::Warming,
            closed: false,
            parks: false,
            importing: None,
            looked_at: None,
            fault: None,
        }
    }

    /// One whose program calls `park()`.
    pub(super) fn parking(pid: i32, socket: UnixDatagram) -> Self {
        Self {
            parks: true,
            ..Self::new(pid, socket)
        }
    }

    /// Takes what it has said. A standby is believed about itself alone: it is a process of the
    /// container like the worker.
    pub(super) fn listen(&mut self) {
        self.read(AT_ONCE);
    }

    /// Takes all that it has said, once it has been reaped or cannot say more: its last word
    /// decides whether it has gone on.
    pub(super) fn hear_out(&mut self) {
        self.read(TO_THE_END);
    }

    /// Takes its last word before it is given up. From here on it cannot say that it goes on, and
    /// ends itself when it tries. True if it has said so before.
    pub(super) fn close_ears(&mut self) -> bool {
        // That fails only if the other end is closed: then it can say nothing either.
        let _ = self.socket.shutdown(Shutdown::Read);
        self.hear_out();
        self.state == State::Confirmed
    }

    fn read(&mut self, most: usize) {
        let mut text = [0; MAX_MESSAGE];
        for _ in 0..most {
            let length = match self.socket.recv(&mut text) {
                Ok(0) => {
                    self.closed = true;
                    // The old one would be ready for ever.
                    if let Ok(silent) = UnixDatagram::unbound().and_then(|silent| {
                        silent.set_nonblocking(true)?;
                        Ok(silent)
                    }) {
                        self.socket = silent;
                    }
                    return;
                }
                Ok(length) => length,
                // It has ended without reading what it was told. What it has said comes next.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionReset) => {
                    continue;
                }
                Err(_) => return,
            };
            let message = if self.parks {
                parse_parking(&text[..length], self.pid, &self.state)
            } else {
                parse(&text[..length])
            };
            match message {
                Some(Message::Importing(name)) => self.importing = Some(name),
                Some(Message::Ready(ready)) => {
                    self.importing = None;
                    if matches!(self.state, State::Warming | State::Ready(_)) {
                        self.state = State::Ready(ready);
                    }
                }
                Some(Message::Fault(fault)) => self.fault = Some(fault),
                Some(Message::Started) if self.state == State::Released => self.state = State::Confirmed,
                Some(Message::Started) | None => {}
            }
        }
    }

    /// Tells it to go on with these changes of its environment: a value, or none to remove it.
    pub(super) fn release<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
    ) -> bool {
        self.release_with(changes, &[])
    }

    /// The same, with other standard streams.
    pub(super) fn release_with<'a>(
        &mut self,
        changes: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
        streams: &[BorrowedFd<'_>],
    ) -> bool {
        let mut message = b"start".to_vec();
        for (name, value) in changes {
            message.push(0);
            message.extend_from_slice(name.as_bytes());
            if let Some(value) = value {
                message.push(b'=');
                message.extend_from_slice(value.as_bytes());
            }
        }
        let sent = sys::send(self.socket.as_fd(), &message, streams).is_ok();
        if sent {
            self.state = State::Released;
        }
        sent
    }

    /// The module that it imports, while it waits.
    pub(super) fn importing(&self) -> Option<&str> {
        let waits = matches!(self.state, State::Warming | State::Ready(_));
        self.importing.as_deref().filter(|_| waits)
    }

    /// Ends it, and blames the module that it imports, if that takes too long.
    pub(super) fn look_at_import(&mut self, now: Duration) {
        let Some(name) = self.importing().map(str::to_owned) else {
            self.looked_at = None;
            return;
        };
        let since = match &self.looked_at {
            Some((before, since)) if *before == name => *since,
            _ => now,
        };
        if now < since + LONGEST_IMPORT {
            self.looked_at = Some((name, since));
            return;
        }
        let why = "its import does not end".to_owned();
        self.fault = Some(Fault::Module { name, why });
        self.importing = None;
        self.kill();
    }

    /// Ends it and what it has started in its process group. It is not reaped yet.
    pub(super) fn kill(&self) {
        let _ = sys::kill(self.pid, libc::SIGKILL);
        self.kill_group();
    }

    /// Ends what it has started in its process group.
    pub(super) fn kill_group(&self) {
        let _ = sys::kill(-self.pid, libc::SIGKILL);
    }

    /// Why it has ended, once it has been reaped and listened to for the last time. `sent`: a
    /// signal ended it that others send, so that no module is to blame.
    pub(super) fn cause(&mut self, sent: bool) -> Option<Fault> {
        self.fault.take().or_else(|| {
            let name = self.importing.take().filter(|_| !sent)?;
            let why = "it ended while it was imported".to_owned();
            Some(Fault::Module { name, why })
        })
    }
}

/// What a program says. How much it has used is measured here, once: it may be any program, and say
/// the same again and again.
fn parse_parking(message: &[u8], pid: i32, state: &State) -> Option<Message> {
    match message {
        b"ready" if *state == State::Warming => {
            let used = Usage::of(pid);
            Some(Message::Ready(Ready {
                modules: 0,
                memory_kib: used.memory_kib,
                ahead: used.time,
            }))
        }
        b"started" => Some(Message::Started),
        _ => None,
    }
}

fn parse(message: &[u8]) -> Option<Message> {
    let text = String::from_utf8_lossy(message);
    let (what, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let mut words = rest.split(' ');
    let bounded = |text: &str| {
        let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
        text[..text.floor_char_boundary(MAX_REASON)].to_owned()
    };
    Some(match what {
        "importing" => Message::Importing(bounded(rest)),
        "ready" => Message::Ready(Ready {
            modules: words.next()?.parse().ok()?,
            memory_kib: words.next()?.parse().ok()?,
            ahead: Duration::from_millis(words.next()?.parse::<u32>().ok()?.into()),
        }),
        "spoiled" | "failed" => {
            let (name, why) = rest.split_once(' ').unwrap_or((rest, ""));
            Message::Fault(Fault::Module {
                name: bounded(name),
                why: reason::of_module(&bounded(why)),
            })
        }
        "refused" => Message::Fault(Fault::Other(reason::of_refusal(&bounded(rest)))),
        "started" => Message::Started,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
