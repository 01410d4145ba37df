//! Why an operator failed.

use pawl_graph::executor::ExecError;

/// What goes wrong while operators run: in Candle, or what every executor reports.
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
