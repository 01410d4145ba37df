//! `kubectl pawl restart`.

use super::error::ClusterError;
use super::session::Session;
use crate::commands::print;
use std::process::ExitCode;

/// Asks the operator to replace the attempts that are under way now.
pub async fn restart(session: &Session, name: &str) -> Result<ExitCode, ClusterError> {
    let job = session.job(name).await?;
    let attempts: Vec<_> = job.status.iter().flat_map(|status| status.under_way()).collect();
    if attempts.is_empty() {
        return Ok(print(&format!("trainingjob.pawl.dev/{name}: no attempt is under way, nothing to restart\n")));
    }
    let restarts: Vec<String> = attempts.iter().map(|attempt| pawl_api::restart_of(attempt)).collect();
    let annotations = serde_json::json!({pawl_api::RESTART: restarts.join(",")});
    session.change(&job, serde_json::json!({"metadata": {"annotations": annotations}})).await?;
    let names: Vec<&str> = attempts.iter().map(|attempt| attempt.name.as_str()).collect();
    Ok(print(&format!("trainingjob.pawl.dev/{name}: {} will be replaced\n", names.join(", "))))
}
