//! NRI's connection multiplexer: several byte streams over one Unix socket.
//!
//! A frame is a big-endian u32 connection id, a big-endian u32 length, and that many bytes. Frames
//! have no meaning of their own: only the byte stream of each connection counts.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Connection on which containerd calls the plugin.
pub const PLUGIN: u32 = 1;
/// Connection on which the plugin calls containerd.
pub const RUNTIME: u32 = 2;

const HEADER: usize = 8;
/// Largest payload of the first frame of a message: containerd reads the start of a message through
/// a buffer of this size, and drops the connection if a frame does not fit.
const FIRST: usize = 4096;
/// Largest payload that is accepted: a ttrpc message of the largest size, with its header and some
/// room.
const MAX: usize = (4 << 20) + 4096;

/// The peer does not speak this protocol.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a multiplexer frame of {0} bytes")]
pub struct TooLarge(pub usize);

/// Appends one message of `connection` to `out`, in as few frames as is safe: more than 256 waiting
/// frames kill the connection.
pub fn encode(connection: u32, message: &[u8], out: &mut BytesMut) {
    let (first, rest) = message.split_at(message.len().min(FIRST));
    for part in [first, rest] {
        if !part.is_empty() {
            out.reserve(HEADER + part.len());
            out.put_u32(connection);
            // A message is at most 4 MiB.
            out.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
            out.put_slice(part);
        }
    }
}

/// Takes the next whole frame off `input`.
///
/// # Errors
/// When it is longer than a message can be.
pub fn decode(input: &mut BytesMut) -> Result<Option<(u32, Bytes)>, TooLarge> {
    let Some((header, rest)) = input.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let mut header = header.as_slice();
    let connection = header.get_u32();
    let length = header.get_u32() as usize;
    if length > MAX {
        return Err(TooLarge(length));
    }
    if rest.len() < length {
        return Ok(None);
    }
    input.advance(HEADER);
    Ok(Some((connection, input.split_to(length).freeze())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_frame_of_a_large_message_is_small() {
        let mut out = BytesMut::new();
        encode(PLUGIN, &vec![7; 100_000], &mut out);
        let sizes: Vec<usize> = std::iter::from_fn(|| decode(&mut out).unwrap())
            .map(|(_, part)| part.len())
            .collect();
        assert_eq!(sizes, [4096, 100_000 - 4096]);
    }

    #[test]
    fn an_absurd_length_is_refused() {
        let mut input = BytesMut::from(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff][..]);
        assert_eq!(decode(&mut input), Err(TooLarge(0xffff_ffff)));
    }

    proptest! {
        #[test]
        fn streams_survive_any_split(
            messages in prop::collection::vec((1u32..4, prop::collection::vec(any::<u8>(), 0..9000)), 0..6),
            cut in 1usize..5000,
        ) {
            let mut wire = BytesMut::new();
            let mut sent = std::collections::BTreeMap::<u32, Vec<u8>>::new();
            for (connection, message) in &messages {
                encode(*connection, message, &mut wire);
                sent.entry(*connection).or_default().extend(message);
            }
            sent.retain(|_, bytes| !bytes.is_empty());
            let mut got = std::collections::BTreeMap::<u32, Vec<u8>>::new();
            let mut input = BytesMut::new();
            for chunk in wire.chunks(cut) {
                input.extend_from_slice(chunk);
                while let Some((connection, bytes)) = decode(&mut input).unwrap() {
                    got.entry(connection).or_default().extend(&bytes);
                }
            }
            prop_assert!(input.is_empty());
            prop_assert_eq!(sent, got);
        }

        #[test]
        fn garbage_never_panics(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&garbage[..]);
            while let Ok(Some(_)) = decode(&mut input) {}
        }
    }
}
