//! Progress display of a run: a few live lines on a terminal, one line per event in a pipe.

mod live;

use console::{Style as Paint, Term};
use live::Live;
use pawl_agent::Event;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::progress::{Progress, RankPhase};
use pawl_contract::report::{LaunchResult, Report, printable};
use pawl_display::ending::ending_so_far;
use pawl_display::event::EventRecord;
use pawl_display::numbers::{seconds, short};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval of progress lines of training in a pipe.
const TRAINING_LINE: Duration = Duration::from_secs(30);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Standard output is reserved for a document: progress is written to standard error.
    pub document: bool,
    /// No progress at all.
    pub quiet: bool,
}

impl Style {
    /// The terminal or pipe for progress.
    pub fn term(self) -> Term {
        if self.document { Term::stderr() } else { Term::stdout() }
    }
}

/// Whether text on `term` may be coloured: `NO_COLOR` is unset or empty, and the terminal supports colours.
pub fn colours(term: &Term) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    wanted && term.features().is_attended() && term.features().colors_supported()
}

/// The progress display of a run.
pub struct Display {
    term: Term,
    mode: Mode,
    colours: bool,
    last_training_line: Option<Instant>,
    /// The title of each launch of the running attempts, by name.
    titles: BTreeMap<String, String>,
    /// The validation metrics in progress lines: the loss, and those with a gate.
    metrics: Vec<String>,
    /// Message of the launch that ended last, which is not printed again.
    last_message: String,
}

enum Mode {
    Quiet,
    Lines,
    Live(Box<Live>),
}

impl Display {
    /// A display for `job` in the given style; live lines only on terminals that can move the cursor.
    pub fn new(style: Style, job: &TrainingJob) -> Self {
        let term = style.term();
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let mode = if style.quiet {
            Mode::Quiet
        } else if term.features().is_attended() && !dumb {
            Mode::Live(Box::new(Live::new(&term, job, colours(&term))))
        } else {
            Mode::Lines
        };
        let gated = job.spec.gates.validation_metrics.iter().map(|gate| gate.name.clone());
        let metrics = std::iter::once("loss".to_owned()).chain(gated).collect();
        Self {
            colours: colours(&term),
            term,
            mode,
            last_training_line: None,
            titles: BTreeMap::new(),
            metrics,
            last_message: String::new(),
        }
    }

    /// Updates the state of the job.
    pub fn show(&mut self, status: &TrainingJobStatus, running: &[&AttemptPlan]) {
        if !running.is_empty() {
            let launches = running.iter().flat_map(|plan| &plan.launches);
            self.titles = launches.map(|plan| (plan.launch.clone(), plan.display_title().to_owned())).collect();
        }
        if let Mode::Live(live) = &mut self.mode {
            live.show(status, running);
        }
    }

    /// Prints an event.
    pub fn event(&mut self, event: &EventRecord) {
        let mark = if event.warning {
            self.paint(Paint::new().yellow().bold(), "!")
        } else {
            self.paint(Paint::new().green(), "•")
        };
        self.line(&format!("{mark} {}: {}", printable(&event.reason), printable(&event.message)));
    }

    /// Updates the display after an event of a launch.
    pub fn record_event(&mut self, event: &Event) {
        match (&mut self.mode, event) {
            (_, Event::Warning { launch, message }) => {
                let mark = self.paint(Paint::new().yellow().bold(), "!");
                self.line(&format!("{mark} {}: {}", printable(self.title(launch)), printable(message)));
            }
            (Mode::Live(live), Event::LaunchStarted { launch, .. }) => live.launch_started(launch),
            (Mode::Live(live), Event::Progress(progress)) => live.progress(progress),
            (Mode::Live(live), Event::LaunchEnded(report)) => live.launch_ended(&report.launch),
            (Mode::Lines, Event::LaunchEnded(report)) => {
                let line = launch_line(self.title(&report.launch), report, &self.last_message);
                let text = self.paint(Paint::new().dim(), &printable(&line));
                self.line(&format!("  {text}"));
                self.last_message.clone_from(&report.message);
            }
            (Mode::Lines, Event::Progress(progress)) if progress.kind == LaunchKind::Train => {
                if self
                    .last_training_line
                    .is_none_or(|last_training_line| last_training_line.elapsed() >= TRAINING_LINE)
                {
                    self.last_training_line = Some(Instant::now());
                    self.line(&printable(&format!("  {}", training_line(progress, &self.metrics))));
                }
            }
            (Mode::Lines, Event::LaunchStarted { .. } | Event::Progress(_)) | (Mode::Quiet, _) => {}
        }
    }

    /// Prints a note about the run itself.
    pub fn note(&mut self, text: &str) {
        self.line(&printable(text));
    }

    /// Removes the live lines.
    pub fn close(&mut self) {
        if let Mode::Live(live) = &self.mode {
            live.close();
        }
    }

    fn line(&self, text: &str) {
        match &self.mode {
            Mode::Quiet => {}
            // This fails when the output is closed; the job continues.
            Mode::Lines => drop(self.term.write_line(text)),
            Mode::Live(live) => live.print(text),
        }
    }

    /// Title of a launch.
    fn title<'a>(&'a self, launch: &'a str) -> &'a str {
        self.titles.get(launch).map_or(launch, String::as_str)
    }

    fn paint(&self, paint: Paint, text: &str) -> String {
        paint.force_styling(self.colours).apply_to(text).to_string()
    }
}

/// How a launch ended. `last` is the message of the one before it: what is wrong with all launches of an attempt, such
/// as a path that does not exist, is said once.
fn launch_line(title: &str, report: &Report, last: &str) -> String {
    let LaunchResult { measured, .. } = LaunchResult::from(report);
    let (outcome, message) = ending_so_far(report.kind, report.outcome, &report.message);
    let is_done = report.outcome == Outcome::Done;
    let mut facts = vec![if is_done { "done".to_owned() } else { outcome }];
    facts.extend(measured.items_per_second.map(|speed| format!("{} items/s", short(speed))));
    facts.extend(measured.loss.map(|loss| format!("loss {}", short(loss))));
    facts.extend(measured.wall_seconds.map(seconds));
    if !is_done && !message.is_empty() {
        facts.push(if message == last { "for the same reason".to_owned() } else { message.to_owned() });
    }
    format!("{title}: {}", facts.join(", "))
}

/// What the launch does instead of training.
fn activity(progress: &Progress) -> Option<&'static str> {
    match progress.phase? {
        RankPhase::Starting => Some("starting"),
        RankPhase::DataGeneration => Some("generating data"),
        RankPhase::Compiling => Some("compiling"),
        RankPhase::Resuming => Some("reading a checkpoint"),
        RankPhase::Validating => Some("validating"),
        RankPhase::Saving => Some("writing a checkpoint"),
        RankPhase::Training | RankPhase::Other => None,
    }
}

fn training_line(progress: &Progress, metrics: &[String]) -> String {
    let mut facts = vec![match progress.total_steps {
        Some(total) => format!("step {} of {total}", progress.step),
        None => format!("step {}", progress.step),
    }];
    facts.extend(activity(progress).map(str::to_owned));
    facts.extend(progress.loss.map(|loss| format!("loss {}", short(loss))));
    let validation = progress.validation.iter().flat_map(|validation| &validation.metrics);
    let validation = validation.filter(|(name, _)| metrics.contains(name));
    facts.extend(validation.map(|(name, value)| format!("validation {name} {}", short(*value))));
    facts.extend(progress.items_per_second.map(|speed| format!("{} items/s", short(speed))));
    facts.extend(progress.eta_seconds.map(|eta| format!("{} left", seconds(eta))));
    format!("training: {}", facts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_launch_has_its_title_and_its_measurements() {
        let report: Report = serde_json::from_value(serde_json::json!({
            "contract": 1, "launch": "compile-r0-0bad-p1-a-0badcafe", "kind": "Measure", "rank": 0, "outcome": "Done",
            "itemsPerSecond": 10.83, "wallSeconds": 12.0, "losses": [{"items": 8, "loss": 0.5}],
        }))
        .unwrap();
        assert_eq!(
            launch_line("compile: pair 2 of 3, control", &report, ""),
            "compile: pair 2 of 3, control: done, 10.8 items/s, loss 0.5, 12s"
        );
        let interrupted: Report = serde_json::from_value(serde_json::json!({
            "contract": 1, "launch": "compile-r0-0bad-p1-a-0badcafe", "kind": "Measure", "rank": 0,
            "outcome": "Stopped", "wallSeconds": 3.0, "message": "rank 0 was killed before it had stopped",
        }))
        .unwrap();
        assert_eq!(
            launch_line("compile: pair 2 of 3, control", &interrupted, ""),
            "compile: pair 2 of 3, control: stopped before its end: measured again if it is still needed, 3.0s"
        );
    }

    #[test]
    fn what_is_wrong_with_every_launch_is_said_once() {
        let report: Report = serde_json::from_value(serde_json::json!({
            "contract": 1, "launch": "l", "kind": "Preflight", "rank": 0, "outcome": "InvalidPlan",
            "message": "/none/train.py does not exist: correct the path",
        }))
        .unwrap();
        let first = launch_line("baseline", &report, "");
        assert!(
            first.starts_with("baseline: ") && first.ends_with(", /none/train.py does not exist: correct the path")
        );
        let second = launch_line("compile", &report, &report.message);
        assert!(second.ends_with(", for the same reason") && !second.contains("/none"), "{second}");
    }
}
