//! Reads placeholders.

use crate::settings::Settings;
use std::fmt;

/// What a placeholder names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, strum::EnumIter)]
pub enum Name {
    /// `settings.NAME`: a setting. `accumulationSteps` is derived where `globalBatch` is set.
    Setting(String),
    /// `settings.workload.KEY`: a setting of the workload.
    Workload(String),
    /// `seed`: the seed of the launch.
    Seed,
    /// `job.name`: the name of the job.
    Job,
    /// `launch.name`: the name of the launch.
    Launch,
    /// `launch.kind`: its purpose, such as `Measure` or `Train`.
    Kind,
    /// `launch.steps`: its length in optimizer steps; none where the length is given in epochs.
    Steps,
    /// `launch.items`: its length in items of all ranks; none where the length is given in epochs.
    Items,
    /// `launch.epochs`: its length in epochs; none where the length is given in steps or items.
    Epochs,
    /// `launch.evalSteps`: optimizer steps between evaluations: of `train.evalEvery` in training, and all steps of a
    /// quality launch, which is judged by the evaluation at its end; none without `train.evalEvery`, in other launches,
    /// and where the length is given in epochs.
    EvalSteps,
    /// `launch.dir`: its working directory.
    Dir,
    /// `checkpoint.dir`: the directory for checkpoints. That of the job in training, otherwise one of the launch alone.
    CheckpointDir,
    /// `checkpoint.latest`: the newest entry of that directory, such as `checkpoint-500`; none without one.
    CheckpointLatest,
    /// `checkpoint.everySeconds`: seconds between checkpoints; none in other launches than Train.
    CheckpointEvery,
    /// `checkpoint.keep`: number of checkpoints to keep; none in other launches than Train.
    CheckpointKeep,
    /// `data.dir`: the directory for generated data.
    DataDir,
}

impl Name {
    /// The name as it is written.
    pub fn written(&self) -> String {
        match self {
            Self::Setting(name) => format!("settings.{name}"),
            Self::Workload(key) => format!("settings.workload.{key}"),
            Self::Seed => "seed".to_owned(),
            Self::Job => "job.name".to_owned(),
            Self::Launch => "launch.name".to_owned(),
            Self::Kind => "launch.kind".to_owned(),
            Self::Steps => "launch.steps".to_owned(),
            Self::Items => "launch.items".to_owned(),
            Self::Epochs => "launch.epochs".to_owned(),
            Self::EvalSteps => "launch.evalSteps".to_owned(),
            Self::Dir => "launch.dir".to_owned(),
            Self::CheckpointDir => "checkpoint.dir".to_owned(),
            Self::CheckpointLatest => "checkpoint.latest".to_owned(),
            Self::CheckpointEvery => "checkpoint.everySeconds".to_owned(),
            Self::CheckpointKeep => "checkpoint.keep".to_owned(),
            Self::DataDir => "data.dir".to_owned(),
        }
    }

    /// All names other than those of settings.
    fn fixed() -> impl Iterator<Item = Self> {
        <Self as strum::IntoEnumIterator>::iter().filter(|name| !matches!(name, Self::Setting(_) | Self::Workload(_)))
    }

    fn read(text: &str) -> Option<Self> {
        if let Some(key) = text.strip_prefix("settings.workload.") {
            return (!key.is_empty()).then(|| Self::Workload(key.to_owned()));
        }
        if let Some(setting) = text.strip_prefix("settings.") {
            // Maps have no value of their own; the agent itself sets the variables of NCCL.
            let known =
                !["workload", "nccl", "compileScope"].contains(&setting) && Settings::names().any(|n| n == setting);
            return known.then(|| Self::Setting(setting.to_owned()));
        }
        Self::fixed().find(|name| name.written() == text)
    }
}

/// Error: a placeholder is not valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The placeholder as it was written.
    pub placeholder: String,
    /// The problem.
    pub message: String,
    /// How to correct it.
    pub remedy: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.placeholder, self.message, self.remedy)
    }
}

impl std::error::Error for TemplateError {}

/// A part of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Variable(String),
    Placeholder(Name, Form),
}

/// How the value of a placeholder is used.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    Value,
    Default(Vec<Piece>),
    If { equals: Option<String>, then: Vec<Piece> },
}

/// The settings and other values that the placeholders of `text` name, those inside of placeholders included, and
/// whether a value is required: `$(NAME)` outside of conditions.
///
/// # Errors
/// [`TemplateError`]: a placeholder is unknown or malformed.
pub fn references(text: &str) -> Result<Vec<(Name, bool)>, TemplateError> {
    let mut found = Vec::new();
    collect(&parse(text)?, true, &mut found);
    Ok(found)
}

fn collect(pieces: &[Piece], always: bool, found: &mut Vec<(Name, bool)>) {
    for piece in pieces {
        let Piece::Placeholder(name, form) = piece else { continue };
        found.push((name.clone(), always && *form == Form::Value));
        match form {
            Form::Value => {}
            Form::Default(pieces) | Form::If { then: pieces, .. } => collect(pieces, false, found),
        }
    }
}

/// The parts of `text`.
pub(super) fn parse(text: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$(") {
            plain.push_str("$(");
            rest = after;
            continue;
        }
        let found = rest.strip_prefix("$(").and_then(|inside| Some((inside, closing(inside)?)));
        let Some((inside, end)) = found else {
            plain.push('$');
            rest = &rest[1..];
            continue;
        };
        match placeholder(&inside[..end])? {
            Some(piece) => {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(piece);
                rest = &inside[end + 1..];
            }
            // A command of the shell: what is inside of it is replaced.
            None => {
                plain.push_str("$(");
                rest = inside;
            }
        }
    }
    plain.push_str(rest);
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// Position of the parenthesis that closes the one before `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The placeholder `$(inside)`; `None` when it is none of Pawl.
fn placeholder(inside: &str) -> Result<Option<Piece>, TemplateError> {
    let end = inside.find(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c)).unwrap_or(inside.len());
    let (written, rest) = inside.split_at(end);
    // No name begins with a digit: `$(1)` is one of the shell's or of awk's.
    if written.is_empty() || written.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let is_variable = !written.contains(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
    if is_variable {
        return Ok(rest.is_empty().then(|| Piece::Variable(written.to_owned())));
    }
    let error =
        |message: String, remedy: String| TemplateError { placeholder: format!("$({inside})"), message, remedy };
    let Some(name) = Name::read(written) else {
        let root = written.split('.').next().unwrap_or_default();
        let ours = ["settings", "launch", "checkpoint", "data", "job"].contains(&root) && written.contains('.');
        // A word with options is a command of the shell.
        return if rest.is_empty() || ours {
            Err(error("is not a placeholder".to_owned(), remedy_of_unknown(written)))
        } else {
            Ok(None)
        };
    };
    let form = if rest.is_empty() {
        Form::Value
    } else if let Some(text) = rest.strip_prefix(":-") {
        Form::Default(parse(text)?)
    } else if let Some(text) = rest.strip_prefix(":+") {
        Form::If { equals: None, then: parse(text)? }
    } else if let Some((value, text)) = rest.strip_prefix('=').and_then(|rest| rest.split_once(":+")) {
        Form::If { equals: Some(value.to_owned()), then: parse(text)? }
    } else {
        let forms = format!("write $({written}), $({written}:-TEXT), $({written}:+TEXT) or $({written}=VALUE:+TEXT)");
        return Err(error(format!("has {rest:?} after the name"), forms));
    };
    Ok(Some(Piece::Placeholder(name, form)))
}

fn remedy_of_unknown(written: &str) -> String {
    let names = Name::fixed().map(|name| name.written());
    let settings =
        Settings::names().filter_map(|name| Name::read(&format!("settings.{name}"))).map(|name| name.written());
    let known: Vec<_> = names.chain(settings).collect();
    // A shared beginning such as `settings.` makes no two names similar.
    let parts = |name: &str| {
        name.split_once('.')
            .map_or((String::new(), name.to_lowercase()), |(root, rest)| (root.to_owned(), rest.to_lowercase()))
    };
    let (root, wanted) = parts(written);
    let alike = |name: &String| match parts(name) {
        (own, rest) if own == root => strsim::jaro_winkler(&rest, &wanted),
        _ => 0.0,
    };
    let best = known.iter().max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|best| alike(best) > 0.85);
    match best {
        Some(best) => format!("did you mean $({best})? $$({written}) passes the text unchanged"),
        None if root == "settings" && wanted != "workload" => format!(
            "a setting of your own is written as $(settings.workload.{}); $$({written}) passes the text unchanged",
            written.trim_start_matches("settings.")
        ),
        None => format!(
            "names are settings.NAME, settings.workload.KEY, {}; $$({written}) passes the text unchanged",
            Name::fixed().map(|name| name.written()).collect::<Vec<_>>().join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_placeholder_is_text() {
        for text in ["", "$", "$HOME", "a$(", "$()", "$(1)", "$(cat list)", "$((1 + 2))", "$(date +%s)", "100$", "${x}"]
        {
            let expected: Vec<_> = (!text.is_empty()).then(|| Piece::Text(text.to_owned())).into_iter().collect();
            assert_eq!(parse(text).unwrap(), expected, "{text}");
        }
        assert_eq!(parse("$$(seed)$$").unwrap(), [Piece::Text("$(seed)$$".to_owned())]);
        assert_eq!(parse("$(MASTER_ADDR)").unwrap(), [Piece::Variable("MASTER_ADDR".to_owned())]);
    }

    #[test]
    fn placeholders_inside_a_command_of_the_shell_are_found() {
        let found = references("sh -c 'echo $(basename $(checkpoint.dir)) $(seed:-1)'").unwrap();
        assert_eq!(found, [(Name::CheckpointDir, true), (Name::Seed, false)]);
    }

    #[test]
    fn unknown_names_are_errors_with_a_remedy() {
        for (text, part) in [
            ("$(settings.batchPerGPU)", "did you mean $(settings.batchPerGpu)?"),
            ("$(settings.wide)", "$(settings.workload.wide)"),
            ("$(settings.workload)", "settings.workload.KEY"),
            ("$(launch.step)", "did you mean $(launch.steps)?"),
            ("$(nproc)", "$$(nproc)"),
            ("$(seed + 1)", "$(seed:-TEXT)"),
            ("$(settings.gradientClip:+--clip=$(settings.gradientclip))", "settings.gradientClip"),
        ] {
            let error = references(text).unwrap_err();
            assert!(error.remedy.contains(part), "{text}: {error}");
        }
    }
}
