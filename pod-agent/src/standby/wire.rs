//! The messages between the agent and the stand-in of a rank. The socket keeps their boundaries.
//!
//! ```text
//!   stand-in                                   agent
//!   Call, and three standard streams ──────>
//!                             <────── cold, perhaps with a list: it runs the program itself
//!                             <────── started: a standby is the rank, and the stand-in waits
//!   signal N ──────>                           passed on to the rank
//!                             <────── code N, or killed N: how the rank has ended
//! ```
//! If the stand-in hangs up, the agent kills the rank.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::machine::Exit;

/// Longest message.
pub(crate) const MAX_MESSAGE: usize = 256 << 10;
/// The beginning of a call: the format of the rest.
const FORM: &[u8] = b"rank 2";
/// Fields of a call before the arguments.
const FIXED: usize = 6;

/// The variables of a process.
pub(crate) type Environment = BTreeMap<OsString, OsString>;

/// What a stand-in was started to run, and what it has inherited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    /// True if it leads its process group, so it may be signalled as a group.
    pub(crate) leads: bool,
    pub(crate) umask: String,
    /// See [`unseen`](super::inherited::unseen).
    pub(crate) unseen: String,
    pub(crate) folder: OsString,
    /// The interpreter and its arguments.
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Environment,
}

/// An answer of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Cold,
    Started,
    Ended(Exit),
}

impl Call {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let leads: &[u8] = if self.leads { b"1" } else { b"0" };
        let count = self.command.len().to_string();
        let mut fields = vec![
            FORM,
            leads,
            self.umask.as_bytes(),
            self.unseen.as_bytes(),
            self.folder.as_bytes(),
            count.as_bytes(),
        ];
        fields.extend(self.command.iter().map(|word| word.as_bytes()));
        let mut text = fields.join(&0);
        for (name, value) in &self.environment {
            text.push(0);
            text.extend_from_slice(name.as_bytes());
            text.push(b'=');
            text.extend_from_slice(value.as_bytes());
        }
        text
    }

    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
        let (fixed, rest) = fields.split_at_checked(FIXED)?;
        let [FORM, leads, umask, unseen, folder, count] = fixed else {
            return None;
        };
        let string = |field: &[u8]| String::from_utf8(field.to_vec()).ok();
        let (command, variables) = rest.split_at_checked(string(count)?.parse().ok()?)?;
        let own = |field: &&[u8]| OsString::from_vec(field.to_vec());
        Some(Self {
            leads: *leads == b"1",
            umask: string(umask)?,
            unseen: string(unseen)?,
            folder: own(folder),
            command: command.iter().map(own).collect(),
            environment: variables.iter().filter_map(|field| variable(field)).collect(),
        })
    }
}

fn variable(field: &[u8]) -> Option<(OsString, OsString)> {
    let at = field.iter().position(|byte| *byte == b'=')?;
    let own = |part: &[u8]| OsStr::from_bytes(part).to_owned();
    Some((own(&field[..at]), own(&field[at + 1..])))
}

impl Answer {
    pub(crate) fn encode(self) -> String {
        match self {
            Self::Cold => "cold".to_owned(),
            Self::Started => "started".to_owned(),
            Self::Ended(Exit::Code(code)) => format!("code {code}"),
            Self::Ended(Exit::Signal(signal)) => format!("killed {signal}"),
        }
    }

    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?;
        let (what, number) = text.split_once(' ').unwrap_or((text, "0"));
        let number = number.parse().ok()?;
        Some(match what {
            "cold" => Self::Cold,
            "started" => Self::Started,
            "code" => Self::Ended(Exit::Code(number)),
            "killed" => Self::Ended(Exit::Signal(number)),
            _ => return None,
        })
    }
}

/// A signal that the stand-in has received.
pub(crate) fn signal(number: i32) -> String {
    format!("signal {number}")
}

/// Reads the signal to pass on.
pub(crate) fn parse_signal(text: &[u8]) -> Option<i32> {
    let number = str::from_utf8(text).ok()?.strip_prefix("signal ")?.parse().ok()?;
    (1..=64).contains(&number).then_some(number)
}

/// The changes that turn the environment `before` into `after`: a value, or `None` to remove the
/// variable.
pub(super) fn changes<'a>(
    before: &'a Environment,
    after: &'a Environment,
) -> Vec<(&'a OsStr, Option<&'a OsStr>)> {
    let set = after
        .iter()
        .filter(|(name, value)| before.get(*name) != Some(value))
        .map(|(name, value)| (name.as_os_str(), Some(value.as_os_str())));
    let gone = before
        .keys()
        .filter(|name| !after.contains_key(*name))
        .map(|name| (name.as_os_str(), None));
    set.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let own = |(name, value): &(&str, &str)| (name.into(), value.into());
        pairs.iter().map(own).collect()
    }

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let call = Call {
            leads: true,
            umask: "0022".to_owned(),
            unseen: "a\nb\n".to_owned(),
            folder: "/work".into(),
            command: vec![
                "/bin/python3".into(),
                String::new().into(),
                OsString::from_vec(vec![0xff]),
            ],
            environment: environment(&[("A", "1=2"), ("B", "")]),
        };
        assert_eq!(Call::decode(&call.encode()).as_ref(), Some(&call));
        let bare = Call {
            command: vec!["x".into()],
            ..Call::default()
        };
        assert_eq!(Call::decode(&bare.encode()), Some(bare));
    }

    #[test]
    fn other_calls_are_refused() {
        for odd in [
            &b""[..],
            b"rank 2",
            b"rank 3\x001\x00022\x00\x00/\x000",
            b"rank 2\x001\x00022\x00\x00/\x002\x00a",
            b"rank 2\x001\x00022\x00\x00/\x00-1",
            b"rank 2\x001\x00022\x00\xff\x00/\x000",
        ] {
            assert_eq!(Call::decode(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn answers_and_signals_are_read_as_they_were_written() {
        for answer in [
            Answer::Cold,
            Answer::Started,
            Answer::Ended(Exit::Code(3)),
            Answer::Ended(Exit::Signal(9)),
        ] {
            assert_eq!(Answer::decode(answer.encode().as_bytes()), Some(answer));
        }
        for odd in [&b""[..], b"code x", b"what 1", b"\xff"] {
            assert_eq!(Answer::decode(odd), None);
        }
        assert_eq!(parse_signal(signal(15).as_bytes()), Some(15));
        for odd in ["signal 0", "signal 65", "signal -9", "15", "signal"] {
            assert_eq!(parse_signal(odd.as_bytes()), None);
        }
    }

    #[test]
    fn changes_are_what_differs() {
        let before = environment(&[("A", "1"), ("B", "2"), ("C", "3")]);
        let after = environment(&[("A", "1"), ("B", ""), ("D", "4")]);
        let (found, os) = (changes(&before, &after), OsStr::new);
        let expected = [(os("B"), Some(os(""))), (os("D"), Some(os("4"))), (os("C"), None)];
        assert_eq!(found, expected);
        assert_eq!(changes(&after, &after), []);
    }
}
