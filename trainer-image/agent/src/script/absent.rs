//! A path that a script was given and that does not exist: why it ended before its first step.

use super::signs;
use pawl_contract::plan::LaunchPlan;
use serde_json::Value;
use std::path::Path;

/// The first absolute path in `words` that does not exist here, and that `said`, the error of a program, names as
/// missing. Paths below `made` are left out: the agent and the script make them.
pub(super) fn path<'a>(words: &'a [String], made: &[&Path], said: &str) -> Option<&'a str> {
    if !signs::lacks_file(said) {
        return None;
    }
    let separates = |c: char| c.is_whitespace() || "=,;:\"'".contains(c);
    let parts = words.iter().flat_map(|word| word.split(separates)).map(|part| part.trim_end_matches('/'));
    let mut paths = parts.filter(|part| part.len() > 1 && part.starts_with('/') && names(said, part));
    paths.find(|part| !made.iter().any(|place| Path::new(part).starts_with(place)) && !Path::new(part).exists())
}

/// Whether `text` contains `path`, or a path below it.
fn names(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let mut rest = text[at + path.len()..].chars();
        match (rest.next(), rest.next()) {
            // The end of a sentence.
            (Some('.'), next) => next.is_none_or(char::is_whitespace),
            (next, _) => next.is_none_or(|c| !(c.is_alphanumeric() || "-_".contains(c))),
        }
    })
}

/// The texts in the configuration of the workload and in its own settings.
pub(super) fn configured(launch: &LaunchPlan) -> Vec<String> {
    let mut found = Vec::new();
    launch.workload.config.values().for_each(|value| texts(value, &mut found));
    launch.settings.workload.iter().flat_map(|own| own.values()).for_each(|value| texts(value, &mut found));
    found
}

fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(all) => all.iter().for_each(|value| texts(value, found)),
        Value::Object(all) => all.values().for_each(|value| texts(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absent_if_it_was_given_and_the_error_names_it() {
        let there = tempfile::tempdir().unwrap();
        let there = there.path().to_str().unwrap();
        let of = |word: &str, said: &str| path(&[word.to_owned()], &[Path::new("/launch")], said).map(str::to_owned);
        let python = |file: &str| format!("FileNotFoundError: [Errno 2] No such file or directory: '{file}'");
        for (word, said) in [
            ("--data=/none/train", python("/none/train/0.bin")),
            ("/none/train/", python("/none/train")),
            ("exec python train.py --data '/none/train'", python("/none/train")),
            ("--data=/none/train", "FileNotFoundError: Couldn't find any data file at /none/train.".to_owned()),
            ("--data=/none/train", "Error: open /none/train: no such file or directory".to_owned()),
        ] {
            assert_eq!(of(word, &said).as_deref(), Some("/none/train"), "{word} {said}");
        }
        for (word, said) in [
            ("--data=/none/train", python("/none/training/0.bin")),
            ("--data=/none/train", python("/tmp/cache/0.bin")),
            ("--data=/none/train", "PermissionError: [Errno 13] Permission denied: '/none/train'".to_owned()),
            ("--out=/launch/out", python("/launch/out/log")),
            ("train.py", python("data.bin")),
            (there, python(&format!("{there}/0.bin"))),
        ] {
            assert_eq!(of(word, &said), None, "{word} {said}");
        }
    }
}
