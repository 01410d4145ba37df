//! Errors of a program, and the outcomes of the contract that they are.

use pawl_launch::checkpoint::CheckpointError;
use pawl_launch::collective::CollectiveError;
use pawl_launch::ending::Ending;

/// Any error of a training program: one of Pawl, one of Candle, or one of the program itself.
#[derive(Debug)]
pub enum Error {
    /// The launch ends with an outcome of the contract.
    Ending(Ending),
    /// An operation of Candle failed.
    Candle(candle_core::Error),
    /// The program failed, such as by an unreadable file.
    Program(Box<dyn std::error::Error + Send + Sync>),
}

/// Result of a function of a training program.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The end of a launch whose settings this program does not support: the phase that set them is rolled back.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::Ending(Ending::Unsupported(message.into()))
    }

    /// The end of a launch whose configuration or plan is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Ending(Ending::InvalidPlan(message.into()))
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ending(ending) => ending.fmt(f),
            Self::Candle(error) => error.fmt(f),
            Self::Program(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Ending(ending) => Some(ending),
            Self::Candle(error) => Some(error),
            Self::Program(error) => Some(error.as_ref()),
        }
    }
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        match error {
            Error::Ending(ending) => ending,
            // Candle passes the driver's error on as text.
            Error::Candle(error) => {
                let (message, lower) = (error.to_string(), without_backtrace(&error).to_lowercase());
                match lower.contains("out_of_memory") || lower.contains("out of memory") {
                    true => Self::OutOfMemory(message),
                    false => Self::Failed(message),
                }
            }
            Error::Program(error) => Self::Failed(error.to_string()),
        }
    }
}

/// The text of `error`. A backtrace has names of functions, which say nothing of the cause.
fn without_backtrace(error: &candle_core::Error) -> String {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => without_backtrace(inner),
        candle_core::Error::Context { inner, context } => format!("{context}\n{}", without_backtrace(inner)),
        other => other.to_string(),
    }
}

macro_rules! endings {
    ($($type:ty),+ $(,)?) => { $(impl From<$type> for Error {
        fn from(error: $type) -> Self {
            Self::Ending(error.into())
        }
    })+ };
}
endings!(Ending, CheckpointError, CollectiveError, pawl_graph::graph::GraphError);

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Program(error.into())
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for Error {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self::Program(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_contract::exit::Outcome;

    #[test]
    fn a_device_without_memory_is_out_of_memory() {
        let outcome = |text: &str| Ending::from(Error::from(candle_core::Error::msg(text))).outcome();
        assert_eq!(outcome("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"), Outcome::OutOfMemory);
        assert_eq!(outcome("shape mismatch in matmul"), Outcome::Failed);
        // The backtrace names this function.
        let (inner, backtrace) = (candle_core::Error::Msg("no".to_owned()), std::backtrace::Backtrace::force_capture());
        let traced = candle_core::Error::WithBacktrace { inner: inner.into(), backtrace: backtrace.into() };
        assert_eq!(Ending::from(Error::from(traced.context("layer"))).outcome(), Outcome::Failed);
        assert_eq!(Ending::from(Error::unsupported("no")).outcome(), Outcome::Unsupported);
    }
}
