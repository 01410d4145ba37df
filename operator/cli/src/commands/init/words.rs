//! The words of the command with which launches start a script.

use std::borrow::Cow;

/// Where a value is given to a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub enum Style {
    /// An option: `--batch_size=32`.
    #[default]
    Option,
    /// A key of its configuration: `train.batch_size=32`.
    Key,
    /// A variable of its environment: `BATCH_SIZE=32`.
    Variable,
}

/// What a launch passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The number of a setting.
    Number(&'static str),
    /// Something where a setting has a value: a text, or the option alone, which is a switch.
    Chosen {
        /// The setting.
        setting: &'static str,
        /// Its value.
        is: &'static str,
        /// What is passed then.
        text: Option<Cow<'static, str>>,
    },
    /// The seed.
    Seed,
    /// The directory for checkpoints.
    Checkpoints,
    /// The checkpoint to resume from.
    Latest,
    /// The number of steps.
    Steps,
    /// The number of epochs.
    Epochs,
    /// The number of steps between evaluations.
    Evaluation,
}

impl Value {
    /// The setting that it is of.
    pub const fn setting(&self) -> Option<&'static str> {
        match self {
            Self::Number(setting) | Self::Chosen { setting, .. } => Some(setting),
            Self::Seed | Self::Checkpoints | Self::Latest | Self::Steps | Self::Epochs | Self::Evaluation => None,
        }
    }

    /// The name of its placeholder.
    fn name(&self) -> String {
        match self {
            Self::Number(setting) => format!("settings.{setting}"),
            Self::Chosen { setting, is, .. } => format!("settings.{setting}={is}"),
            Self::Seed => "seed".to_owned(),
            Self::Checkpoints => "checkpoint.dir".to_owned(),
            Self::Latest => "checkpoint.latest".to_owned(),
            Self::Steps => "launch.steps".to_owned(),
            Self::Epochs => "launch.epochs".to_owned(),
            Self::Evaluation => "launch.evalSteps".to_owned(),
        }
    }
}

/// What is passed in launches that have no such value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// There are none.
    Never,
    /// Nothing.
    Omitted,
    /// This text.
    Text(Cow<'static, str>),
}

/// What a launch passes in one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// As the script spells the option, the key or the variable.
    pub name: String,
    /// Which of these it is.
    pub style: Style,
    /// The value.
    pub value: Value,
    /// What is passed without one.
    pub missing: Missing,
}

impl Passed {
    /// As in a manifest, with placeholders.
    pub fn text(&self) -> String {
        let Self { name: option, value, missing, .. } = self;
        let name = value.name();
        match (value, missing) {
            (Value::Chosen { text: Some(text), .. }, _) => format!("$({name}:+{option}={text})"),
            (Value::Chosen { text: None, .. }, _) => format!("$({name}:+{option})"),
            (_, Missing::Never) => format!("{option}=$({name})"),
            (_, Missing::Omitted) => format!("$({name}:+{option}=$({name}))"),
            (_, Missing::Text(text)) => format!("{option}=$({name}:-{text})"),
        }
    }

    /// Whether a value follows the name.
    pub const fn has_value(&self) -> bool {
        !matches!(self.value, Value::Chosen { text: None, .. })
    }
}

/// A word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// As it is, in every launch.
    Fixed(String),
    /// As it is, in launches of this kind.
    OfKind(&'static str, String),
    /// What differs between launches.
    Passed(Passed),
}

impl Word {
    /// What is passed.
    pub const fn passed(&self) -> Option<&Passed> {
        match self {
            Self::Passed(passed) => Some(passed),
            Self::Fixed(_) | Self::OfKind(..) => None,
        }
    }

    /// As in a manifest, with placeholders.
    pub fn text(&self) -> String {
        match self {
            Self::Fixed(text) => literal(text),
            Self::OfKind(kind, text) => format!("$(launch.kind={kind}:+{text})"),
            Self::Passed(passed) => passed.text(),
        }
    }
}

/// A text without placeholders.
pub fn literal(text: &str) -> String {
    text.replace("$(", "$$(")
}
