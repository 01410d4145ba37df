//! The scripts that a command names.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The files that count. Others may be what the command writes.
const SCRIPTS: [&str; 2] = ["py", "sh"];

/// The scripts that a command names: by their paths, in a directory that it names too (`cd DIR; python train.py`), or
/// as modules (`python -m train`) of `PYTHONPATH`. `variable`: its environment.
pub fn scripts(command: &[String], variable: &dyn Fn(&str) -> Option<String>) -> BTreeSet<PathBuf> {
    let words = words(command, variable);
    let modules =
        words.windows(2).filter(|pair| pair[0] == "-m").map(|pair| format!("{}.py", pair[1].replace('.', "/")));
    let names: BTreeSet<PathBuf> = words.iter().cloned().chain(modules).map(PathBuf::from).collect();
    let imported = variable("PYTHONPATH").unwrap_or_default();
    let imported = imported.split(':').map(PathBuf::from).filter(|path| path.is_absolute());
    let folders: BTreeSet<PathBuf> = names.iter().filter(|name| name.is_absolute()).cloned().chain(imported).collect();
    let is_script = |file: &PathBuf| file.extension().is_some_and(|kind| SCRIPTS.iter().any(|script| kind == *script));
    // An absolute name stays as it is.
    let files = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.filter(|file| is_script(file) && file.is_file()).collect()
}

/// The words of a command, those of a shell's script (`sh -c SCRIPT`) too, with the values of their variables.
pub(super) fn words(command: &[String], variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let words = command.iter().flat_map(|text| text.split(|c: char| c.is_whitespace() || "'\";&|=".contains(c)));
    words.map(|word| expanded(word, variable)).collect()
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
