//! `kubectl pawl report`.

use super::error::ClusterError;
use super::evidence;
use super::session::Session;
use crate::commands::output::written;
use crate::commands::print;
use pawl_display::report;
use pawl_local::state::write_atomic;
use std::path::Path;
use std::process::ExitCode;

/// Writes the page and prints its path.
pub async fn report(
    session: &Session,
    name: &str,
    out: Option<&Path>,
    records: Option<&Path>,
) -> Result<ExitCode, ClusterError> {
    let page = report::render(&evidence::gather(session, name, records).await?);
    if let Some(out) = out {
        return Ok(written(out, &page)?);
    }
    // It replaces the page of an earlier time.
    let path = format!("{name}.html");
    let written = write_atomic(Path::new(&path), page.as_bytes());
    written.map_err(|error| ClusterError::File(error.to_string()))?;
    Ok(print(&format!("{path}\n")))
}
