//! `pawl run --dry-run`.

use super::validate;
use crate::exit;
use pawl_api::TrainingJob;
use pawl_contract::plan::LaunchPlan;
use pawl_display::shell::quoted;
use pawl_local::Options;
use std::fmt::Write;
use std::process::ExitCode;

/// Prints the command line and the environment of each launch as a shell would read them, and as comments what
/// judging and a search take, the warnings of `pawl validate`, and `notes`.
pub fn print(job: &TrainingJob, options: &Options, notes: &[String]) -> ExitCode {
    let launches = match pawl_local::preview(job, options) {
        Ok(launches) => launches,
        Err(error) => return exit::with_error(exit::of_error(&error), &error),
    };
    let mut text = String::new();
    let mut valid = true;
    let mut of_ranks = Vec::new();
    for (launch, preview) in launches {
        let _ = writeln!(text, "# {}", heading(&launch));
        match preview {
            Err(error) => {
                valid = false;
                let _ = writeln!(text, "# error: {error}");
            }
            Ok(preview) => {
                if let Some(reason) = preview.unsupported {
                    let _ = writeln!(text, "# Unsupported: {reason}");
                }
                of_ranks = preview.of_ranks;
                let variables = preview.env.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
                let words = preview.command.iter().map(|word| quoted(word));
                let _ = writeln!(text, "{}", variables.chain(words).collect::<Vec<_>>().join(" "));
            }
        }
        text.push('\n');
    }
    if !of_ranks.is_empty() {
        let _ = writeln!(text, "# Each rank also has {} and PAWL_*.", of_ranks.join(", "));
    }
    let (judging, searching) = (pawl_decision::judging(job).lines(), pawl_decision::searching(job).lines());
    for line in judging.into_iter().chain(searching).chain(validate::warnings(job)).chain(notes.iter().cloned()) {
        let _ = writeln!(text, "# {line}");
    }
    let printed = super::print(&text);
    if valid { printed } else { ExitCode::from(exit::INPUT) }
}

fn heading(launch: &LaunchPlan) -> String {
    let steps = launch.budget.warmup_steps.unwrap_or(0) + launch.budget.window_steps.unwrap_or(0);
    match steps {
        0 => format!("{} ({:?})", launch.title, launch.kind),
        steps => format!("{} ({:?}, {steps} steps)", launch.title, launch.kind),
    }
}
