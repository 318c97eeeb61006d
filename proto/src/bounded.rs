//! A codec that limits how many fields a message may have.
//!
//! An entry of a list may take two bytes on the wire and hundreds in memory: with a limit on bytes
//! only, a peer could make the receiver use a hundred times as much. So the fields of a message are
//! counted before it is decoded.

use std::marker::PhantomData;

use bytes::Buf;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Most fields in all parts of a message together: more than the workers that are kept of a node,
/// and than the groups of one.
pub const MAX_FIELDS: usize = 16 * 1024;

/// Buffer of a stream for each direction, in bytes. tonic would keep 8 KiB for each while the
/// stream is open, but a daemon's stream is nearly always silent. A larger message takes more while
/// it passes.
const BUFFER: usize = 512;
/// Bytes of ready messages that are sent together: tonic's default.
const TOGETHER: usize = 32 << 10;

fn buffers() -> BufferSettings {
    BufferSettings::new(BUFFER, TOGETHER)
}

/// Codec for Protobuf messages with at most [`MAX_FIELDS`] fields.
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::raw_decoder(buffers()))
    }
}

/// Decodes such messages.
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The whole message is in one piece.
        if has_more(from.chunk(), MAX_FIELDS) {
            let text = format!("the message has more than {MAX_FIELDS} entries");
            return Err(Status::out_of_range(text));
        }
        self.0.decode(from)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// True if the parts of a message have more than `most` fields. A truncated message has the fields
/// before its end: no more are decoded.
fn has_more(message: &[u8], most: usize) -> bool {
    let mut rest = message;
    let mut fields = 0;
    while let Some((part, after)) = next(rest) {
        rest = after;
        let mut part = part;
        while let Some((_, after)) = next(part) {
            part = after;
            fields += 1;
            if fields > most {
                return true;
            }
        }
    }
    false
}

/// The content of the first field, if it has a length, and what comes after it.
fn next(mut rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, wire_type) = decode_key(&mut rest).ok()?;
    if wire_type == WireType::LengthDelimited {
        let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
        // A truncated field is read as far as it goes.
        return Some(rest.split_at(length.min(rest.len())));
    }
    skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?;
    Some((&[], rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::v1 as pb;

    fn report(workers: usize) -> Vec<u8> {
        let report = pb::Report {
            workers: vec![pb::WorkerState::default(); workers],
            ..pb::Report::default()
        };
        let kind = Some(pb::node_message::Kind::Report(report));
        pb::NodeMessage { kind }.encode_to_vec()
    }

    #[test]
    fn entries_are_counted_wherever_they_are() {
        let nothing = [0x2a, 0];
        // An unknown field, a group of fields, and the same message once more.
        let group = [0x7b, 0x08, 0x01, 0x7c];
        for before in [&[][..], &nothing, &group, &report(4)] {
            let message = [before, &report(10)].concat();
            let counted = 10 + if before.len() > 4 { 4 } else { 0 };
            assert!(!has_more(&message, counted), "{before:?}");
            assert!(has_more(&message, counted - 1), "{before:?}");
        }
        // A truncated message holds what came before.
        let whole = report(10);
        assert!(has_more(&whole[..whole.len() - 1], 8));
    }

    #[test]
    fn garbage_ends() {
        for nonsense in [
            &[0xff][..],
            &[0x0a],
            &[0x0a, 0xff, 0xff],
            &[0x07],
            &[0x0a, 0x02, 0x7b, 0x00],
        ] {
            assert!(!has_more(nonsense, 2), "{nonsense:?}");
        }
    }
}
