//! `kubectl pawl restart`.

use super::error::ClusterError;
use super::session::Session;
use crate::commands::print;
use kube::api::Patch;
use std::process::ExitCode;

/// Asks the operator to replace the attempts that are under way now.
pub async fn restart(session: &Session, name: &str) -> Result<ExitCode, ClusterError> {
    let job = session.job(name).await?;
    let attempts: Vec<&str> =
        job.status.iter().flat_map(|status| status.under_way()).map(|attempt| attempt.name.as_str()).collect();
    if attempts.is_empty() {
        return Ok(print(&format!("trainingjob.pawl.dev/{name}: no attempt is under way, nothing to restart\n")));
    }
    let annotations = serde_json::json!({pawl_api::RESTART: attempts.join(",")});
    session.patch(name, &Patch::Merge(serde_json::json!({"metadata": {"annotations": annotations}}))).await?;
    Ok(print(&format!("trainingjob.pawl.dev/{name}: {} restarted\n", attempts.join(", "))))
}
