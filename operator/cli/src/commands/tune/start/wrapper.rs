//! The commands of a shell script, as far as they can be read without running it.

use super::expansion::{expanded, is_variable};
use std::collections::{BTreeMap, BTreeSet};
use std::mem;

/// A command of a shell script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Its words with the values of variables, as far as these are known; without variables that it sets before them,
    /// and without `"$@"`.
    pub words: Vec<String>,
    /// Whether it passes on the arguments of the shell script.
    pub passes: bool,
}

/// Words before a command.
const BEFORE: [&str; 8] = ["exec", "nohup", "time", "then", "else", "do", "if", "{"];
/// Builtins that set variables.
const SETTERS: [&str; 5] = ["export", "declare", "typeset", "readonly", "local"];
/// Files that are read for an environment, and set nothing of a training script.
const ENVIRONMENTS: [&str; 2] = ["activate", "conda.sh"];

impl Line {
    /// Whether it reads another file in this shell, which may set any variable.
    pub fn reads_file(&self) -> bool {
        let [command, file, ..] = &self.words[..] else { return false };
        [".", "source"].contains(&command.as_str()) && !ENVIRONMENTS.iter().any(|known| file.ends_with(known))
    }
}

/// The variables of a shell script, up to a line.
#[derive(Debug, Default)]
struct Variables {
    /// Those that it has set, with their values.
    values: BTreeMap<String, String>,
    /// Those whose values are its own.
    own: BTreeSet<String>,
}

/// The commands of a shell script, and the variables to which it gives values of its own.
pub fn read(text: &str) -> (Vec<Line>, BTreeSet<String>) {
    let mut variables = Variables::default();
    let lines = text.replace("\\\n", " ");
    let commands = lines.lines().flat_map(commands).map(|words| command(words, &mut variables)).collect();
    (commands, variables.own)
}

fn command(words: Vec<String>, variables: &mut Variables) -> Line {
    let mut line = Line::default();
    let mut sets = false;
    for word in words {
        let is_first = line.words.is_empty();
        if let Some((name, value)) = assignment(&word).filter(|_| is_first) {
            if !keeps(name, value) {
                variables.own.insert(name.to_owned());
            }
            let value = expanded(value, &variables.values);
            variables.values.insert(name.to_owned(), value);
        } else if sets {
            // Its options, and names without a value.
        } else if ["$@", "$*", "${@", "${*"].iter().any(|all| word.starts_with(all)) {
            line.passes = true;
        } else if is_first && SETTERS.contains(&word.as_str()) {
            sets = true;
        } else if !is_first || !BEFORE.contains(&word.as_str()) {
            let value = expanded(&word, &variables.values);
            // A variable alone may stand for several words, or none.
            match value != word && is_variable(&word) {
                true => line.words.extend(value.split_whitespace().map(str::to_owned)),
                false => line.words.push(value),
            }
        }
    }
    line
}

/// Whether a variable that gets this value keeps the one that it was given, as in `BATCH_SIZE=${BATCH_SIZE:-32}`.
fn keeps(name: &str, value: &str) -> bool {
    let open = format!("${{{name}");
    let mut named = value.match_indices(&open).map(|(at, _)| &value[at + open.len()..]);
    named.any(|rest| rest.starts_with(['}', ':', '-', '=', '+'])) || value == format!("${name}")
}

/// The name and the value of `NAME=VALUE`.
pub fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()).then_some((name, value))
}

/// The words of each command in a line, without quotes, comments and redirections.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut is_word, mut quote) = (String::new(), false, None);
    // Of the output of a command, `$(...)`.
    let mut depth = 0_usize;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('(', _) if depth > 0 || word.ends_with('$') && quote != Some('\'') => {
                word.push(c);
                depth += 1;
            }
            (c, _) if depth > 0 => {
                depth -= usize::from(c == ')');
                word.extend(Some(c).filter(|c| !['\'', '"'].contains(c)));
            }
            ('\'' | '"', None) => (quote, is_word) = (Some(c), true),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => word.extend(chars.next()),
            ('#', None) if !is_word && word.is_empty() => break,
            // Of `2>&1`.
            ('&', None) if word.ends_with(['>', '<']) => word.push(c),
            (c, None) if c.is_whitespace() || ";|&".contains(c) => {
                if is_word || !word.is_empty() {
                    words.push(mem::take(&mut word));
                }
                is_word = false;
                if !c.is_whitespace() {
                    all.push(mem::take(&mut words));
                }
            }
            (c, _) => word.push(c),
        }
    }
    if is_word || !word.is_empty() {
        words.push(word);
    }
    all.push(words);
    all.into_iter().map(without_redirections).filter(|words| !words.is_empty()).collect()
}

fn without_redirections(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let operator = word.trim_start_matches(|c: char| c.is_ascii_digit());
        match operator.starts_with(['>', '<']) {
            true if operator.trim_start_matches(['>', '<']).is_empty() => drop(words.next()),
            true => {}
            false => kept.push(word),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn the_commands_of_a_shell_script_are_read() {
        let text = "#!/bin/bash\nset -eu\nexport LR=0.1 EPOCHS=${EPOCHS:-3}\ncd src && BATCH=8 exec python3 -u train.py \\\n  \
                    --name 'a b' \"$@\" > log 2>&1 # not this\n";
        let (commands, set) = read(text);
        let words: Vec<String> = commands.iter().map(|line| line.words.join("|")).collect();
        assert_eq!(words, ["set|-eu", "", "cd|src", "python3|-u|train.py|--name|a b"]);
        assert_eq!(commands.iter().map(|line| line.passes).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(set.into_iter().collect::<Vec<_>>(), ["BATCH", "LR"]);
    }

    /// A variable that the shell script gives another value would not be varied by launches.
    #[rstest]
    #[case::prefix("BATCH=${BATCH_SIZE:-32}", "BATCH")]
    #[case::declared("declare -x LR=0.1 EPOCHS", "LR")]
    #[case::typed("typeset -ix A=1; readonly B=2", "A B")]
    #[case::branch("if [ -n \"$X\" ]; then export LR=0.1; fi", "LR")]
    #[case::kept("A=${A} B=${B-1} C=${C:=1} D=$D E=${E:-${X}}", "")]
    #[case::cut("A=${A%.py}", "A")]
    fn variables_that_are_overridden_are_known(#[case] text: &str, #[case] expected: &str) {
        let (_, set) = read(text);
        assert_eq!(set.into_iter().collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn a_file_that_is_read_may_set_any_variable() {
        let reads = |text: &str| read(text).0.iter().any(Line::reads_file);
        assert!(reads("set -a; source env.sh; set +a") && reads("test -f .env && . .env"));
        assert!(!reads("source .venv/bin/activate") && !reads(". /opt/conda/etc/profile.d/conda.sh"));
        assert!(!reads("python train.py . env.sh"));
    }
}
