//! The options of a script's command line, read from its source.

use super::arguments::{ARGUMENTS, Argument};
use serde::Deserialize;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Reads the source with the parser of Python.
const READER: &str = include_str!("options.py");

/// An option that a script declares.
#[derive(Debug, Deserialize)]
struct Declared {
    names: Vec<String>,
    /// Such as `-b`.
    short: Vec<String>,
    takes: Takes,
    default: serde_json::Value,
    choices: Vec<String>,
}

/// What an option is followed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum Takes {
    /// Nothing: it is a switch.
    Nothing,
    /// `True` or `False`.
    Boolean,
    Value,
    /// Unknown, such as with a custom action.
    Other,
}

/// The options that a script in Python declares.
#[derive(Debug, Default, Deserialize)]
pub struct Options {
    declared: Vec<Declared>,
    /// Whether it has no others.
    complete: bool,
    /// Whether what is not known is not there, rather than called as usual.
    #[serde(skip)]
    pub exact: bool,
}

impl Options {
    /// The options that a script declares one by one, with argparse or click. The script is read by the Python of this machine, not run;
    /// without Python nothing is known.
    pub fn of(script: &Path) -> Self {
        let mut options = Self::read(script).unwrap_or_default();
        // A script that has none of the usual options may have its parser in another file.
        options.complete &= ARGUMENTS.iter().any(|argument| options.find(argument.names).is_some());
        options
    }

    /// As [`Self::of`], of a script that is started with these arguments: it has the options that it declares, and those that are given.
    pub fn given(script: &Path, arguments: &[String]) -> Self {
        let mut options = Self::of(script);
        (options.complete, options.exact) = (true, true);
        for (index, word) in arguments.iter().enumerate().filter(|(_, word)| word.starts_with("--")) {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if options.resolve(name).is_none() {
                let next = arguments.get(index + 1).filter(|next| !next.starts_with('-'));
                let takes = if value.is_some() || next.is_some() { Takes::Value } else { Takes::Nothing };
                let default = serde_json::Value::Null;
                let (names, short, choices) = (vec![name.to_owned()], Vec::new(), Vec::new());
                options.declared.push(Declared { names, short, takes, default, choices });
            }
        }
        options
    }

    /// The names of the option that a word of a command line names, maybe in short or abbreviated, and whether a value follows it.
    pub fn resolve(&self, word: &str) -> Option<(&[String], bool)> {
        let is = |option: &&Declared| option.names.iter().chain(&option.short).any(|name| name == word);
        let is_long = word.starts_with("--") && word.len() > 2;
        let abbreviated = || {
            let mut all = self.declared.iter().filter(|option| option.names.iter().any(|name| name.starts_with(word)));
            all.next().filter(|_| is_long && all.next().is_none())
        };
        let option = self.declared.iter().find(is).or_else(abbreviated)?;
        Some((&option.names, matches!(option.takes, Takes::Value | Takes::Boolean)))
    }

    fn read(script: &Path) -> Option<Self> {
        let mut python = Command::new("python3")
            .args(["-I", "-"])
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        python.stdin.take()?.write_all(READER.as_bytes()).ok()?;
        serde_json::from_slice(&python.wait_with_output().ok()?.stdout).ok()
    }

    /// The first of these options that the script has, in its own spelling: `--batch_size` and `--batchSize` are `--batch-size`.
    fn find(&self, names: &[&str]) -> Option<(&str, &Declared)> {
        names.iter().find_map(|wanted| {
            self.declared.iter().find_map(|option| {
                let name = option.names.iter().find(|name| plain(name) == *wanted)?;
                Some((name.as_str(), option))
            })
        })
    }

    /// The default of an option, where it is a positive number.
    pub fn number(&self, argument: &Argument) -> Option<u32> {
        let (_, option) = self.find(argument.names)?;
        u32::try_from(option.default.as_u64()?).ok().filter(|&number| number > 0)
    }

    /// The word of a command that passes a value to the script; the usual one where other options may exist. `None`: the script has
    /// no such option, or one that cannot be used so.
    pub fn word(&self, argument: &Argument) -> Option<String> {
        let Some((name, option)) = self.find(argument.names) else {
            return (!self.complete).then(|| argument.word(argument.usual));
        };
        match (argument.is_switch(), option.takes) {
            (true, Takes::Nothing | Takes::Boolean) if option.default == true => None,
            (true, Takes::Nothing) => Some(argument.word(name)),
            (true, Takes::Boolean) => Some(argument.word(&format!("{name}=True"))),
            (false, Takes::Value) => Some(argument.word(name)),
            _ => None,
        }
    }

    /// The first of these options that the script has, with the value among `values` that it takes, such as `--dtype=bfloat16`.
    pub fn choice(&self, names: &[&str], values: &[&str]) -> Option<String> {
        let (name, option) = self.find(names)?;
        let taken = |value: &&&str| option.choices.is_empty() || option.choices.iter().any(|choice| choice == **value);
        let value = values.iter().find(taken)?;
        (option.takes == Takes::Value).then(|| format!("{name}={value}"))
    }
}

/// An option in small letters, with `-` between words.
pub fn plain(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && text.ends_with(|last: char| last.is_ascii_lowercase()) {
            text.push('-');
        }
        text.push(if c == '_' { '-' } else { c.to_ascii_lowercase() });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{BATCH, BF16, COMPILE, FUSED, RESUME, WORKERS};
    use super::*;

    fn options(source: &str) -> Options {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        Options::of(file.path())
    }

    #[test]
    fn options_are_written_as_the_script_spells_them() {
        let options = options(
            r##"
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=32, help="1) items (of a GPU), default=16; not '--epochs'")
# parser.add_argument("--workers", type=int, default=4)
parser.add_argument('--use_compile', type=bool, default=False)
parser.add_argument("--bf16", help="like store_true",
                    action="store_true")
parser.add_argument("--resume", action="store_true")
subprocess.run(["tool", "--fused"])
"##,
        );
        assert!(options.complete);
        assert_eq!(options.word(&BATCH).as_deref(), Some("--batch_size=$(settings.batchPerGpu)"));
        assert_eq!(options.number(&BATCH), Some(32));
        assert_eq!(options.word(&COMPILE).as_deref(), Some("$(settings.compile=Fuse:+--use_compile=True)"));
        assert_eq!(options.word(&BF16).as_deref(), Some("$(settings.precision=bf16:+--bf16)"));
        assert_eq!(options.word(&WORKERS), None, "it is a comment");
        assert_eq!(options.word(&FUSED), None, "it is another program's");
        assert_eq!(options.word(&RESUME), None, "it takes no path");
    }

    #[test]
    fn options_of_click_are_read_and_what_is_on_by_default_is_no_phase() {
        let source = "@click.option('--batchSize', default=16)\n@click.option('--compile/--eager', default=True)\n";
        let options = options(&format!("{source}@click.option('--fused', is_flag=True)\ndef main(): ...\n"));
        assert_eq!((options.number(&BATCH), options.word(&COMPILE)), (Some(16), None));
        assert_eq!(options.word(&FUSED).as_deref(), Some("$(settings.optimizerKernel=Fused:+--fused)"));
    }

    #[test]
    fn a_precision_is_chosen_among_the_values_that_the_script_takes() {
        let source = "a.add_argument('--seed')\na.add_argument('--dtype', choices=['float32', 'bfloat16'])\n";
        let choice = options(source).choice(&["--mixed-precision", "--dtype"], &["bf16", "bfloat16"]);
        assert_eq!(choice.as_deref(), Some("--dtype=bfloat16"));
    }

    #[test]
    fn options_of_a_command_line_are_found_by_their_short_and_abbreviated_names() {
        let source =
            "a.add_argument('-b', '--batch_size', type=int)\na.add_argument('--compile', action='store_true')\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        let given = ["-b", "4", "--comp", "--lr", "0.1", "--workers=2", "--verbose"].map(str::to_owned);
        let options = Options::given(file.path(), &given);
        let resolved = |word: &str| options.resolve(word).map(|(names, value)| (names[0].clone(), value));
        for (word, expected) in [
            ("-b", Some(("--batch_size", true))),
            ("--batch", Some(("--batch_size", true))),
            ("--comp", Some(("--compile", false))),
            ("--lr", Some(("--lr", true))),
            ("--verbose", Some(("--verbose", false))),
            ("--", None),
            ("--fused", None),
        ] {
            assert_eq!(resolved(word), expected.map(|(name, value)| (name.to_owned(), value)), "{word}");
        }
        // What is given is an option, what is neither given nor declared is none.
        assert_eq!(options.word(&WORKERS).as_deref(), Some("--workers=$(settings.loaderWorkers)"));
        assert_eq!(options.word(&FUSED), None);
    }

    #[test]
    fn a_script_whose_options_are_unknown_gets_the_usual_ones() {
        for source in [
            "parser = HfArgumentParser(Arguments)\nparser.add_argument('--seed')\n",
            "parser = ArgumentParser(parents=[common])\nparser.add_argument('--seed')\n",
            "parser.add_argument('--verbose')\n",
            "not Python (",
        ] {
            let options = options(source);
            assert!(!options.complete && options.number(&BATCH).is_none(), "{source}");
            assert_eq!(options.word(&BATCH).as_deref(), Some("--batch-size=$(settings.batchPerGpu)"));
        }
    }
}
