//! What a user asks the operator of a cluster to do with a job.

use pawl_api::spec::Pin;
use pawl_display::ui::actions::{ALL_PHASES, NO_PIN, PINS};

/// A change of a job, as that of `kubectl pawl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop after a checkpoint.
    Suspend,
    /// Continue.
    Resume,
    /// Pin phases to `RolledBack`; `None`: all.
    RollBack(Option<String>),
    /// Pin a phase, or remove its pin.
    Pin(String, Option<Pin>),
}

/// An action that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    #[error("{0}: not an action: suspend, resume, rollback or pin")]
    Unknown(String),
    #[error("phase: missing: name a phase of the job")]
    NoPhase,
    #[error("to: \"{0}\": write Accepted, RolledBack, DryRun or none")]
    Pin(String),
}

impl Action {
    /// Reads the last part of an address, and the fields of its form.
    pub fn parse(name: &str, fields: &[(String, String)]) -> Result<Self, ActionError> {
        let field = |wanted: &str| fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
        let phase = || field("phase").filter(|phase| !phase.is_empty()).ok_or(ActionError::NoPhase);
        match name {
            "suspend" => Ok(Self::Suspend),
            "resume" => Ok(Self::Resume),
            "rollback" => Ok(Self::RollBack(Some(phase()?).filter(|phase| *phase != ALL_PHASES).map(str::to_owned))),
            "pin" => Ok(Self::Pin(phase()?.to_owned(), pin(field("to").unwrap_or_default())?)),
            other => Err(ActionError::Unknown(other.to_owned())),
        }
    }
}

fn pin(text: &str) -> Result<Option<Pin>, ActionError> {
    if text == NO_PIN {
        return Ok(None);
    }
    let found = PINS.into_iter().find(|pin| pin.to_string() == text);
    found.map(Some).ok_or_else(|| ActionError::Pin(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_display::url::pairs;
    use rstest::rstest;

    #[rstest]
    #[case("suspend", "", Ok(Action::Suspend))]
    #[case("resume", "", Ok(Action::Resume))]
    #[case("rollback", "phase=graph", Ok(Action::RollBack(Some("graph".to_owned()))))]
    #[case("rollback", "phase=*", Ok(Action::RollBack(None)))]
    #[case("rollback", "", Err(ActionError::NoPhase))]
    #[case("pin", "phase=graph&to=DryRun", Ok(Action::Pin("graph".to_owned(), Some(Pin::DryRun))))]
    #[case("pin", "phase=graph&to=none", Ok(Action::Pin("graph".to_owned(), None)))]
    #[case("pin", "phase=graph", Err(ActionError::Pin(String::new())))]
    #[case("pin", "phase=&to=none", Err(ActionError::NoPhase))]
    #[case("delete", "", Err(ActionError::Unknown("delete".to_owned())))]
    fn a_form_is_read(#[case] name: &str, #[case] form: &str, #[case] expected: Result<Action, ActionError>) {
        assert_eq!(Action::parse(name, &pairs(form)), expected);
    }
}
