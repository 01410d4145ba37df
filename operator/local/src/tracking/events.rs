//! Event files as TensorBoard reads them: records with checksums, each of which is an `Event` of Protocol Buffers.

use super::checksum::crc32c;
use super::protobuf::{Wire, key, text, varint};

/// Values and texts of one event file.
#[derive(Debug, Default)]
pub(super) struct Events {
    seconds: f64,
    bytes: Vec<u8>,
}

impl Events {
    /// A file whose events are of this time, seconds since 1970.
    pub(super) fn at(seconds: f64) -> Self {
        let mut events = Self { seconds, bytes: Vec::new() };
        // Field 3, `file_version`.
        events.add(0, &text(3, b"brain.Event:2"));
        // Field 7, `session_log`, with the status START: a running TensorBoard drops what it has read of earlier files.
        events.add(0, &text(7, &[key(1, Wire::Varint), vec![1]].concat()));
        events
    }

    /// Adds a point of a curve.
    pub(super) fn scalar(&mut self, tag: &str, step: u64, value: f64) {
        // `simple_value` is a float.
        let value = [key(2, Wire::Four), (value as f32).to_le_bytes().to_vec()].concat();
        self.summary(step, &[text(1, tag.as_bytes()), value].concat());
    }

    /// Adds a text, which is Markdown.
    pub(super) fn text(&mut self, tag: &str, markdown: &str) {
        let shape = text(2, &text(2, &[key(1, Wire::Varint), vec![1]].concat()));
        // A tensor of one string (7), and the plugin that shows it.
        let tensor = [key(1, Wire::Varint), vec![7], shape, text(8, markdown.as_bytes())].concat();
        let metadata = text(1, &text(1, b"text"));
        self.summary(0, &[text(1, tag.as_bytes()), text(8, &tensor), text(9, &metadata)].concat());
    }

    /// The file.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn summary(&mut self, step: u64, value: &[u8]) {
        self.add(step, &text(5, &text(1, value)));
    }

    /// Appends an event with these fields: its length, its content, and a checksum of each.
    fn add(&mut self, step: u64, fields: &[u8]) {
        let time = [key(1, Wire::Eight), self.seconds.to_le_bytes().to_vec()].concat();
        let event = [&time, &key(2, Wire::Varint), &varint(step), fields].concat();
        let length = (event.len() as u64).to_le_bytes();
        self.bytes.extend(length);
        self.bytes.extend(masked(&length).to_le_bytes());
        self.bytes.extend(&event);
        self.bytes.extend(masked(&event).to_le_bytes());
    }
}

/// The checksum of a record: masked, because records may contain records.
fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_sequence_of_records() {
        let mut events = Events::at(1.5);
        events.scalar("loss", 16, 0.5);
        let mut rest = &events.into_bytes()[..];
        let mut records = Vec::new();
        while let Some((head, after)) = rest.split_at_checked(12) {
            let length = u64::from_le_bytes(head[..8].try_into().unwrap());
            assert_eq!(head[8..], masked(&head[..8]).to_le_bytes());
            let (event, after) = after.split_at(length as usize);
            assert_eq!(after[..4], masked(event).to_le_bytes());
            records.push(event);
            rest = &after[4..];
        }
        assert!(rest.is_empty() && records.len() == 3, "{records:?}");
        assert!(records[0].ends_with(b"brain.Event:2"));
        // At step 0, a session starts.
        assert_eq!(records[1][9..], [0x10, 0, 0x3a, 2, 0x08, 1]);
        // Its time, step 16, and the summary of the value.
        assert_eq!(records[2][..9], [&[0x09][..], &1.5f64.to_le_bytes()].concat());
        assert_eq!(
            records[2][9..],
            [&[0x10, 16, 0x2a, 13, 0x0a, 11, 0x0a, 4][..], b"loss", &[0x15], &0.5f32.to_le_bytes()].concat()
        );
    }
}
