//! `kubectl pawl suspend` and `resume`.

use super::error::ClusterError;
use super::session::Session;
use crate::commands::print;
use pawl_api::TrainingJob;
use std::process::ExitCode;

/// Suspends or resumes the job, and prints what was done.
pub async fn suspend(session: &Session, name: &str, suspend: bool) -> Result<ExitCode, ClusterError> {
    let changed = set(session, &session.job(name).await?, suspend).await?;
    let done = if suspend { "suspended" } else { "resumed" };
    Ok(print(&match changed {
        true => format!("trainingjob.pawl.dev/{name} {done}\n"),
        false => format!("trainingjob.pawl.dev/{name} was {done} already\n"),
    }))
}

/// Sets `spec.suspend`. Returns whether that changes it.
pub async fn set(session: &Session, job: &TrainingJob, suspend: bool) -> Result<bool, ClusterError> {
    if job.spec.suspend == suspend {
        return Ok(false);
    }
    session.change(job, serde_json::json!({"spec": {"suspend": suspend}})).await?;
    Ok(true)
}
