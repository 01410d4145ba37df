//! Errors of operators.

use pawl_graph::executor::ExecError;

/// An error of an operator: one of Candle, or one that every executor reports.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpError {
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    #[error(transparent)]
    Exec(#[from] ExecError),
}

impl From<OpError> for ExecError {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Candle(error) => Self::Device(error.to_string()),
            OpError::Exec(error) => error,
        }
    }
}
