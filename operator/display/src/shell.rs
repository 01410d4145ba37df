//! Commands as a POSIX shell reads them.

/// A word.
///
/// ```
/// assert_eq!(pawl_display::shell::quoted("it's $x"), "'it'\\''s $x'");
/// ```
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A command.
pub fn line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{line, quoted};

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        for (word, expected) in [("--a=b", "--a=b"), ("", "''"), ("a b", "'a b'"), ("it's $x", "'it'\\''s $x'")] {
            assert_eq!(quoted(word), expected);
        }
        assert_eq!(line(&["train", "--out", "my runs"].map(str::to_owned)), "train --out 'my runs'");
    }
}
