//! The manifest for a script whose output and options are known.

use super::batch::Larger;
use super::command::{BATCH, Tuned};
use super::lines::{Findings, Pace};
use super::outlook::{Outlook, outlook};
use super::profile::Evidence;
use crate::args::Framework;
use crate::commands::init::phases::{LACKS_MEMORY, MORE_WORKERS, MULTIPLES, Phase, TOO_LARGE};
use crate::commands::init::words::Value;
use crate::commands::init::{environment, is_by_variable, quoted};
use pawl_contract::script::{Monitor, MonitorSource};
use pawl_contract::settings::Settings;
use pawl_contract::steady::EXTENSIONS;
use std::fmt::Write as _;
use std::time::Duration;

/// More steps than a measurement needs.
const MANY: u64 = 1_000_000;
/// Lines in a measured window, at least.
const LINES: u64 = 5;
/// Steps in a measured window, at least.
const STEPS: u64 = 20;
/// Seconds of a measured window, as a part of the budget, and their bounds: a phase that is faster has the same steps
/// in less time.
const WINDOW: (f64, f64, f64) = (1.0 / 300.0, 2.0, 10.0);
/// Seconds of a training that is judged by its validation loss, as a part of the budget.
const QUALITY: f64 = 1.0 / 40.0;
/// Part of the budget for these trainings, at most.
const MOST: f64 = 0.5;
/// Seeds of these trainings.
const SEEDS: u32 = 3;
/// Launches by which the speed of a phase is judged, at least: three pairs.
const LAUNCHES: f64 = 6.0;
/// Phases with a larger batch.
const BATCHES: [Phase; 2] = [Phase::LargerBatch, Phase::OneMicroBatch];
/// Seconds of a measured window of the Trainer: its updates come every 5.
const UPDATES: f64 = 20.0;

/// What is known of a script.
#[derive(Debug)]
pub struct Script<'a> {
    /// Name of the job.
    pub name: &'a str,
    /// Its framework.
    pub framework: Framework,
    /// GPUs, with one process each.
    pub gpus: u32,
    /// Its command.
    pub tuned: &'a Tuned,
    /// What was seen in its output.
    pub findings: &'a Findings,
    /// Where its time goes.
    pub evidence: &'a Evidence,
    /// The largest batch that fits, once it was searched for.
    pub larger: Option<Larger>,
    /// Whether it has ended by itself while it was observed.
    pub has_ended: bool,
    /// Longest time of measuring.
    pub budget: Duration,
}

/// A manifest, and what the user should know.
#[derive(Debug)]
pub struct Proposal {
    /// Its text.
    pub manifest: String,
    /// The phases in it.
    pub phases: Vec<(&'static str, Outlook)>,
    /// One line each.
    pub notes: Vec<String>,
}

/// A training that is judged by its validation loss.
#[derive(Debug)]
struct Quality {
    /// Its length, as a field of `analysis`.
    field: String,
    /// Its length in steps.
    steps: u64,
}

/// The manifest for a script.
pub fn propose(script: &Script<'_>) -> Proposal {
    let mut notes = [&script.findings.notes[..], &script.tuned.notes].concat();
    let quality = quality(script, multiple(script));
    let mut found = Vec::new();
    let mut absent = Vec::new();
    // By itself, `gradient-checkpointing` costs speed.
    for phase in Phase::ALL.into_iter().filter(|phase| *phase != Phase::GradientCheckpointing) {
        let is_alone = phase == Phase::Fsdp && script.gpus <= 1;
        if is_alone || phase == Phase::OneMicroBatch && script.tuned.accumulation() <= 1 {
            continue;
        }
        match considered(script, phase, quality.as_ref().err()) {
            Considered::Absent => absent.push(phase.name()),
            Considered::NotTried(why) => notes.push(format!("{} is not tried: {why}", phase.name())),
            Considered::Proposed(outlook) => found.push((phase, outlook)),
        }
    }
    if !absent.is_empty() {
        notes.push(format!("not tried, as the script has no option for it: {}", absent.join(", ")));
    }
    let quality = quality.ok();
    let worth = |(phase, outlook): &(Phase, Outlook)| {
        let judged = quality.as_ref().filter(|_| phase.is_changed()).map_or(0, |quality| quality.steps);
        outlook.hope().ln() / cost(script, judged)
    };
    // Equal ones stay in their order.
    found.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let quality = quality.filter(|_| found.iter().any(|(phase, _)| phase.is_changed()));
    let manifest = manifest(script, &found, quality.as_ref(), &notes);
    Proposal { manifest, phases: found.into_iter().map(|(phase, outlook)| (phase.name(), outlook)).collect(), notes }
}

/// What becomes of a phase.
enum Considered {
    /// The script has no option for it.
    Absent,
    /// Why it is not measured.
    NotTried(String),
    /// It is measured.
    Proposed(Outlook),
}

fn considered(script: &Script<'_>, phase: Phase, without_quality: Option<&String>) -> Considered {
    let tuned = script.tuned;
    if let Some(words) = tuned.fixed.get(phase.setting()) {
        return Considered::NotTried(format!("{words} is given"));
    }
    if !is_passed(script, phase) {
        return Considered::Absent;
    }
    if let Some(workers) = tuned.settings.get(phase.setting()).filter(|_| phase == Phase::LoaderWorkers)
        && *workers >= MORE_WORKERS
    {
        return Considered::NotTried(format!("the script has {workers} already"));
    }
    if phase == Phase::LargerBatch && tuned.accumulation() > 1 {
        let why = "its steps are accumulated: one-micro-batch tries a larger batch with the same items in a step";
        return Considered::NotTried(why.to_owned());
    }
    let larger = script.larger.as_ref().filter(|_| BATCHES.contains(&phase));
    if let Some(larger) = larger.filter(|larger| larger.choices.is_empty()) {
        return Considered::NotTried(larger.ground.clone());
    }
    match outlook(phase, script.evidence, tuned.accumulation()).and(larger.map(|larger| larger.ground.clone())) {
        Outlook::Excluded(why) => Considered::NotTried(why),
        open => match without_quality.filter(|_| phase.is_changed()) {
            Some(why) => Considered::NotTried(format!("it changes the numerics, and {why}")),
            None => Considered::Proposed(open),
        },
    }
}

/// Whether a larger batch is to be tried, so that it has to be known which one fits.
pub fn is_batch_tried(script: &Script<'_>) -> bool {
    let phase = if script.tuned.accumulation() > 1 { Phase::OneMicroBatch } else { Phase::LargerBatch };
    let quality = quality(script, MULTIPLES[0]);
    matches!(considered(script, phase, quality.as_ref().err()), Considered::Proposed(_))
}

/// The multiples of the batch whose trainings fit into the budget: they end with an evaluation too.
pub fn multiples(script: &Script<'_>) -> Vec<u32> {
    MULTIPLES.into_iter().filter(|multiple| quality(script, *multiple).is_ok()).collect()
}

/// The multiple of the items in a step that is tried.
fn multiple(script: &Script<'_>) -> u32 {
    let found = script.larger.as_ref().filter(|_| script.tuned.accumulation() == 1);
    found.map_or(MULTIPLES[0], |larger| larger.multiple.max(MULTIPLES[0]))
}

/// Seconds in which a phase is judged; `judged`: the steps of a training for its validation loss.
fn cost(script: &Script<'_>, judged: u64) -> f64 {
    let pace = &script.findings.pace;
    let (warmup, window) = window(script);
    let launch = |steps: u64| pace.start + steps as f64 * pace.step;
    let judged = if judged == 0 { 0.0 } else { launch(judged) * f64::from(2 * SEEDS) };
    (launch(warmup + window) * LAUNCHES + judged).max(1e-3)
}

/// Whether launches can pass the setting of a phase.
fn is_passed(script: &Script<'_>, phase: Phase) -> bool {
    let number = BATCHES.contains(&phase) && !script.tuned.settings.contains_key(BATCH);
    let passes = |value: &Value| match value {
        Value::Chosen { setting: "precision", is, .. } => phase == Phase::Bf16 && *is == "bf16",
        value => value.setting() == Some(phase.setting()),
    };
    !number && (is_by_variable(script.framework, phase) || script.tuned.passed().any(|passed| passes(&passed.value)))
}

/// The trainings that are judged by their validation loss, also with a multiple of the items in a step; or why there
/// are none.
fn quality(script: &Script<'_>, multiple: u32) -> Result<Quality, String> {
    let Script { tuned, findings: Findings { monitor, pace, validated, .. }, .. } = script;
    if monitor.source == MonitorSource::Kubeflow {
        return Err("evaluations of the Trainer are not followed here: write a manifest with pawl init --framework hf"
            .to_owned());
    }
    if monitor.validation.is_none() || validated.is_empty() {
        return Err(
            "no validation loss was seen: print one at the end, such as `validation: loss 2.31`, or observe longer"
                .to_owned(),
        );
    }
    let seconds = script.budget.as_secs_f64() * QUALITY;
    let wanted = (seconds / pace.step.max(1e-6)).ceil() as u64;
    // Steps between two evaluations, where the script decides.
    let between = validated.windows(2).map(|pair| pair[1] - pair[0]).filter(|steps| *steps > 0).min();
    let batch = tuned.settings.get(BATCH).copied().map_or(1, u64::from) * u64::from(tuned.accumulation());
    let (has_steps, has_epochs) = tuned.length;
    let (steps, field) = if has_steps && tuned.has_evaluation {
        let steps = rounded(wanted.max(STEPS), multiple.into());
        (steps, format!("qualityItems: {}", steps * batch))
    } else if has_steps && let Some(between) = between {
        // A larger batch takes fewer steps: then too, the last one is followed by an evaluation.
        let steps = rounded(wanted, u64::from(multiple) * between);
        (steps, format!("qualityItems: {}", steps * batch))
    } else if has_steps && script.has_ended {
        let steps = rounded(wanted.max(STEPS), multiple.into());
        (steps, format!("qualityItems: {}", steps * batch))
    } else if has_epochs {
        let epoch = between.or(validated.first().copied()).unwrap_or(pace.steps).max(1);
        let epochs = (wanted / epoch).max(1);
        (epochs * epoch, format!("qualityEpochs: {epochs}"))
    } else if has_steps {
        return Err(
            "its evaluations are too rare to see when they come: give it an option --eval-every, or observe longer"
                .to_owned(),
        );
    } else {
        return Err("the script has no option for its number of steps or epochs".to_owned());
    };
    // Of the baseline and of two phases.
    let total = (pace.start + steps as f64 * pace.step) * f64::from(3 * SEEDS);
    if total > script.budget.as_secs_f64() * MOST {
        let minutes = total / 60.0;
        return Err(format!(
            "the trainings that judge it, up to an evaluation, would take {minutes:.1} minutes: raise --budget, or evaluate more \
             often"
        ));
    }
    Ok(Quality { field, steps })
}

/// At least `number`, and divisible by `by`.
fn rounded(number: u64, by: u64) -> u64 {
    number.max(1).div_ceil(by) * by
}

/// Steps of the warm-up and of the window of a measurement.
fn window(script: &Script<'_>) -> (u64, u64) {
    let pace = &script.findings.pace;
    let (part, least, most) = WINDOW;
    let by_updates = script.findings.monitor.source == MonitorSource::Kubeflow;
    let seconds = (script.budget.as_secs_f64() * part).clamp(least, most);
    let seconds = if by_updates { UPDATES } else { seconds };
    let steps = |seconds: f64| (seconds / pace.step.max(1e-6)).ceil().min(50_000.0) as u64;
    let every = pace.every.max(1);
    let warmup = rounded(steps(seconds / 4.0).max(5), every);
    let window = rounded(steps(seconds).max(STEPS).max(LINES * every), every);
    let (has_steps, has_epochs) = script.tuned.length;
    let own = pace.steps.saturating_sub(warmup + every).max(1);
    // The script cannot be made longer.
    if script.has_ended && !has_steps && !has_epochs { (warmup, window.min(own)) } else { (warmup, window) }
}

/// Steps that a launch which measures speed is given: as many as it takes at most. It is ended after its last one, and
/// a script that ends by itself could not be measured for longer where its speed still changes. `None`: the steps that
/// it needs at least.
pub fn steps_given(script: &Script<'_>) -> Option<u64> {
    let restarts = script.findings.pace.restarts;
    // That more steps come than it was given shows that it counts micro-steps.
    let counts = script.tuned.accumulation() > 1 && !restarts;
    if counts || script.findings.monitor.source == MonitorSource::Kubeflow {
        return None;
    }
    // Not far more: the schedules of scripts follow from their length.
    let (warmup, window) = window(script);
    let workers = script.tuned.settings.get(Phase::LoaderWorkers.setting()).copied();
    let loading =
        Settings { loader_workers: Some(workers.unwrap_or_default().max(MORE_WORKERS)), ..Settings::default() };
    let least = 2 * loading.queue_steps(1);
    let most = warmup.max(least) + window.max(least) * (1 + EXTENSIONS);
    // It does not print the last steps of an epoch: as many as are needed would not be seen.
    Some(if restarts { MANY } else { most })
}

/// Time without a step after which a launch hangs, in minutes.
fn patience(pace: &Pace) -> u64 {
    ((pace.silence * 10.0 / 60.0).ceil() as u64).clamp(2, 60)
}

fn manifest(script: &Script<'_>, phases: &[(Phase, Outlook)], quality: Option<&Quality>, notes: &[String]) -> String {
    let Script { name, framework, gpus, tuned, findings, .. } = script;
    let seen = script.evidence.explained();
    let notes = seen.lines().chain(notes.iter().map(String::as_str)).map(|note| format!("# - {note}\n"));
    let notes: String = notes.collect();
    let words: String = tuned.launch().iter().map(|word| format!("      - {}\n", scalar(word))).collect();
    let mut text = format!(
        "# Written by pawl tune. `pawl run` measures it again, `pawl validate` checks what you change.
{notes}apiVersion: pawl.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  workload:
    command:
{words}{}  trainer:
    gpusPerReplica: {gpus}
{}",
        followed(&findings.monitor),
        environment(*framework)
    );
    let settings: Vec<String> = tuned.settings.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    if !settings.is_empty() {
        let _ = writeln!(text, "  # The baseline: the script as it is now.\n  settings: {{{}}}", settings.join(", "));
    }
    let seed = tuned.seed.unwrap_or(42);
    let seeds: Vec<String> = (0..SEEDS).map(|index| seed.saturating_add(index).to_string()).collect();
    let _ = writeln!(text, "  seeds: [{}]", seeds.join(", "));
    text.push_str(if phases.is_empty() { "  phases: []\n" } else { "  phases:\n" });
    let batch = tuned.settings.get(BATCH).copied().unwrap_or(1);
    for (phase, outlook) in phases {
        let ground = outlook.ground().map(|ground| format!(" Here {ground}.")).unwrap_or_default();
        let comment = format!("{}{ground}", phase.reason());
        let larger = script.larger.as_ref().filter(|_| BATCHES.contains(phase));
        text.push_str(&match larger {
            Some(larger) => {
                let settings = larger.choices.iter().map(|choice| choice.settings(tuned.accumulation()));
                let when: &[&str] = if phase.is_changed() { &TOO_LARGE } else { &LACKS_MEMORY };
                phase.entry_of(settings.collect(), when, &comment)
            }
            None => phase.entry(batch, tuned.accumulation(), &comment),
        });
    }
    let (warmup, window) = window(script);
    let quality_field = quality.map(|quality| format!(", {}", quality.field)).unwrap_or_default();
    // What is tried fits into the time that the person gave: also with a training, it is measured.
    let measured = format!("warmupSteps: {warmup}, windowSteps: {window}{quality_field}");
    let _ = writeln!(text, "  analysis: {{{measured}, budgetPercent: Unlimited}}");
    if quality.is_some() {
        text.push_str("  # Largest increase of the validation loss.\n  gates: {validationLossDelta: \"0.02\"}\n");
    }
    let _ = writeln!(text, "  lifecycle: {{hangTimeout: {}m}}", patience(&findings.pace));
    text
}

/// How launches are followed.
fn followed(Monitor { source, training, validation }: &Monitor) -> String {
    if *source == MonitorSource::Kubeflow {
        return "    # Its Trainer reports to the agent by its KubeflowCallback (a recent Transformers).
    monitor: {source: Kubeflow}
"
        .to_owned();
    }
    let mut text = "    # The lines that it printed while it was observed.\n    monitor:\n".to_owned();
    for (name, pattern) in [("training", training), ("validation", validation)] {
        if let Some(pattern) = pattern {
            let _ = writeln!(text, "      {name}: {}", scalar(pattern));
        }
    }
    text
}

/// A scalar of YAML.
fn scalar(word: &str) -> String {
    // What a plain scalar cannot contain is escaped as in JSON.
    if word.contains(char::is_control) { serde_json::Value::from(word).to_string() } else { quoted(word) }
}

#[cfg(test)]
mod tests;
