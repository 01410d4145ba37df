//! Percent-encoding of names in addresses.

use std::fmt::Write;

/// `text` as a segment of a path, or as a value in a query.
///
/// ```
/// assert_eq!(pawl_display::url::encode("a/b c"), "a%2Fb%20c");
/// ```
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            byte => write!(encoded, "%{byte:02X}").expect("writing to a string does not fail"),
        }
    }
    encoded
}

/// Names and values of a query, in order. What is not UTF-8 is replaced; an incomplete escape stands for itself.
///
/// ```
/// let pairs = pawl_display::url::pairs("job=a&job=b+c%2F");
/// assert_eq!(pairs, [("job".to_owned(), "a".to_owned()), ("job".to_owned(), "b c/".to_owned())]);
/// ```
pub fn pairs(query: &str) -> Vec<(String, String)> {
    let parts = query.split('&').filter(|part| !part.is_empty());
    let pairs = parts.map(|part| part.split_once('=').unwrap_or((part, "")));
    pairs.map(|(name, value)| (decode(name), decode(value))).collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = digit(at + 1).zip(digit(at + 2)).filter(|_| byte == b'%');
        decoded.push(match (byte, escaped) {
            (_, Some((high, low))) => ((high << 4) | low) as u8,
            (b'+', None) => b' ',
            (byte, None) => byte,
        });
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_encoded_name_is_decoded_and_has_no_special_characters(text in ".*") {
            let encoded = encode(&text);
            prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte)));
            prop_assert_eq!(pairs(&format!("job={encoded}")), [("job".to_owned(), text)]);
        }

        #[test]
        fn any_query_is_read(query in ".*") {
            prop_assert!(pairs(&query).len() <= query.split('&').count());
        }
    }

    #[test]
    fn an_incomplete_escape_stands_for_itself() {
        assert_eq!([decode("100%"), decode("%4"), decode("%+f"), decode("%ff")], ["100%", "%4", "% f", "\u{fffd}"]);
    }
}
