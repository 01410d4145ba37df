//! Texts that others chose, within bounds.

/// The longest prefix of `text` of at most `limit` bytes that ends at a character boundary.
///
/// ```
/// assert_eq!(pawl_contract::text::truncated("né", 2), "n");
/// ```
pub fn truncated(text: &str, limit: usize) -> &str {
    if text.len() <= limit {
        return text;
    }
    let end = (0..=limit).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}

/// `text` without characters that are [`unprintable`]: each is replaced by a space. Line feeds and tabs remain.
///
/// ```
/// use pawl_contract::text::printable;
/// assert_eq!(printable("\u{1b}[2Jlost\nrank 3"), " [2Jlost\nrank 3");
/// assert_eq!(printable("loss\u{202e}5.0"), "loss 5.0");
/// ```
pub fn printable(text: &str) -> String {
    let obeyed = |c: char| unprintable(c) && c != '\n' && c != '\t';
    text.chars().map(|c| if obeyed(c) { ' ' } else { c }).collect()
}

/// Whether a terminal or a browser obeys `c` instead of showing it: control characters, and those of Unicode that
/// separate lines, change the direction of text, or are invisible. With the latter two, a name or message looks like
/// another one. Joiners and the variation selectors are not: emoji and some scripts need them.
///
/// ```
/// use pawl_contract::text::unprintable;
/// assert!(['\u{1b}', '\n', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{e0041}'].into_iter().all(unprintable));
/// assert!(!"naïve 損失 خسارة 👩\u{200d}🔬".chars().any(unprintable));
/// ```
pub fn unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen, fillers without a glyph, and Mongolian's separator.
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
            // Zero width space; marks, embeddings, overrides and isolates of the direction.
            | '\u{200b}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Separators of lines and paragraphs.
            | '\u{2028}' | '\u{2029}'
            // Word joiner and invisible operators, deprecated formats, byte order mark, annotations, tags.
            | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}
