//! Placeholders in the command and the environment of a custom trainer: how a script that does not read the plan gets
//! its settings.
//!
//! | Placeholder | Replaced by |
//! |---|---|
//! | `$(NAME)` | the value |
//! | `$(NAME:-TEXT)` | the value, or `TEXT` where the manifest gives none |
//! | `$(NAME:+TEXT)` | `TEXT` where the manifest gives a value other than `false` and `None`, otherwise nothing |
//! | `$(NAME=VALUE:+TEXT)` | `TEXT` if the value is `VALUE`, otherwise nothing |
//! | `$(VARIABLE)` | the environment variable, in capital letters; unchanged where it is not set ([`Rendered::unset`]) |
//! | `$$(` | `$(`, literally, as in Kubernetes |
//!
//! `TEXT` may contain placeholders. An argument that consists of conditions (`:+`) only and is replaced by nothing is
//! omitted. Anything else in parentheses, such as `$(cat list)`, is left to the shell. The names are in [`Name`].

mod parse;
mod render;

pub use parse::{Name, TemplateError, references};
pub use render::{Places, RenderError, Rendered, Values, expand, has_value, render};

/// Whether `text` contains a placeholder or an escape of one. Text that is not valid counts as such.
///
/// ```
/// use pawl_contract::template::is_template;
///
/// assert!(is_template("--batch=$(settings.batchPerGpu)") && is_template("$$(date)"));
/// assert!(!is_template("$(POD_NAME)") && !is_template("$(cat list)"));
/// ```
pub fn is_template(text: &str) -> bool {
    text.contains("$$(") || references(text).map_or(true, |found| !found.is_empty())
}
