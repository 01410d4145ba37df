//! Two live lines at the bottom of a terminal: the state of the job, and the running launch.

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::AttemptPlan;
use pawl_contract::progress::Progress;
use pawl_display::headline;
use pawl_display::numbers::{seconds, short};
use std::time::Duration;

/// Redraws per second.
const RATE: u8 = 8;

/// The live lines.
pub struct Live {
    lines: MultiProgress,
    stage: ProgressBar,
    launch: ProgressBar,
    max_pairs: u32,
    /// Name and title of each launch of the attempt.
    launches: Vec<(String, String)>,
}

impl Live {
    /// Draws the lines on `term`.
    pub fn new(term: &Term, job: &TrainingJob, colours: bool) -> Self {
        let target = ProgressDrawTarget::term(term.clone(), RATE);
        let lines = MultiProgress::with_draw_target(target);
        let stage = lines.add(ProgressBar::new_spinner());
        let launch = lines.add(ProgressBar::new(0));
        let (stage_style, launch_style) = if colours {
            ("{spinner:.cyan} {msg}  {elapsed:.dim}", "  {prefix:.dim} {bar:28.cyan/dim} {msg}")
        } else {
            ("{spinner} {msg}  {elapsed}", "  {prefix} {bar:28} {msg}")
        };
        let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        stage.set_style(style(stage_style));
        launch.set_style(style(launch_style).progress_chars("━━─"));
        stage.enable_steady_tick(Duration::from_millis(250));
        Self { lines, stage, launch, max_pairs: job.spec.analysis.max_pairs, launches: Vec::new() }
    }

    /// Updates the state of the job.
    pub fn show(&mut self, status: &TrainingJobStatus, plan: Option<&AttemptPlan>) {
        self.stage.set_message(headline::render(status, self.max_pairs));
        if let Some(plan) = plan
            && self.launches.len() != plan.launches.len()
        {
            self.launches =
                plan.launches.iter().map(|launch| (launch.launch.clone(), launch.display_title().to_owned())).collect();
        }
        if plan.is_none() {
            self.launches.clear();
        }
    }

    /// Shows the start of a launch.
    pub fn launch_started(&mut self, launch: &str) {
        let place = self.launches.iter().position(|(known, _)| known == launch);
        let title = place.map_or(launch, |place| &self.launches[place].1);
        let prefix = match place {
            Some(place) if self.launches.len() > 1 => format!("launch {}/{}", place + 1, self.launches.len()),
            _ => "launch".to_owned(),
        };
        self.launch.set_prefix(prefix);
        self.launch.set_length(1);
        self.launch.set_position(0);
        self.launch.set_message(format!("{title}: starting"));
    }

    /// Shows the progress of the launch.
    pub fn progress(&mut self, progress: &Progress) {
        self.launch.set_length(progress.total_steps.unwrap_or(0).max(1));
        self.launch.set_position(progress.step);
        let mut facts = vec![match progress.total_steps {
            Some(total) => format!("{}/{total} steps", progress.step),
            None => format!("{} steps", progress.step),
        }];
        facts.extend(super::activity(progress).map(str::to_owned));
        facts.extend(progress.items_per_second.map(|speed| format!("{} items/s", short(speed))));
        facts.extend(progress.loss.map(|loss| format!("loss {}", short(loss))));
        facts.extend(progress.eta_seconds.map(|eta| format!("{} left", seconds(eta))));
        self.launch.set_message(facts.join(" · "));
    }

    /// Shows the end of the launch.
    pub fn launch_ended(&mut self) {
        let length = self.launch.length().unwrap_or(1);
        self.launch.set_position(length);
    }

    /// Prints a line above the live ones.
    pub fn print(&self, text: &str) {
        // This fails when the output is closed; the job continues.
        let _ = self.lines.println(text);
    }

    /// Removes the live lines.
    pub fn close(&self) {
        self.stage.finish_and_clear();
        self.launch.finish_and_clear();
    }
}
