//! Two live lines at the bottom of a terminal: where the job is, and the launch that runs.

use crate::numbers::{factor, seconds, short};
use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use pawl_api::status::{PhaseStatus, Purpose, Stage};
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_contract::plan::{AttemptPlan, LaunchKind};
use pawl_contract::progress::Progress;
use std::time::Duration;

/// Redraws a second.
const RATE: u8 = 8;

/// The live lines.
pub struct Live {
    lines: MultiProgress,
    stage: ProgressBar,
    launch: ProgressBar,
    max_pairs: u32,
    launches: Vec<String>,
}

impl Live {
    /// Begins to draw.
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

    /// Says where the job is.
    pub fn show(&mut self, status: &TrainingJobStatus, plan: Option<&AttemptPlan>) {
        self.stage.set_message(headline(status, self.max_pairs));
        if let Some(plan) = plan
            && self.launches.len() != plan.launches.len()
        {
            self.launches = plan.launches.iter().map(|launch| launch.launch.clone()).collect();
        }
        if plan.is_none() {
            self.launches.clear();
        }
    }

    /// A launch begins.
    pub fn launch_started(&mut self, launch: &str, kind: LaunchKind) {
        let place = self.launches.iter().position(|known| known == launch);
        let verb = match kind {
            LaunchKind::Preflight => "checking",
            LaunchKind::Measure => "measuring",
            LaunchKind::Quality => "training for quality",
            LaunchKind::Search => "searching",
            LaunchKind::Train => "training",
        };
        let prefix = match place {
            Some(place) if self.launches.len() > 1 => format!("launch {}/{}", place + 1, self.launches.len()),
            _ => "launch".to_owned(),
        };
        self.launch.set_prefix(prefix);
        self.launch.set_length(1);
        self.launch.set_position(0);
        self.launch.set_message(format!("{verb}: starting"));
    }

    /// The launch goes on.
    pub fn progress(&mut self, progress: &Progress) {
        self.launch.set_length(progress.total_steps.unwrap_or(0).max(1));
        self.launch.set_position(progress.step);
        let mut facts = vec![match progress.total_steps {
            Some(total) => format!("{}/{total} steps", progress.step),
            None => format!("{} steps", progress.step),
        }];
        facts.extend(progress.items_per_second.map(|speed| format!("{} items/s", short(speed))));
        facts.extend(progress.loss.map(|loss| format!("loss {}", short(loss))));
        facts.extend(progress.eta_seconds.map(|eta| format!("{} left", seconds(eta))));
        self.launch.set_message(facts.join(" · "));
    }

    /// The launch is over.
    pub fn launch_ended(&mut self) {
        let length = self.launch.length().unwrap_or(1);
        self.launch.set_position(length);
    }

    /// Prints a line above the live ones.
    pub fn print(&self, text: &str) {
        // Nobody reads any more when this fails: the job goes on all the same.
        let _ = self.lines.println(text);
    }

    /// Takes the live lines away.
    pub fn close(&self) {
        self.stage.finish_and_clear();
        self.launch.finish_and_clear();
    }
}

/// The job in one line.
fn headline(status: &TrainingJobStatus, max_pairs: u32) -> String {
    let judged = status.phases.iter().filter(|phase| phase.state.is_final()).count();
    let count = format!("{judged}/{} phases judged", status.phases.len());
    let attempt = status.attempt.as_ref();
    let phase = attempt.and_then(|attempt| attempt.phase.as_deref());
    let phase = phase.and_then(|name| status.phases.iter().find(|phase| phase.name == name));
    let name = phase.map_or("the baseline", |phase| phase.name.as_str());
    let doing = match (status.stage, attempt.map(|attempt| attempt.purpose)) {
        (Stage::Pending | Stage::Preflight, _) => "checking the settings".to_owned(),
        (Stage::Searching, _) => "searching".to_owned(),
        (Stage::Complete | Stage::Failed | Stage::Suspended, _) => format!("{:?}", status.stage),
        (Stage::Training, _) | (_, Some(Purpose::Train)) => "training".to_owned(),
        (Stage::Optimizing, None) => "between launches".to_owned(),
        (Stage::Optimizing, Some(Purpose::Preflight)) => format!("checking {name}"),
        (Stage::Optimizing, Some(Purpose::Speed)) => format!("measuring {name}{}", pairs(phase, max_pairs)),
        (Stage::Optimizing, Some(Purpose::Quality)) => format!("quality of {name}"),
        (Stage::Optimizing, Some(Purpose::Bundle)) => "measuring all together".to_owned(),
        (Stage::Optimizing, Some(Purpose::LeaveOneOut)) => format!("measuring without {name}"),
    };
    match &status.retry {
        Some(retry) if !retry.message.is_empty() && attempt.is_none() => {
            format!("{count} · waiting to try again: {}", retry.message)
        }
        _ => format!("{count} · {doing}"),
    }
}

fn pairs(phase: Option<&PhaseStatus>, max_pairs: u32) -> String {
    let Some(speedup) = phase.and_then(|phase| phase.speedup.as_ref()) else { return String::new() };
    format!(": {} after {} of at most {max_pairs} pairs", factor(speedup.estimate.value()), speedup.pairs)
}
