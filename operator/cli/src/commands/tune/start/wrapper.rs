//! The commands of a shell script, as far as they can be read without running it.

use super::expansion::{Values, expanded, is_variable};
use std::collections::BTreeSet;
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
/// Words that begin and end what a shell may run never or often; `{` also begins a function.
const BEGIN: [&str; 7] = ["if", "case", "for", "select", "while", "until", "{"];
const END: [&str; 4] = ["fi", "esac", "done", "}"];
/// Words before the names of variables whose new values are not known.
const UNKNOWN: [&str; 4] = ["for", "select", "read", "unset"];
/// Stands for a `$` that the shell does not expand.
const LITERAL: char = '\u{e000}';
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
    /// Those that it has set.
    values: Values,
    /// Those whose values are its own.
    own: BTreeSet<String>,
    /// How many branches, loops and functions are around the line.
    depth: usize,
}

impl Variables {
    fn expanded(&self, word: &str) -> String {
        expanded(word, &self.values).replace(LITERAL, "$")
    }

    /// Of two different values it is not known which one holds, unless the second one extends the first.
    fn set(&mut self, name: &str, written: &str) {
        let value = self.expanded(written);
        let extends = [format!("${name}"), format!("${{{name}")].iter().any(|own| written.contains(own));
        let is_known = match self.values.get(name) {
            None => true,
            Some(before) => before.as_ref().is_some_and(|before| extends || *before == value),
        };
        self.values.insert(name.to_owned(), Some(value).filter(|_| is_known));
    }

    /// Forgets the variables that a command sets to what is not known. Returns whether those that it assigns are kept:
    /// it always runs, and is not a program that gets them.
    fn enter(&mut self, words: &[String], always_runs: bool) -> bool {
        let is = |list: &[&str], word: &str| list.contains(&word);
        let leading = words.iter().take_while(|word| [&BEFORE[..], &BEGIN, &END].iter().any(|list| is(list, word)));
        let leading = leading.count();
        for (at, word) in words.iter().enumerate() {
            self.depth += usize::from(word == "{" || at < leading && is(&BEGIN, word));
            self.depth -= usize::from(self.depth > 0 && at < leading && is(&END, word));
        }
        let is_certain = always_runs && self.depth == 0;
        let assigned = words.iter().filter_map(|word| assignment(word)).filter(|_| !is_certain).map(|(name, _)| name);
        let appended = words.iter().filter_map(|word| Some(word.split_once("+=")?.0));
        let named = words.iter().skip_while(|word| !is(&UNKNOWN, word)).skip(1).map(String::as_str);
        for name in assigned.chain(appended).chain(named) {
            self.values.insert(name.to_owned(), None);
        }
        let program = words.iter().skip(leading).find(|word| assignment(word).is_none());
        is_certain && program.is_none_or(|program| is(&SETTERS, program))
    }
}

/// The commands of a shell script, and the variables to which it gives values of its own.
pub fn read(text: &str) -> (Vec<Line>, BTreeSet<String>) {
    let mut variables = Variables::default();
    let lines = text.replace("\\\n", " ");
    let commands = lines.lines().flat_map(commands);
    let commands = commands.map(|(always_runs, words)| command(words, always_runs, &mut variables)).collect();
    (commands, variables.own)
}

fn command(words: Vec<String>, always_runs: bool, variables: &mut Variables) -> Line {
    let keeps_assigned = variables.enter(&words, always_runs);
    let mut line = Line::default();
    let mut sets = false;
    for word in words {
        let is_first = line.words.is_empty();
        if let Some((name, value)) = assignment(&word).filter(|_| is_first) {
            if !keeps(name, value) {
                variables.own.insert(name.to_owned());
            }
            if keeps_assigned {
                variables.set(name, value);
            }
        } else if sets {
            // Its options, and names without a value.
        } else if ["$@", "$*", "${@", "${*"].iter().any(|all| word.starts_with(all)) {
            line.passes = true;
        } else if is_first && SETTERS.contains(&word.as_str()) {
            sets = true;
        } else if !is_first || !BEFORE.contains(&word.as_str()) {
            let value = variables.expanded(&word);
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

/// The words of each command in a line, without quotes, comments and redirections, and whether it runs whatever the
/// commands before it do, in this shell.
fn commands(line: &str) -> Vec<(bool, Vec<String>)> {
    let (mut all, mut words, mut always_runs) = (Vec::new(), Vec::new(), true);
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
            ('\\', None | Some('"')) => word.extend(chars.next().map(|c| if c == '$' { LITERAL } else { c })),
            ('$', Some('\'')) => word.push(LITERAL),
            ('#', None) if !is_word && word.is_empty() => break,
            // Of `2>&1`.
            ('&', None) if word.ends_with(['>', '<']) => word.push(c),
            (c, None) if c.is_whitespace() || ";|&".contains(c) => {
                if is_word || !word.is_empty() {
                    words.push(mem::take(&mut word));
                }
                is_word = false;
                if !c.is_whitespace() {
                    all.push((always_runs, mem::take(&mut words)));
                    always_runs = c == ';';
                }
            }
            (c, _) => word.push(c),
        }
    }
    if is_word || !word.is_empty() {
        words.push(word);
    }
    all.push((always_runs, words));
    let all = all.into_iter().map(|(always_runs, words)| (always_runs, without_redirections(words)));
    all.filter(|(_, words)| !words.is_empty()).collect()
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

    /// Which value of a variable holds where the script is started is not known without running the shell script.
    #[rstest]
    #[case::once("B=8; export C=$B", "8 8")]
    #[case::same("B=8; B=8; C=1", "8 1")]
    #[case::extended("B=8; B=\"$B --lr 1\"; C=1", "8 --lr 1 1")]
    #[case::branches("if big; then B=64; else B=32; fi; C=1", "$B 1")]
    #[case::nested("B=8\nif a; then\n  if b; then\n    c\n  fi\n  B=4\nfi\nC=1", "$B 1")]
    #[case::case_of("B=8\ncase $1 in\n  a) B=64;;\nesac\nC=1", "$B 1")]
    #[case::condition("B=8; test -n \"$1\" && B=64; C=1", "$B 1")]
    #[case::loop_variable("B=8; for B in 16 32; do x; done; C=1", "$B 1")]
    #[case::function("f() {\n  B=64\n}; f; C=1", "$B 1")]
    #[case::short_function("B=8; f () { B=64; }; f; C=1", "$B 1")]
    #[case::program("B=8 python prepare.py; C=1; B=4 x", "$B 1")]
    #[case::default("B=8; B=4; C=${B:-2}", "$B ${B:-2}")]
    #[case::appended("B=8; B+=4; C=1", "$B 1")]
    #[case::input("B=8; read -r B C", "$B $C")]
    #[case::literal("B='$HOME'; C=\\$HOME", "$HOME $HOME")]
    fn values_that_are_not_certain_are_not_known(#[case] text: &str, #[case] expected: &str) {
        let (commands, _) = read(&format!("{text}\npython train.py $B $C '$B'"));
        assert_eq!(commands.last().unwrap().words[2..].join(" "), format!("{expected} $B"));
    }

    #[test]
    fn a_file_that_is_read_may_set_any_variable() {
        let reads = |text: &str| read(text).0.iter().any(Line::reads_file);
        assert!(reads("set -a; source env.sh; set +a") && reads("test -f .env && . .env"));
        assert!(!reads("source .venv/bin/activate") && !reads(". /opt/conda/etc/profile.d/conda.sh"));
        assert!(!reads("python train.py . env.sh"));
    }
}
