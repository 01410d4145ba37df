//! Checksums of the files of trackers.

/// CRC-32 (IEEE 802.3), as zlib computes it.
pub(super) fn crc32(bytes: impl IntoIterator<Item = u8>) -> u32 {
    reflected(0xedb8_8320, bytes)
}

/// CRC-32C (Castagnoli).
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    reflected(0x82f6_3b78, bytes.iter().copied())
}

/// The checksum by a polynomial whose bits are in reverse order.
fn reflected(polynomial: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    let shifted = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ polynomial } else { crc >> 1 };
    !bytes.into_iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| shifted(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_definitions() {
        assert_eq!(crc32(*b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
