//! `kubectl pawl replay`.

use super::error::ClusterError;
use super::session::Session;
use crate::args::Output;
use crate::commands::replay::judge;
use crate::commands::source;
use std::path::Path;
use std::process::ExitCode;

/// Judges the recorded launches of a job anew and prints the verdicts.
pub async fn replay(
    session: &Session,
    name: &str,
    gates: Option<&Path>,
    output: Output,
) -> Result<ExitCode, ClusterError> {
    let other = match gates.map(source::load).transpose() {
        Ok(other) => other,
        Err(error) => return Ok(source::reject(&error)),
    };
    let mut job = session.job(name).await?;
    let recorded = job.status.take().unwrap_or_default();
    Ok(judge(job, &recorded, other, output))
}
