//! The values of variables in words of a shell script, as far as they are known without running it.

use std::collections::BTreeMap;

/// The values of variables that a shell script has set; `None`: which one is not known.
pub type Values = BTreeMap<String, Option<String>>;

/// What is longer, bytes, or has more defaults in one another, is not expanded.
const MOST: usize = 64 << 10;
const DEPTH: usize = 16;

/// `word` with the values of its variables: those that the shell script has set before, those of the environment, and
/// defaults as in `${PYTHON:-python3}`. What finds the directory of the shell script is `.`; everything else stays as
/// it is written.
pub fn expanded(word: &str, values: &Values) -> String {
    limited(word, values, DEPTH).unwrap_or_else(|| word.to_owned())
}

/// As [`expanded`]; `None`: it is too long, or has more defaults in one another than `depth`.
fn limited(word: &str, values: &Values, depth: usize) -> Option<String> {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        text += before;
        let (written, value) = match after.chars().next() {
            Some('{') => braced(after, values, depth),
            Some('(') => output(after),
            _ => plain(after, values),
        };
        match value {
            Some(value) => text += &value,
            None => {
                text.push('$');
                text += &after[..written];
            }
        }
        if text.len() > MOST {
            return None;
        }
        rest = &after[written..];
    }
    Some(text + rest)
}

/// Whether a word is a variable alone: `$NAME` or `${NAME...}`.
pub fn is_variable(word: &str) -> bool {
    let Some(text) = word.strip_prefix('$') else { return false };
    match text.starts_with('{') {
        true => enclosed(text, '{', '}') == Some(text.len()),
        false => !text.is_empty() && name(text) == text.len(),
    }
}

/// The length of the `NAME` at the beginning of `text`, and its value.
fn plain(text: &str, values: &Values) -> (usize, Option<String>) {
    let length = name(text);
    (length, value(&text[..length], values))
}

/// The length of the `{NAME}` or `{NAME:-DEFAULT}` at the beginning of `text`, and its value.
fn braced(text: &str, values: &Values, depth: usize) -> (usize, Option<String>) {
    let Some(length) = enclosed(text, '{', '}') else { return (text.len(), None) };
    let inner = &text[1..length - 1];
    let (name, operator) = inner.split_at(name(inner));
    let default = [":-", "-", ":=", "="].iter().find_map(|with| operator.strip_prefix(with));
    let value = match default {
        _ if inner == "0%/*" => Some(".".to_owned()),
        Some(_) if values.get(name).is_some_and(Option::is_none) => None,
        Some(default) => {
            let set = value(name, values).filter(|value| !value.is_empty());
            set.or_else(|| limited(default, values, depth.checked_sub(1)?))
        }
        None if operator.is_empty() => value(name, values),
        None => None,
    };
    (length, value)
}

/// The length of the `(COMMAND)` at the beginning of `text`, and what it prints.
fn output(text: &str) -> (usize, Option<String>) {
    let Some(length) = enclosed(text, '(', ')') else { return (text.len(), None) };
    // Such as `$(cd "$(dirname "$0")" && pwd)`: files are looked for beside the shell script, too.
    (length, text[..length].contains("dirname").then(|| ".".to_owned()))
}

/// The length of what is enclosed at the beginning of `text`, with both ends.
fn enclosed(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0_usize;
    text.char_indices().find_map(|(at, c)| {
        depth += usize::from(c == open);
        depth -= usize::from(c == close);
        (depth == 0).then_some(at + c.len_utf8())
    })
}

/// The length of the name at the beginning of `text`.
fn name(text: &str) -> usize {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return 0;
    }
    text.find(|c: char| !is_name(c)).unwrap_or(text.len())
}

fn value(name: &str, values: &Values) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    values.get(name).cloned().unwrap_or_else(|| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::default("${NO_SUCH:-python3}", "python3")]
    #[case::nested("${NO_SUCH:-${NOR_THIS-python3}}.12", "python3.12")]
    #[case::set("$PY -u ${PY}3 ${PY:-other} ${EMPTY:-other}", "python -u python3 python other")]
    #[case::directory("$(cd $(dirname ${BASH_SOURCE[0]}) && pwd)/train.py ${0%/*}/x", "./train.py ./x")]
    #[case::unknown(
        "--n=$(nvidia-smi -L) $NO_SUCH ${NO_SUCH%.py} $1 $",
        "--n=$(nvidia-smi -L) $NO_SUCH ${NO_SUCH%.py} $1 $"
    )]
    #[case::open("${PY $(dirname", "${PY $(dirname")]
    fn variables_have_their_values(#[case] word: &str, #[case] expected: &str) {
        let values = [("PY", "python"), ("EMPTY", "")].map(|(name, value)| (name.to_owned(), Some(value.to_owned())));
        assert_eq!(expanded(word, &values.into()), expected);
    }

    #[test]
    fn what_would_become_too_long_or_deep_stays_as_it_is_written() {
        let values = Values::from([("A".to_owned(), Some("a".repeat(MOST)))]);
        assert_eq!(expanded("$A$A", &values), "$A$A");
        let nested = |depth: usize| "${NO_SUCH:-".repeat(depth) + "a" + &"}".repeat(depth);
        assert_eq!(expanded(&nested(DEPTH), &values), "a");
        assert!(expanded(&nested(10_000), &values).ends_with('}'));
    }
}
