//! The build of the trainer: what the evidence of a job is about.

use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The files that count. Others may be what the command writes.
const SCRIPTS: [&str; 2] = ["py", "sh"];

/// The build that an attempt runs: the version of the built-in trainer; for a custom command the digest of the scripts that it names, so that launches of
/// an edited script are not compared with those before. Empty when it names none. `variable`: its environment.
pub(crate) fn build(command: &[String], variable: &dyn Fn(&str) -> Option<String>) -> String {
    if command.is_empty() {
        return concat!("pawl ", env!("CARGO_PKG_VERSION")).to_owned();
    }
    let words = command.iter().flat_map(|text| text.split(|c: char| c.is_whitespace() || "'\";&|=".contains(c)));
    let files: BTreeSet<PathBuf> = words.map(|word| PathBuf::from(expanded(word, variable))).collect();
    let mut hash = Sha256::new();
    let mut any = false;
    for file in files.iter().filter(|file| file.is_absolute()) {
        let is_script = file.extension().is_some_and(|kind| SCRIPTS.iter().any(|script| kind == *script));
        if let Some(content) = is_script.then(|| std::fs::read(file).ok()).flatten() {
            hash.update(Sha256::digest(&content));
            any = true;
        }
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if any { format!("sha256:{digest}") } else { String::new() }
}

/// The word of a shell with the values of its variables, `$NAME` and `${NAME}`.
fn expanded(word: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let mut pieces = word.split('$');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = match piece.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(braced) => braced,
            None => piece.split_at(piece.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(piece.len())),
        };
        text.push_str(&variable(name).unwrap_or_default());
        text.push_str(rest);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &[&str], variable: &dyn Fn(&str) -> Option<String>) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        build(&command, variable)
    }

    #[test]
    fn an_edited_script_is_another_build() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("train.py");
        std::fs::write(&script, "print(1)").unwrap();
        let path = script.to_str().unwrap();
        let scripts = |name: &str| (name == "SCRIPTS").then(|| dir.path().to_str().unwrap().to_owned());
        let commands: [&[&str]; 3] = [
            &["python3", path, "--lr=$(settings.learningRate)"],
            &["sh", "-c", "exec python3 \"$SCRIPTS/train.py\""],
            &["sh", "-c", "cd /; python3 ${SCRIPTS}/train.py"],
        ];
        let all = || commands.map(|command| of(command, &scripts));
        let before = all();
        assert!(before.iter().all(|build| build.starts_with("sha256:") && *build == before[0]), "{before:?}");
        assert_eq!(all(), before);
        std::fs::write(&script, "print(2)").unwrap();
        assert!(all().iter().all(|build| *build != before[0]));
        // No file is named: nothing is known.
        assert_eq!(of(&["python3", "-m", "train"], &scripts), "");
        assert_eq!(of(&["python3", "/none/train.py"], &scripts), "");
        let log = dir.path().join("train.log");
        std::fs::write(&log, "").unwrap();
        assert_eq!(of(&["train", log.to_str().unwrap()], &scripts), "");
    }
}
