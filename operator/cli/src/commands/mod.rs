//! One file per subcommand.

mod agent;
mod built_in;
mod dry_run;
mod export;
mod init;
mod jobs;
#[cfg(feature = "cluster")]
pub mod kubectl;
mod manual;
#[cfg(feature = "cluster")]
mod operator;
mod output;
mod plan;
mod replay;
mod report;
mod reproduce;
mod run;
mod search;
mod source;
mod status;
mod track;
mod tune;
mod ui;
mod validate;

use crate::args::search::SearchCommand;
use crate::args::{Arguments, Command};
use crate::exit;
use crate::version;
use clap::CommandFactory;
use console::Term;
use pawl_contract::report::unprintable;
use pawl_local::display::colours;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the command, or prints the version.
pub fn dispatch(arguments: Arguments) -> ExitCode {
    let command = match arguments {
        Arguments { version: true, verbose, .. } => return print(&version::text(verbose)),
        Arguments { command: Some(command), .. } => command,
        // Not reached: without arguments, the help is printed and this code is the exit code.
        Arguments { command: None, .. } => return ExitCode::from(exit::INPUT),
    };
    match command {
        Command::Run(run) => run::run(&run),
        Command::Init(arguments) => init::init(&arguments),
        Command::Tune(arguments) => tune::tune(&arguments),
        Command::Validate { files } => validate::validate(&files),
        Command::Status { state, output } => status::status(&state, output),
        Command::List { directories, output } => jobs::list(&directories, output),
        Command::Compare { jobs } => jobs::compare(&jobs),
        Command::Ui(arguments) => ui::ui(arguments),
        Command::Replay { state, gates, output } => replay::replay(&state, gates.as_deref(), output),
        Command::Reproduce { job, out } => reproduce::reproduce(&job, &out),
        Command::Report { state, out } => report::report(&state, out.as_deref()),
        Command::Track { state } => track::track(&state),
        Command::Export(arguments) => export::export(&arguments),
        Command::Search(SearchCommand::Export { state, export }) => search::export(&state, &export),
        Command::Plan(plan) => plan::plan(&plan),
        #[cfg(feature = "cluster")]
        Command::Kubectl(arguments) => kubectl::kubectl(arguments),
        #[cfg(feature = "cluster")]
        Command::Operator(arguments) => operator::operator(*arguments),
        #[cfg(not(feature = "cluster"))]
        Command::Kubectl(_) | Command::Operator(_) => without_cluster(),
        Command::Crd { documented: false } => print(&pawl_manifest::crd()),
        Command::Crd { documented: true } => print(&pawl_manifest::documented_crd()),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "pawl", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Manual { directory } => manual::manual(&directory),
        Command::Agent(agent) => agent::agent(agent),
        Command::Trainer => pawl_trainer::run_from_env(),
    }
}

/// Rejects a command that needs the Kubernetes client.
#[cfg(not(feature = "cluster"))]
pub fn without_cluster() -> ExitCode {
    const REMEDY: &str = "this pawl was built without the commands for a cluster: build it with \
        `cargo build --release --features cluster`, or use the released one";
    exit::with_error(exit::INPUT, &REMEDY)
}

/// Prints a result. A reader that closes the pipe early, such as `head`, is not an error.
fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            exit::with_error(exit::FAILED, &format!("standard output: {error}"))
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Maximum width of a table, and whether it may be coloured; in a pipe nothing is truncated.
fn terminal() -> (Option<usize>, bool) {
    let term = Term::stdout();
    let width = term.size_checked().map(|(_, columns)| usize::from(columns));
    (width.filter(|_| term.features().is_attended()), colours(&term))
}

/// `text`, a JSON document, with everything in its strings escaped that a terminal would obey; `yaml`: as YAML does it.
fn escaped(text: &str, yaml: bool) -> String {
    let escape = |c: char| match c {
        c if !obeyed(c) => c.to_string(),
        c if yaml => format!("\\U{:08x}", c as u32),
        c => c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect(),
    };
    text.chars().map(escape).collect()
}

/// Whether a terminal obeys this character of a document of several lines.
fn obeyed(c: char) -> bool {
    unprintable(c) && c != '\n'
}

/// `value` as JSON or YAML.
fn document(value: &impl Serialize, yaml: bool) -> String {
    const WRITABLE: &str = "a status holds strings, numbers and maps with string keys, all of which can be written";
    let written = if yaml { serde_saphyr::to_string(value).expect(WRITABLE) } else { String::new() };
    if yaml && !written.contains(obeyed) {
        return written;
    }
    // JSON is YAML.
    let written = serde_json::to_string_pretty(value).expect(WRITABLE) + "\n";
    if written.contains(obeyed) { escaped(&written, yaml) } else { written }
}

#[cfg(test)]
mod tests {
    use super::document;
    use serde_json::json;

    #[test]
    fn a_document_contains_nothing_that_a_terminal_obeys_and_reads_as_it_was() {
        let status = json!({"message": "a\u{202e}b\u{9b}\u{200b}\nc \u{e0041}é"});
        for yaml in [false, true] {
            let text = document(&status, yaml);
            assert!(!text.contains(super::obeyed), "{text:?}");
            let read: serde_json::Value =
                if yaml { serde_saphyr::from_str(&text).unwrap() } else { serde_json::from_str(&text).unwrap() };
            assert_eq!(read, status);
        }
    }
}
