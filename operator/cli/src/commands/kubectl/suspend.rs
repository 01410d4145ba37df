//! `kubectl pawl suspend` and `resume`.

use super::error::ClusterError;
use super::session::Session;
use crate::commands::print;
use kube::api::Patch;
use std::process::ExitCode;

/// Sets `spec.suspend`.
pub async fn suspend(session: &Session, name: &str, suspend: bool) -> Result<ExitCode, ClusterError> {
    let job = session.job(name).await?;
    let done = if suspend { "suspended" } else { "resumed" };
    if job.spec.suspend == suspend {
        return Ok(print(&format!("trainingjob.pawl.dev/{name} was {done} already\n")));
    }
    session.patch(name, &Patch::Merge(serde_json::json!({"spec": {"suspend": suspend}}))).await?;
    Ok(print(&format!("trainingjob.pawl.dev/{name} {done}\n")))
}
