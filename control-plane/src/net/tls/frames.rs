//! Checks that a client speaks HTTP/2 as clients do. The library that serves it ends connections
//! and streams that do not, and tells nobody: what it answers shows that it does.

use super::connection_limit::Rejected;

#[cfg(test)]
mod tests;

/// What each client begins with (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame's header: the length of the rest in three bytes, its type, flags and stream (RFC 9113,
/// 4.1).
pub(super) const HEADER: usize = 9;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// The beginning of what a client says.
#[derive(Default)]
pub(super) struct Preface {
    /// Bytes of it that have come.
    seen: usize,
}

impl Preface {
    /// Takes in what was read. Says once that it is no HTTP/2.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Option<Rejected> {
        let rest = PREFACE.get(self.seen..).unwrap_or_default();
        let is_wrong = rest.iter().zip(bytes).any(|(expected, byte)| expected != byte);
        self.seen = if is_wrong {
            PREFACE.len()
        } else {
            self.seen.saturating_add(bytes.len()).min(PREFACE.len())
        };
        is_wrong.then_some(Rejected::NotHttp2)
    }

    /// True if it has come, or something else in its place, which ends the connection.
    pub(super) fn is_whole(&self) -> bool {
        self.seen == PREFACE.len()
    }
}

/// Bytes that follow the header of a frame, by its first three. 0: these are not all there.
pub(super) fn payload_length(header: &[u8]) -> usize {
    match header {
        [high, middle, low, ..] => usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low),
        _ => 0,
    }
}

/// The frames that the server writes.
#[derive(Default)]
pub(super) struct Answers {
    /// The header of the present frame, and of those that name an error what is before that.
    head: Vec<u8>,
    /// Bytes to pass over until the next header.
    rest: usize,
}

impl Answers {
    /// Takes in what was written. Says what the client has done wrong, if anything.
    pub(super) fn wrote(&mut self, mut bytes: &[u8]) -> Option<Rejected> {
        let mut found = None;
        while !bytes.is_empty() {
            let (passed, after) = bytes.split_at(self.rest.min(bytes.len()));
            self.rest -= passed.len();
            let missing = self.needed() - self.head.len();
            let (taken, after) = after.split_at(missing.min(after.len()));
            self.head.extend_from_slice(taken);
            bytes = after;
            if self.head.len() == self.needed() {
                found = found.or(self.error());
                self.rest = HEADER + self.length() - self.head.len();
                self.head.clear();
            }
        }
        found
    }

    /// How much of the present frame is looked at.
    fn needed(&self) -> usize {
        let before_error = match self.head.get(3) {
            Some(&RST_STREAM) => 4,
            Some(&GOAWAY) => 8,
            _ => 0,
        };
        match self.head.len() {
            0..HEADER => HEADER,
            _ => HEADER + self.length().min(before_error),
        }
    }

    /// What comes after the header.
    fn length(&self) -> usize {
        payload_length(&self.head)
    }

    fn error(&self) -> Option<Rejected> {
        let code = match self.head.get(3)? {
            &RST_STREAM | &GOAWAY if self.head.len() > HEADER => self.head.last_chunk::<4>()?,
            _ => return None,
        };
        // Those that are the client's fault (RFC 9113, 7); the others come up between honest peers
        // too.
        let name = match u32::from_be_bytes(*code) {
            1 => "PROTOCOL_ERROR",
            3 => "FLOW_CONTROL_ERROR",
            4 => "SETTINGS_TIMEOUT",
            6 => "FRAME_SIZE_ERROR",
            9 => "COMPRESSION_ERROR",
            11 => "ENHANCE_YOUR_CALM",
            _ => return None,
        };
        Some(Rejected::Http2(name))
    }
}
