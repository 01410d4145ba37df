//! The build of the trainer: what the evidence of a job is about.

use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The files that count. Others may be what the command writes.
const SCRIPTS: [&str; 2] = ["py", "sh"];

/// The build that an attempt runs: the version of the built-in trainer; for a custom command the digest of the scripts
/// that it names, by their paths, in a directory that it names too (`cd DIR; python train.py`), or as modules (`python
/// -m train`) of `PYTHONPATH`, so that launches of an edited script are not compared with those before. Empty when it
/// names none. `variable`: its environment.
pub(crate) fn build(command: &[String], variable: &dyn Fn(&str) -> Option<String>) -> String {
    if command.is_empty() {
        return concat!("pawl ", env!("CARGO_PKG_VERSION")).to_owned();
    }
    let words = command.iter().flat_map(|text| text.split(|c: char| c.is_whitespace() || "'\";&|=".contains(c)));
    let words: Vec<String> = words.map(|word| expanded(word, variable)).collect();
    let modules =
        words.windows(2).filter(|pair| pair[0] == "-m").map(|pair| format!("{}.py", pair[1].replace('.', "/")));
    let names: BTreeSet<PathBuf> = words.iter().cloned().chain(modules).map(PathBuf::from).collect();
    let imported = variable("PYTHONPATH").unwrap_or_default();
    let imported = imported.split(':').map(PathBuf::from).filter(|path| path.is_absolute());
    let folders: BTreeSet<PathBuf> = names.iter().filter(|name| name.is_absolute()).cloned().chain(imported).collect();
    // An absolute name stays as it is.
    let files: BTreeSet<PathBuf> = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .filter(|file| file.is_file())
        .collect();
    let mut hash = Sha256::new();
    let mut any = false;
    for file in &files {
        let is_script = file.extension().is_some_and(|kind| SCRIPTS.iter().any(|script| kind == *script));
        if let Some(content) = is_script.then(|| std::fs::read(file).ok()).flatten() {
            hash.update(Sha256::digest(&content));
            any = true;
        }
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if any { format!("sha256:{digest}") } else { String::new() }
}

/// The word of a shell with the values of its variables: `$NAME`, `${NAME}`, and `${NAME:-DEFAULT}` or
/// `${NAME-DEFAULT}`.
fn expanded(word: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let mut pieces = word.split('$');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = match piece.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(braced) => braced,
            None => piece.split_at(piece.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(piece.len())),
        };
        let (name, default) = name.split_once('-').unwrap_or((name, ""));
        // With a colon, a variable that is empty has the default too.
        let (name, counts) = name.strip_suffix(':').map_or((name, false), |name| (name, true));
        let value = variable(name).filter(|value| !(counts && value.is_empty()));
        text.push_str(value.as_deref().unwrap_or(default));
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
        let scripts =
            |name: &str| ["SCRIPTS", "PYTHONPATH"].contains(&name).then(|| dir.path().to_str().unwrap().to_owned());
        let by_default = format!("exec python ${{APP-{}}}/train.py", dir.path().display());
        let commands: [&[&str]; 7] = [
            &["python3", path, "--lr=$(settings.learningRate)"],
            &["sh", "-c", "exec python3 \"$SCRIPTS/train.py\""],
            &["sh", "-c", "cd /; python3 ${SCRIPTS}/train.py"],
            // As in the examples.
            &["sh", "-c", "exec python \"${SCRIPTS:-/app}/train.py\""],
            &["sh", "-c", &by_default],
            &["sh", "-c", "cd $SCRIPTS && python3 train.py"],
            &["python3", "-m", "train"],
        ];
        let all = || commands.map(|command| of(command, &scripts));
        let before = all();
        assert!(before.iter().all(|build| build.starts_with("sha256:") && *build == before[0]), "{before:?}");
        assert_eq!(all(), before);
        std::fs::write(&script, "print(2)").unwrap();
        assert!(all().iter().all(|build| *build != before[0]));
        // No file is named: nothing is known.
        assert_eq!(of(&["python3", "-m", "none"], &scripts), "");
        assert_eq!(of(&["python3", "train.py"], &|_| None), "");
        assert_eq!(of(&["python3", "/none/train.py"], &scripts), "");
        let log = dir.path().join("train.log");
        std::fs::write(&log, "").unwrap();
        assert_eq!(of(&["train", log.to_str().unwrap()], &scripts), "");
    }
}
