//! CRI's `PodSandbox` without the labels and annotations that nobody reads.
//!
//! A pod may have 57,000 annotations of three letters. As a map they take 6 MB, and a listing holds
//! all pods of a node: a tenant could make the node daemon take more memory than it may. So other
//! entries are dropped while a sandbox is decoded.

use std::collections::HashMap;

use bytes::{Buf, BufMut};
use lockstep_protocol::pods::READ_OF_PODS;
use prost::encoding::{DecodeContext, WireType, hash_map, int32, int64, message, skip_field, string};
use prost::{DecodeError, Message};

use crate::cri::v1::PodSandboxMetadata;

/// A sandbox in a listing. Fields as in `runtime.v1.PodSandbox`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSandbox {
    pub id: String,
    pub metadata: Option<PodSandboxMetadata>,
    pub state: i32,
    pub created_at: i64,
    /// Only those that are read.
    pub labels: HashMap<String, String>,
    /// Only those that are read.
    pub annotations: HashMap<String, String>,
    pub runtime_handler: String,
}

/// An entry of a map.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// Decodes an entry, and adds it if its key is read.
fn merge_entry(
    wire_type: WireType,
    map: &mut HashMap<String, String>,
    buf: &mut impl Buf,
    context: DecodeContext,
) -> Result<(), DecodeError> {
    let mut entry = Entry::default();
    message::merge(wire_type, &mut entry, buf, context)?;
    if READ_OF_PODS.contains(&entry.key.as_str()) {
        map.insert(entry.key, entry.value);
    }
    Ok(())
}

impl Message for PodSandbox {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        string::encode(1, &self.id, buf);
        if let Some(metadata) = &self.metadata {
            message::encode(2, metadata, buf);
        }
        int32::encode(3, &self.state, buf);
        int64::encode(4, &self.created_at, buf);
        for (tag, map) in [(5, &self.labels), (6, &self.annotations)] {
            let (key, value) = (string::encode, string::encode);
            hash_map::encode(
                key,
                string::encoded_len,
                value,
                string::encoded_len,
                tag,
                map,
                buf,
            );
        }
        string::encode(7, &self.runtime_handler, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => string::merge(wire_type, &mut self.id, buf, context),
            2 => message::merge(wire_type, self.metadata.get_or_insert_default(), buf, context),
            3 => int32::merge(wire_type, &mut self.state, buf, context),
            4 => int64::merge(wire_type, &mut self.created_at, buf, context),
            5 => merge_entry(wire_type, &mut self.labels, buf, context),
            6 => merge_entry(wire_type, &mut self.annotations, buf, context),
            7 => string::merge(wire_type, &mut self.runtime_handler, buf, context),
            _ => skip_field(wire_type, tag, buf, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let maps = [(5, &self.labels), (6, &self.annotations)];
        let maps =
            maps.map(|(tag, map)| hash_map::encoded_len(string::encoded_len, string::encoded_len, tag, map));
        let metadata = self.metadata.as_ref();
        string::encoded_len(1, &self.id)
            + metadata.map_or(0, |metadata| message::encoded_len(2, metadata))
            + int32::encoded_len(3, &self.state)
            + int64::encoded_len(4, &self.created_at)
            + maps.iter().sum::<usize>()
            + string::encoded_len(7, &self.runtime_handler)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_annotations_that_nobody_reads_are_dropped() {
        let read = READ_OF_PODS.map(|key| (key.to_owned(), "value".to_owned()));
        let others = (0..50_000).map(|number| (format!("{number}"), String::new()));
        let sent = PodSandbox {
            id: "s".to_owned(),
            metadata: Some(PodSandboxMetadata {
                uid: "u".to_owned(),
                ..PodSandboxMetadata::default()
            }),
            state: 1,
            created_at: 7,
            labels: read.clone().into(),
            annotations: read.clone().into_iter().chain(others).collect(),
            runtime_handler: "runc".to_owned(),
        };
        let bytes = sent.encode_to_vec();
        assert_eq!(bytes.len(), sent.encoded_len());
        let seen = PodSandbox::decode(bytes.as_slice()).unwrap();
        let kept = PodSandbox {
            annotations: read.into(),
            ..sent
        };
        assert_eq!(seen, kept);
    }
}
