//! Reads the configuration of an operator as `pawl operator` does.

use crate::args::operator::OperatorArgs;
use crate::commands::operator::configuration;
use clap::builder::Resettable;
use clap::{Args, Command, FromArgMatches};
use pawl_controller::Config;
use std::ffi::OsStr;

/// The configuration of an operator in `namespace` with these flags, and these variables in its environment instead of
/// those of this process.
///
/// # Errors
/// What `pawl operator` of this version says of a flag or a variable of another version.
pub fn read(flags: &[String], variable: impl Fn(&OsStr) -> Option<String>, namespace: &str) -> Result<Config, String> {
    let command = OperatorArgs::augment_args(Command::new("operator")).no_binary_name(true);
    let mut all = Vec::new();
    for argument in command.get_arguments() {
        let (Some(name), Some(flag)) = (argument.get_env(), argument.get_long()) else { continue };
        let flag = format!("--{flag}");
        let given = |word: &String| *word == flag || word.starts_with(&format!("{flag}="));
        if let Some(value) = variable(name).filter(|_| !flags.iter().any(given)) {
            all.push(format!("{flag}={value}"));
        }
    }
    all.extend_from_slice(flags);
    let command = command.mut_args(|argument| argument.env(Resettable::Reset));
    let matches = command.try_get_matches_from(all).and_then(|matches| OperatorArgs::from_arg_matches(&matches));
    let first = |error: clap::Error| error.to_string().lines().next().unwrap_or_default().to_owned();
    matches.map(|arguments| configuration(arguments, namespace)).map_err(first)
}

/// The defaults of the chart, which are those of `pawl operator`.
pub fn chart_defaults(namespace: &str) -> Config {
    read(&[], |_| None, namespace).expect("each argument has a default or is optional")
}
