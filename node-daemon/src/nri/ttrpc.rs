//! ttrpc, as much of it as NRI uses: unary calls.
//!
//! A message is a big-endian u32 length, a big-endian u32 stream id (odd if the caller opened it),
//! a type, flags, and a protobuf payload: a [`Request`] or a [`Response`]. See containerd/ttrpc,
//! PROTOCOL.md.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;

const HEADER: usize = 10;
/// Largest payload.
pub const MAX: usize = 4 << 20;

/// gRPC status for a method that does not exist.
pub const UNIMPLEMENTED: i32 = 12;
/// gRPC status for a malformed request.
pub const INVALID_ARGUMENT: i32 = 3;

/// Type of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call.
    Request,
    /// The answer to one.
    Response,
    /// Anything else (data of a stream).
    Other(u8),
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Which call it belongs to.
    pub stream: u32,
    /// What it is.
    pub kind: Kind,
    /// Protobuf.
    pub payload: Bytes,
}

/// Payload of a call.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Request {
    /// Full name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
    /// Name of the method.
    #[prost(string, tag = "2")]
    pub method: String,
    /// Its argument.
    #[prost(bytes = "bytes", tag = "3")]
    pub payload: Bytes,
    /// Time-out in nanoseconds, 0 for none.
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

/// Payload of an answer.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Response {
    /// Absent, or code 0, for a success.
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    /// The result.
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Status {
    /// gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For people.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A message that is longer than the protocol allows.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ttrpc message of {0} bytes")]
pub struct TooLarge(pub usize);

impl Response {
    /// A result.
    #[must_use]
    pub fn ok(payload: Bytes) -> Self {
        Self {
            status: None,
            payload,
        }
    }

    /// An error.
    #[must_use]
    pub fn error(code: i32, message: String) -> Self {
        Self {
            status: Some(Status { code, message }),
            payload: Bytes::new(),
        }
    }
}

/// The bytes of a call.
///
/// # Errors
/// When it is too large to send.
pub fn request(stream: u32, request: &Request) -> Result<BytesMut, TooLarge> {
    frame(stream, 1, &request.encode_to_vec())
}

/// The bytes of an answer.
///
/// # Errors
/// When it is too large to send.
pub fn response(stream: u32, response: &Response) -> Result<BytesMut, TooLarge> {
    frame(stream, 2, &response.encode_to_vec())
}

fn frame(stream: u32, kind: u8, payload: &[u8]) -> Result<BytesMut, TooLarge> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    if payload.len() > MAX {
        return Err(TooLarge(payload.len()));
    }
    let mut out = BytesMut::with_capacity(HEADER + payload.len());
    out.put_u32(length);
    out.put_u32(stream);
    out.put_u8(kind);
    out.put_u8(0);
    out.put_slice(payload);
    Ok(out)
}

/// Takes the next whole message off `input`.
///
/// # Errors
/// When it is longer than the protocol allows.
pub fn decode(input: &mut BytesMut) -> Result<Option<Message>, TooLarge> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let mut header = header.as_slice();
    let length = header.get_u32() as usize;
    let stream = header.get_u32();
    let kind = match header.get_u8() {
        1 => Kind::Request,
        2 => Kind::Response,
        other => Kind::Other(other),
    };
    if length > MAX {
        return Err(TooLarge(length));
    }
    if rest.len() < length {
        return Ok(None);
    }
    input.advance(HEADER);
    Ok(Some(Message {
        stream,
        kind,
        payload: input.split_to(length).freeze(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_call_is_encoded_as_the_protocol_says() {
        let call = Request {
            service: "s".into(),
            method: "m".into(),
            ..Request::default()
        };
        let bytes = request(1, &call).unwrap();
        assert_eq!(
            &bytes[..],
            [0, 0, 0, 6, 0, 0, 0, 1, 1, 0, 0x0a, 1, b's', 0x12, 1, b'm']
        );
    }

    #[test]
    fn messages_over_the_limit_are_refused_both_ways() {
        let answer = Response::ok(vec![0; MAX + 1].into());
        assert!(response(1, &answer).is_err());
        let mut input = BytesMut::from(&[0x7f, 0, 0, 0, 0, 0, 0, 1, 1, 0][..]);
        assert_eq!(decode(&mut input), Err(TooLarge(0x7f00_0000)));
    }

    proptest! {
        #[test]
        fn messages_survive_any_split(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 0..6),
            cut in 1usize..2000,
        ) {
            let mut wire = BytesMut::new();
            for (stream, payload) in (1..).step_by(2).zip(&payloads) {
                wire.extend_from_slice(&response(stream, &Response::ok(payload.clone().into())).unwrap());
            }
            let mut input = BytesMut::new();
            let mut got = Vec::new();
            for chunk in wire.chunks(cut) {
                input.extend_from_slice(chunk);
                while let Some(message) = decode(&mut input).unwrap() {
                    prop_assert_eq!(message.kind, Kind::Response);
                    got.push(Response::decode(message.payload).unwrap().payload.to_vec());
                }
            }
            prop_assert_eq!(payloads, got);
        }

        #[test]
        fn garbage_never_panics(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&garbage[..]);
            while let Ok(Some(message)) = decode(&mut input) {
                drop(Request::decode(message.payload));
            }
        }
    }
}
