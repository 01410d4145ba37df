//! `kubectl pawl search`.

use super::error::ClusterError;
use super::session::Session;
use super::status::note;
use crate::args::search::ExportArgs;
use crate::commands::output::written;
use crate::commands::search::format;
use crate::exit;
use pawl_display::export;
use std::process::ExitCode;

/// Writes the trials of a job, and prints the path unless they go to standard output.
pub async fn export(session: &Session, name: &str, what: &ExportArgs) -> Result<ExitCode, ClusterError> {
    let mut job = session.job(name).await?;
    if let Some(note) = note(&job) {
        exit::say(&note);
    }
    let status = job.status.take().unwrap_or_default();
    let text = export::render(&job, &status, format(what.format));
    let text = text.map_err(|error| ClusterError::Nothing(error.to_string()))?;
    Ok(written(&what.out, &text)?)
}
