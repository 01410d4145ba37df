//! `kubectl pawl report`.

use super::error::ClusterError;
use super::evidence;
use super::session::Session;
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
    if out == Some(Path::new("-")) {
        return Ok(print(&page));
    }
    let path = out.map_or_else(|| Path::new(&format!("{name}.html")).to_owned(), Path::to_owned);
    let written = write_atomic(&path, page.as_bytes());
    written.map_err(|error| ClusterError::File(error.to_string()))?;
    Ok(print(&format!("{}\n", path.display())))
}
