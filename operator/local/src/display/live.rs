//! Live lines at the bottom of a terminal: the state of the job, and each running launch.

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::{AttemptPlan, LaunchPlan};
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
    /// A line for each running attempt, at least one, with the name of its launch.
    running: Vec<(String, ProgressBar)>,
    style: ProgressStyle,
    max_pairs: u32,
    /// Name and title of each launch of the attempts, each attempt with the name of its own.
    launches: Vec<(String, Vec<(String, String)>)>,
}

impl Live {
    /// Draws the lines on `term`.
    pub fn new(term: &Term, job: &TrainingJob, colours: bool) -> Self {
        let target = ProgressDrawTarget::term(term.clone(), RATE);
        let lines = MultiProgress::with_draw_target(target);
        let stage = lines.add(ProgressBar::new_spinner());
        let (stage_style, launch_style) = if colours {
            ("{spinner:.cyan} {msg}  {elapsed:.dim}", "  {prefix:.dim} {bar:28.cyan/dim} {msg}")
        } else {
            ("{spinner} {msg}  {elapsed}", "  {prefix} {bar:28} {msg}")
        };
        let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        stage.set_style(style(stage_style));
        stage.enable_steady_tick(Duration::from_millis(250));
        let style = style(launch_style).progress_chars("━━─");
        let max_pairs = job.spec.analysis.max_pairs;
        let mut live = Self { lines, stage, running: Vec::new(), style, max_pairs, launches: Vec::new() };
        live.line("");
        live
    }

    /// Updates the state of the job.
    pub fn show(&mut self, status: &TrainingJobStatus, running: &[&AttemptPlan]) {
        self.stage.set_message(headline::render(status, self.max_pairs));
        let title = |launch: &LaunchPlan| (launch.launch.clone(), launch.display_title().to_owned());
        let of = |plan: &&AttemptPlan| (plan.attempt.clone(), plan.launches.iter().map(title).collect());
        self.launches = running.iter().map(of).collect();
        // A line of an attempt that has ended is removed, unless it is the only one.
        let known =
            |launch: &String| self.launches.iter().flat_map(|(_, launches)| launches).any(|(name, _)| name == launch);
        let mut over: Vec<usize> = (0..self.running.len()).filter(|&line| !known(&self.running[line].0)).collect();
        while let Some(line) = over.pop().filter(|_| self.running.len() > 1) {
            let (_, bar) = self.running.remove(line);
            bar.finish_and_clear();
            self.lines.remove(&bar);
        }
    }

    /// The line of the attempt of this launch; a new one if another attempt runs beside it.
    fn line(&mut self, launch: &str) -> &ProgressBar {
        let beside = self.launches.iter().find(|(_, launches)| launches.iter().any(|(name, _)| name == launch));
        let own = |name: &String| beside.is_some_and(|(_, launches)| launches.iter().any(|(known, _)| known == name));
        let place = self.running.iter().position(|(name, _)| name == launch || own(name));
        let idle = || self.running.iter().position(|_| self.launches.len() < 2);
        let place = place.or_else(idle).unwrap_or_else(|| {
            let bar = self.lines.add(ProgressBar::new(0));
            bar.set_style(self.style.clone());
            self.running.push((String::new(), bar));
            self.running.len() - 1
        });
        launch.clone_into(&mut self.running[place].0);
        &self.running[place].1
    }

    /// Shows the start of a launch.
    pub fn launch_started(&mut self, launch: &str) {
        let found = self.launches.iter().find_map(|(_, launches)| {
            let place = launches.iter().position(|(known, _)| known == launch)?;
            Some((place + 1, launches.len(), launches[place].1.clone()))
        });
        let title = found.as_ref().map_or(launch, |(.., title)| title).to_owned();
        let prefix = match found {
            Some((place, count, _)) if count > 1 => format!("launch {place}/{count}"),
            _ => "launch".to_owned(),
        };
        let line = self.line(launch);
        line.set_prefix(prefix);
        line.set_length(1);
        line.set_position(0);
        line.set_message(format!("{title}: starting"));
    }

    /// Shows the progress of a launch.
    pub fn progress(&mut self, progress: &Progress) {
        let mut facts = vec![match progress.total_steps {
            Some(total) => format!("{}/{total} steps", progress.step),
            None => format!("{} steps", progress.step),
        }];
        facts.extend(super::activity(progress).map(str::to_owned));
        facts.extend(progress.items_per_second.map(|speed| format!("{} items/s", short(speed))));
        facts.extend(progress.loss.map(|loss| format!("loss {}", short(loss))));
        facts.extend(progress.eta_seconds.map(|eta| format!("{} left", seconds(eta))));
        let line = self.line(&progress.launch);
        line.set_length(progress.total_steps.unwrap_or(0).max(1));
        line.set_position(progress.step);
        line.set_message(facts.join(" · "));
    }

    /// Shows the end of a launch.
    pub fn launch_ended(&mut self, launch: &str) {
        let line = self.line(launch);
        line.set_position(line.length().unwrap_or(1));
    }

    /// Prints a line above the live ones.
    pub fn print(&self, text: &str) {
        // This fails when the output is closed; the job continues.
        let _ = self.lines.println(text);
    }

    /// Removes the live lines.
    pub fn close(&self) {
        self.stage.finish_and_clear();
        self.running.iter().for_each(|(_, line)| line.finish_and_clear());
    }
}
