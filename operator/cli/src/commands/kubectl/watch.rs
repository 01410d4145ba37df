//! `kubectl pawl status --watch`: the status of a job until it completes, fails or is suspended.

use super::error::ClusterError;
use super::session::{JOBS, Session};
use super::status;
use crate::args::Output;
use crate::exit;
use console::Term;
use futures::{StreamExt, pin_mut};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watch_object};
use pawl_api::TrainingJob;
use pawl_api::status::Stage;
use pawl_controller::waits::Waits;
use pawl_display::headline;
use std::process::ExitCode;

/// Prints the job whenever it changes.
pub async fn watch(session: &Session, name: &str, output: Output) -> Result<ExitCode, ClusterError> {
    // A wrong name or an unreachable cluster is reported at once, with a precise error.
    let mut job = session.job(name).await?;
    let mut view = View::new(output);
    view.show(session, &job);
    let changes = watch_object(session.jobs(), name).backoff(Waits::default());
    pin_mut!(changes);
    loop {
        if let Some(code) = exit_code(&job) {
            view.end(session, &job);
            return Ok(ExitCode::from(code));
        }
        job = match changes.next().await {
            Some(Ok(Some(changed))) => changed,
            Some(Ok(None)) => {
                return Err(ClusterError::Nothing(format!("TrainingJob {name:?} was deleted")));
            }
            // The watch restarts by itself, except after a permanent error.
            Some(Err(error)) => {
                refused(session, error)?;
                continue;
            }
            None => return Err(ClusterError::Nothing(format!("the watch on TrainingJob {name:?} ended"))),
        };
        view.show(session, &job);
    }
}

/// A permanent error, which a retry cannot fix.
fn refused(session: &Session, error: watcher::Error) -> Result<(), ClusterError> {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error,
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => {
            return Ok(());
        }
    };
    match &error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404) => {
            Err(session.request("watch", JOBS).failed(error))
        }
        _ => Ok(()),
    }
}

/// The exit code of a job that has completed, failed or been suspended with the newest spec; else `None`.
fn exit_code(job: &TrainingJob) -> Option<u8> {
    let status = job.status.as_ref()?;
    if status.observed_generation < job.metadata.generation {
        return None;
    }
    let degraded = status.conditions.iter().any(|known| known.type_ == "Degraded" && known.status == "True");
    match status.stage {
        Stage::Complete if degraded => Some(exit::NOT_AS_ASKED),
        Stage::Complete => Some(exit::COMPLETE),
        Stage::Failed => Some(exit::FAILED),
        Stage::Suspended => Some(exit::NOT_AS_ASKED),
        Stage::Pending | Stage::Preflight | Stage::Optimizing | Stage::Searching | Stage::Training => None,
    }
}

/// The display of the watch.
struct View {
    term: Term,
    output: Output,
    /// Redrawn in place on terminals.
    live: bool,
    /// Number of lines on the terminal that the next update replaces.
    drawn: usize,
    printed: String,
}

impl View {
    fn new(output: Output) -> Self {
        let term = Term::stdout();
        let live = output == Output::Table && term.features().is_attended();
        Self { term, output, live, drawn: 0, printed: String::new() }
    }

    fn show(&mut self, session: &Session, job: &TrainingJob) {
        match (self.output, self.live) {
            (Output::Table, true) => {
                self.redraw(&format!("{}\n{}\n", status::text(session, job, self.output), line(job)))
            }
            (Output::Table, false) => self.print_change(&line(job)),
            (Output::Json | Output::Yaml, _) => self.print_change(status::text(session, job, self.output).trim_end()),
        }
    }

    /// The final status. In a pipe, the table ends the output.
    fn end(&mut self, session: &Session, job: &TrainingJob) {
        let table = status::text(session, job, self.output);
        match (self.output, self.live) {
            (Output::Table, true) => self.redraw(&table),
            (Output::Table, false) => self.print_change(&format!("\n{}", table.trim_end())),
            (Output::Json | Output::Yaml, _) => {}
        }
    }

    /// Draws no more lines than the terminal has: lines that scrolled away cannot be redrawn.
    fn redraw(&mut self, text: &str) {
        let height = usize::from(self.term.size().0).saturating_sub(1);
        let lines: Vec<&str> = text.lines().take(height).collect();
        // Fails only when the output is closed.
        let _ = self.term.clear_last_lines(self.drawn);
        let _ = self.term.write_line(&lines.join("\n"));
        self.drawn = lines.len();
    }

    /// Prints `text` unless it equals the last output. YAML documents are separated by `---`; JSON documents need no
    /// separator.
    fn print_change(&mut self, text: &str) {
        if self.printed == text {
            return;
        }
        if self.output == Output::Yaml && !self.printed.is_empty() {
            let _ = self.term.write_line("---");
        }
        let _ = self.term.write_line(text);
        text.clone_into(&mut self.printed);
    }
}

/// The job in one line.
fn line(job: &TrainingJob) -> String {
    let Some(status) = &job.status else { return "waiting for the operator".to_owned() };
    let progress = match &status.training {
        Some(training) if status.stage == Stage::Training => {
            let loss = training
                .measured
                .loss
                .as_ref()
                .map(|loss| format!(", loss {}", pawl_display::numbers::short(loss.value())));
            format!(": {}{}", status.progress, loss.unwrap_or_default())
        }
        _ => String::new(),
    };
    headline::render(status, job.spec.analysis.max_pairs) + &progress
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::TrainingJobStatus;

    fn job(stage: &str, observed: i64, degraded: bool) -> TrainingJob {
        let condition = serde_json::json!({"type": "Degraded", "status": if degraded { "True" } else { "False" },
            "reason": "GoalMissed", "message": "", "lastTransitionTime": "2026-01-05T10:04:00Z"});
        let status: TrainingJobStatus = serde_json::from_value(serde_json::json!({
            "stage": stage, "observedGeneration": observed, "conditions": [condition],
        }))
        .unwrap();
        let mut job: TrainingJob = serde_json::from_value(serde_json::json!({
            "apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "toy", "generation": 2},
            "spec": {"workload": {"name": "ups"}},
        }))
        .unwrap();
        job.status = Some(status);
        job
    }

    #[test]
    fn the_exit_code_is_of_the_newest_spec() {
        assert_eq!(exit_code(&job("Complete", 2, false)), Some(0));
        assert_eq!(exit_code(&job("Complete", 2, true)), Some(3));
        assert_eq!(exit_code(&job("Failed", 2, false)), Some(1));
        assert_eq!(exit_code(&job("Suspended", 2, false)), Some(3));
        assert_eq!(exit_code(&job("Training", 2, false)), None);
        assert_eq!(exit_code(&job("Complete", 1, false)), None, "an older spec was complete");
    }
}
