//! Detects clients that violate HTTP/2. The server library ends their connections and streams
//! without reporting it, but its answers show it.

use super::connection_limit::Rejected;

#[cfg(test)]
mod tests;

/// The preface of each client (RFC 9113, 3.4).
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The size of a frame's header: the payload length in three bytes, type, flags and stream (RFC
/// 9113, 4.1).
pub(super) const HEADER: usize = 9;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

/// The preface of a client, as it arrives.
#[derive(Default)]
pub(super) struct Preface {
    /// How many bytes of it arrived.
    seen: usize,
}

impl Preface {
    /// Checks received bytes. Reports once if they are not HTTP/2.
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

    /// True once it arrived, or something else arrived that ends the connection.
    pub(super) fn is_whole(&self) -> bool {
        self.seen == PREFACE.len()
    }
}

/// The payload length from the first three bytes of a frame's header; 0 if they are incomplete.
pub(super) fn payload_length(header: &[u8]) -> usize {
    match header {
        [high, middle, low, ..] => usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low),
        _ => 0,
    }
}

/// The frames that the server writes.
#[derive(Default)]
pub(super) struct Answers {
    /// The header of the current frame and, for frames with an error code, the payload up to it.
    head: Vec<u8>,
    /// Bytes to skip until the next header.
    rest: usize,
}

impl Answers {
    /// Checks written bytes. Returns what the client did wrong, if anything.
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

    /// How many bytes of the current frame are needed.
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

    /// The length of the payload.
    fn length(&self) -> usize {
        payload_length(&self.head)
    }

    fn error(&self) -> Option<Rejected> {
        let code = match self.head.get(3)? {
            &RST_STREAM | &GOAWAY if self.head.len() > HEADER => self.head.last_chunk::<4>()?,
            _ => return None,
        };
        // Errors that are the client's fault (RFC 9113, 7); the others occur between correct peers
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
