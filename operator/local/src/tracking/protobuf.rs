//! The encoding of Protocol Buffers: <https://protobuf.dev/programming-guides/encoding>.

/// How a field is encoded.
#[derive(Clone, Copy)]
pub(super) enum Wire {
    Varint = 0,
    Eight = 1,
    Length = 2,
    Four = 5,
}

/// The number and the encoding of a field, which stand before its content.
pub(super) fn key(field: u64, wire: Wire) -> Vec<u8> {
    varint((field << 3) | wire as u64)
}

/// A whole number in groups of seven bits, the lowest first.
pub(super) fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field whose length is written before it: a text, bytes or a message.
pub(super) fn text(field: u64, content: &[u8]) -> Vec<u8> {
    [&key(field, Wire::Length), &varint(content.len() as u64), content].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_are_encoded_as_in_their_definition() {
        assert_eq!(varint(300), [0xac, 0x02]);
        assert_eq!(text(3, b"ab"), [0x1a, 2, b'a', b'b']);
        // From field 16 on, the number of the field takes two bytes.
        assert_eq!(text(16, b"a"), [0x82, 0x01, 1, b'a']);
    }
}
