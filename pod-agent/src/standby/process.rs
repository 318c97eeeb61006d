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
                parse_parking(&text[..length], self.pid)
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

    /// Blames the module that it imports.
    pub(super) fn give_up_import(&mut self) {
        let why = "its import does not end".to_owned();
        self.fault = self.importing.take().map(|name| Fault::Module { name, why });
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

/// What a program says. How much it has used is measured here: it may be any program.
fn parse_parking(message: &[u8], pid: i32) -> Option<Message> {
    match message {
        b"ready" => {
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
mod tests {
    use super::*;

    fn process() -> (Process, UnixDatagram) {
        let (ours, theirs) = sys::pair().unwrap();
        // No process has this PID.
        (Process::new(i32::MAX, ours), UnixDatagram::from(theirs))
    }

    #[test]
    fn what_it_says_is_read_in_order() {
        let (mut standby, other) = process();
        other.send(b"importing torch").unwrap();
        other.send(b"ready 12 2048 1500").unwrap();
        standby.listen();
        let ready = Ready {
            modules: 12,
            memory_kib: 2048,
            ahead: Duration::from_millis(1500),
        };
        assert_eq!(standby.state, State::Ready(ready));
        assert_eq!(standby.cause(false), None);
        other.send(b"started").unwrap();
        standby.listen();
        assert_eq!(standby.state, State::Ready(ready), "only a release is confirmed");
    }

    #[test]
    fn a_program_says_no_numbers() {
        let (ours, theirs) = sys::pair().unwrap();
        let mut standby = Process::parking(std::process::id().cast_signed(), ours);
        let other = UnixDatagram::from(theirs);
        for odd in ["importing torch", "refused x", "ready 12 2048 1500", "started"] {
            other.send(odd.as_bytes()).unwrap();
        }
        standby.listen();
        assert_eq!(standby.state, State::Warming);
        assert_eq!(standby.importing(), None);
        assert_eq!(standby.cause(false), None);
        other.send(b"ready").unwrap();
        standby.listen();
        let State::Ready(ready) = standby.state else {
            panic!("not ready")
        };
        assert!(ready.memory_kib > 100 && ready.modules == 0, "{ready:?}");
        assert!(standby.release([]));
        other.send(b"started").unwrap();
        standby.listen();
        assert_eq!(standby.state, State::Confirmed);
    }

    #[test]
    fn a_release_is_one_message_with_the_changes() {
        let (mut standby, other) = process();
        let changes = [("A", Some("1=2")), ("B", None)];
        let changes = changes.map(|(name, value)| (OsStr::new(name), value.map(OsStr::new)));
        assert!(standby.release(changes));
        let mut text = [0; 64];
        let length = other.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"start\0A=1=2\0B");
        other.send(b"started").unwrap();
        standby.listen();
        assert_eq!(standby.state, State::Confirmed);
        drop(other);
        assert!(!standby.release([]));
    }

    #[test]
    fn the_module_that_it_ended_with_is_the_culprit() {
        let (mut standby, other) = process();
        other.send(b"importing bad").unwrap();
        standby.listen();
        let Some(Fault::Module { name, .. }) = standby.cause(false) else {
            panic!("no culprit");
        };
        assert_eq!(name, "bad");
        other.send(b"importing innocent").unwrap();
        standby.listen();
        assert_eq!(standby.cause(true), None, "it was killed by another process");
        other.send(b"spoiled web it listens on a port").unwrap();
        standby.listen();
        let fault = Fault::Module {
            name: "web".to_owned(),
            why: "it listens on a port".to_owned(),
        };
        assert_eq!(standby.cause(true), Some(fault));
    }

    #[test]
    fn all_that_one_has_said_counts_once_it_has_ended() {
        let (mut standby, other) = process();
        assert!(standby.release([]));
        for _ in 0..5 {
            other.send(b"importing more").unwrap();
        }
        other.send(b"started").unwrap();
        // With the release unread, which the kernel tells as an error.
        drop(other);
        standby.hear_out();
        assert!(standby.closed);
        assert_eq!(standby.state, State::Confirmed);
    }

    #[test]
    fn odd_messages_are_bounded_or_ignored() {
        for odd in ["", "what", "ready", "ready a b c", "ready 1 2 99999999999"] {
            assert_eq!(parse(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(
            parse(b"refused \x1b[2J\xff"),
            Some(Message::Fault(Fault::Other("the hook: [2J\u{fffd}".to_owned())))
        );
        let long = format!("importing {}", "\u{e9}".repeat(400));
        let Some(Message::Importing(name)) = parse(long.as_bytes()) else {
            panic!("not read");
        };
        assert!(name.len() <= MAX_REASON);
    }
}
