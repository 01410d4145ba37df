//! The file of a W&B run: a log as LevelDB writes it, <https://github.com/google/leveldb/blob/main/doc/log_format.md>,
//! with the header and the checksum of `wandb/sdk/internal/datastore.py` of wandb 0.18.

use crate::tracking::checksum::crc32;

/// Bytes of a block. No chunk extends into another block.
const BLOCK: usize = 1 << 15;
/// Bytes before the content of a chunk: its checksum, its length and its kind.
const HEAD: usize = 7;
/// `:W&B`, a number that wandb compares, and the version of the format.
const HEADER: [u8; HEAD] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];

/// Whether a chunk is a whole record or a part of one.
#[derive(Clone, Copy)]
enum Kind {
    Full = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

/// Records one after the other.
#[derive(Debug)]
pub(super) struct Log(Vec<u8>);

impl Log {
    pub(super) fn new() -> Self {
        Self(HEADER.to_vec())
    }

    /// Appends a record, in as many chunks as blocks that it extends over.
    pub(super) fn add(&mut self, record: &[u8]) {
        if self.room() < HEAD {
            self.0.resize(self.0.len() + self.room(), 0);
        }
        let (mut part, mut rest) = record.split_at(record.len().min(self.room() - HEAD));
        self.chunk(if rest.is_empty() { Kind::Full } else { Kind::First }, part);
        while !rest.is_empty() {
            (part, rest) = rest.split_at(rest.len().min(BLOCK - HEAD));
            self.chunk(if rest.is_empty() { Kind::Last } else { Kind::Middle }, part);
        }
    }

    /// The file.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Bytes left in the block.
    fn room(&self) -> usize {
        BLOCK - self.0.len() % BLOCK
    }

    /// Appends a chunk, which is not longer than the block.
    fn chunk(&mut self, kind: Kind, content: &[u8]) {
        let kind = kind as u8;
        self.0.extend(crc32([kind].into_iter().chain(content.iter().copied())).to_le_bytes());
        self.0.extend((content.len() as u16).to_le_bytes());
        self.0.push(kind);
        self.0.extend(content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// The records of a log, by the definition of the format.
    fn records(log: &[u8]) -> Vec<Vec<u8>> {
        assert_eq!(log[..HEAD], HEADER);
        let (mut records, mut open, mut at) = (Vec::new(), None, HEAD);
        while at < log.len() {
            let room = BLOCK - at % BLOCK;
            if room < HEAD {
                assert!(log[at..at + room].iter().all(|byte| *byte == 0));
                at += room;
                continue;
            }
            let (head, after) = log[at..].split_at(HEAD);
            let length = usize::from(u16::from_le_bytes([head[4], head[5]]));
            assert!(HEAD + length <= room, "a chunk extends into another block");
            let content = &after[..length];
            let checksum = crc32(head[6..].iter().chain(content).copied());
            assert_eq!(head[..4], checksum.to_le_bytes());
            match (head[6], open.take()) {
                (1, None) => records.push(content.to_vec()),
                (2, None) => open = Some(content.to_vec()),
                (3, Some(begun)) => open = Some([&begun[..], content].concat()),
                (4, Some(begun)) => records.push([&begun[..], content].concat()),
                (kind, begun) => panic!("kind {kind} after {:?} bytes", begun.map(|begun: Vec<u8>| begun.len())),
            }
            at += HEAD + length;
        }
        assert!(open.is_none(), "the last record has no end");
        records
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn records_are_read_back_as_they_were_written(
            // Lengths that end a block, or leave it without room for the head of a chunk, and any others.
            lengths in vec(prop_oneof![BLOCK - 3 * HEAD..=BLOCK, 0..3 * BLOCK], 0..5), seed: u8,
        ) {
            let content = |length: usize| (0..length).map(|at| (at % 251) as u8 ^ seed).collect::<Vec<u8>>();
            let written: Vec<_> = lengths.into_iter().map(content).collect();
            let mut log = Log::new();
            written.iter().for_each(|record| log.add(record));
            prop_assert!(records(&log.into_bytes()) == written);
        }
    }

    #[test]
    fn a_block_without_room_for_the_head_of_a_chunk_ends_with_zeros() {
        let mut log = Log::new();
        // The header, the head of the chunk and its content leave one byte.
        log.add(&[7; BLOCK - 2 * HEAD - 1]);
        log.add(b"next");
        let bytes = log.into_bytes();
        assert_eq!(bytes[BLOCK - 1], 0);
        assert_eq!(bytes[BLOCK + HEAD..], *b"next");
    }
}
