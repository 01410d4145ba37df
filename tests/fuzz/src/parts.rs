//! Inputs of several parts.

/// Stands between two parts of an input, so that corpora of text can be read and edited.
const SEPARATOR: &[u8] = b"\n=====\n";

/// The `N` parts of an input, the last of which is the rest; absent ones are empty.
pub fn parts<const N: usize>(input: &[u8]) -> [&[u8]; N] {
    let mut rest = input;
    std::array::from_fn(|index| {
        let end = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR);
        match end.filter(|_| index + 1 < N) {
            Some(end) => {
                let part = &rest[..end];
                rest = &rest[end + SEPARATOR.len()..];
                part
            }
            None => std::mem::take(&mut rest),
        }
    })
}
