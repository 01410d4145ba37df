//! Structured logs.
//!
//! A line is one event with the fields of the spans around it: `namespace`, `job`, `attempt` and `trace_id` say what it
//! is about. The trace id is that of the attempt ([`trace_id`]): every line about one gang, of every operator process
//! that ever dealt with it, has the same.

use sha2::{Digest, Sha256};
use std::fmt::Write;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// The log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter does not parse.
    #[error("log filter {filter:?}: {source}: write for example info,pawl_controller=debug")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process has a log already.
    #[error("the log was set up before")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// Sends the process's log to standard error. `filter` is a level, or levels by module: `info,kube=warn`.
///
/// # Errors
/// When the filter does not parse, or the process has a log already.
pub fn init(format: Format, filter: &str) -> Result<(), TelemetryError> {
    let parsed = EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })?;
    let registry = tracing_subscriber::registry().with(parsed);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        Format::Json => registry.with(lines.json().flatten_event(true).with_current_span(false)).try_init()?,
        Format::Text => registry.with(lines).try_init()?,
    }
    Ok(())
}

/// The trace id of an attempt: 32 hexadecimal digits, as W3C Trace Context writes them, from the job's UID and the
/// attempt's name. Nothing needs to be kept for two processes to agree on it.
pub fn trace_id(job_uid: &str, attempt: &str) -> String {
    let digest = Sha256::new().chain_update(job_uid).chain_update([0]).chain_update(attempt).finalize();
    digest.iter().take(16).fold(String::with_capacity(32), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_id_is_of_one_attempt_of_one_job() {
        let id = trace_id("5d8b", "ups-1");
        assert_eq!(id.len(), 32);
        assert!(id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(id, trace_id("5d8b", "ups-1"));
        assert_ne!(id, trace_id("5d8b", "ups-2"));
        assert_ne!(id, trace_id("5d8", "bups-1"), "the parts are told apart");
    }
}
