//! `pawl run`.

use super::{built_in, document, print, source, status};
use crate::args::{Output, RunArgs};
use crate::exit;
use pawl_local::display::Style;
use pawl_local::{Options, RunOutcome};
use std::process::ExitCode;

/// Runs a job until it completes, fails or is stopped.
pub fn run(arguments: &RunArgs) -> ExitCode {
    let mut notes = Vec::new();
    let job = match source::load_with(&arguments.file, |job| built_in::check(job).errors(&mut notes)) {
        Ok(job) => job,
        Err(error) => return source::reject(&error),
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return exit::with_error(exit::FAILED, &format!("the pawl program cannot be found: {error}")),
    };
    let style = Style { document: arguments.output != Output::Table, quiet: arguments.quiet };
    let state = source::state_of(&job, arguments.state.as_deref());
    let options = Options {
        state: state.clone(),
        gpus: arguments.gpus.clone(),
        trainer: vec![program.into_os_string(), "trainer".into()],
        features: crate::version::features(),
        style,
        limit: None,
    };
    if arguments.dry_run {
        return super::dry_run::print(&job, &options, &notes);
    }
    if let Err(error) = pawl_agent::adopt_orphans() {
        return exit::with_error(exit::FAILED, &error);
    }
    let (outcome, finished) = match pawl_local::run(job, options) {
        Ok(finished) => finished,
        Err(error) => return exit::with_error(exit::of_error(&error), &error),
    };
    let text = match arguments.output {
        // An empty line separates the progress from the result.
        Output::Table if !arguments.quiet => format!("\n{}", status::table(&state, &finished)),
        Output::Table => status::table(&state, &finished),
        Output::Json => document(&status::JobResult::new(&state, &finished), false),
        Output::Yaml => document(&status::JobResult::new(&state, &finished), true),
    };
    let _ = print(&text);
    if let RunOutcome::Interrupted(signal) = outcome {
        let again = match &arguments.state {
            Some(state) => format!("{} --state {}", arguments.file.display(), state.display()),
            None => arguments.file.display().to_string(),
        };
        exit::say(&format_args!("stopped by {signal}; all finished work is saved: resume with `pawl run {again}`"));
    }
    ExitCode::from(exit::of_outcome(outcome))
}
