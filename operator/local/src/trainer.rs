//! The build of the trainer: what the evidence of a job is about.

use pawl_agent::scripts;
use sha2::{Digest, Sha256};

/// The build that an attempt runs: the version of the built-in trainer; for a custom command the digest of the
/// [`scripts`] that it names, so that launches of an edited script are not compared with those before. Empty when it
/// names none. `variable`: its environment.
pub(crate) fn build(command: &[String], variable: &dyn Fn(&str) -> Option<String>) -> String {
    if command.is_empty() {
        return concat!("pawl ", env!("CARGO_PKG_VERSION")).to_owned();
    }
    let mut hash = Sha256::new();
    let mut any = false;
    for content in scripts(command, variable).iter().filter_map(|file| std::fs::read(file).ok()) {
        hash.update(Sha256::digest(&content));
        any = true;
    }
    let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    if any { format!("sha256:{digest}") } else { String::new() }
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
