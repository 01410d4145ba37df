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

/// The trainings that are judged by their validation loss, also with a multiple of the items in a step; or why there are
/// none.
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
mod tests {
    use super::*;
    use crate::args::InitArgs;
    use crate::commands::tune::batch::Choice;
    use crate::commands::tune::start::Start;
    use crate::commands::tune::profile::{Activity, Load, Loader, Memory, Optimizer, Shares, Torch};
    use pawl_api::spec::Trigger;
    use rstest::rstest;
    use std::path::Path;

    const ALL: &str = "
a.add_argument('--batch', type=int, default=16)
a.add_argument('--workers', type=int)
a.add_argument('--bf16', action='store_true')
a.add_argument('--compile', action='store_true')
a.add_argument('--seed', type=int)
";
    const STEPS_OPTION: &str = "a.add_argument('--steps', type=int)\n";

    fn of_source(source: &str) -> Tuned {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        let arguments = InitArgs {
            script: "/home/it's/train.py".into(),
            framework: Framework::Pytorch,
            name: None,
            gpus: 0,
            batch: None,
            items: None,
            out: "-".into(),
        };
        let start = Start::plain(file.path(), "/home/it's/train.py", vec!["--seed".to_owned(), "7".to_owned()]);
        Tuned::new(&arguments, &start, Path::new("/home/me"))
    }

    fn all() -> Tuned {
        of_source(&format!("{ALL}{STEPS_OPTION}"))
    }

    fn findings(validated: &[u64]) -> Findings {
        let monitor = Monitor {
            training: Some(r"\bstep\s*(?<step>\d+): loss (?<loss>\S+)".to_owned()),
            validation: (!validated.is_empty()).then(|| r"it's (?<loss>\S+)".to_owned()),
            ..Monitor::default()
        };
        let pace = Pace { start: 1.0, step: 0.05, every: 10, silence: 0.5, steps: 400, restarts: false, end: 21.0 };
        Findings { monitor, pace, validated: validated.to_vec(), notes: Vec::new() }
    }

    fn proposed(tuned: &Tuned, findings: &Findings, minutes: u64) -> (Proposal, pawl_api::TrainingJob) {
        seen(tuned, findings, &Evidence::default(), minutes)
    }

    fn seen(
        tuned: &Tuned,
        findings: &Findings,
        evidence: &Evidence,
        minutes: u64,
    ) -> (Proposal, pawl_api::TrainingJob) {
        searched(tuned, findings, evidence, minutes, None)
    }

    fn searched(
        tuned: &Tuned,
        findings: &Findings,
        evidence: &Evidence,
        minutes: u64,
        larger: Option<Larger>,
    ) -> (Proposal, pawl_api::TrainingJob) {
        let budget = Duration::from_secs(60 * minutes);
        let (framework, gpus) = (Framework::Pytorch, 0);
        let script =
            Script { name: "tune-train", framework, gpus, tuned, findings, evidence, larger, has_ended: false, budget };
        let proposal = propose(&script);
        let job = pawl_manifest::parse(&proposal.manifest, "job.yaml");
        let job = job.unwrap_or_else(|error| panic!("{error}\n{}", proposal.manifest));
        (proposal, job)
    }

    fn names(proposal: &Proposal) -> Vec<&'static str> {
        proposal.phases.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn without_a_validation_only_phases_with_equal_numerics_are_proposed() {
        let (proposal, job) = proposed(&all(), &findings(&[]), 20);
        assert_eq!(names(&proposal), ["loader-workers", "compile"]);
        assert!(
            proposal
                .notes
                .iter()
                .any(|note| note.starts_with("bf16 is not tried: it changes the numerics, and no validation"))
        );
        assert!(
            proposal
                .notes
                .contains(&"not tried, as the script has no option for it: fused-optimizer, attention".to_owned())
        );
        assert_eq!(job.spec.analysis.quality_items, None);
        let analysis = &job.spec.analysis;
        assert_eq!(analysis.budget_percent, Some(pawl_api::spec::JudgingBudget::Unlimited));
        assert_eq!((analysis.warmup_steps, analysis.window_steps, job.spec.seeds), (20, 80, vec![7, 8, 9]));
        assert_eq!(job.spec.settings.batch_per_gpu, Some(16));
    }

    #[test]
    fn phases_that_change_the_numerics_are_judged_where_an_evaluation_ends_their_trainings() {
        let (proposal, job) = proposed(&all(), &findings(&[100, 200, 300, 400]), 20);
        assert_eq!(names(&proposal), ["loader-workers", "compile", "bf16", "larger-batch"]);
        // 30 seconds are 600 steps of 16 items: also with twice the batch, the end is divisible by 100.
        assert_eq!(job.spec.analysis.quality_items, Some(600 * 16));
        assert!(job.spec.gates.validation_loss_delta.is_some());
        let by_epochs = Tuned { length: (false, true), ..all() };
        let (_, job) = proposed(&by_epochs, &findings(&[100, 200]), 20);
        assert_eq!(job.spec.analysis.quality_epochs, Some(6));
        // One evaluation: nobody knows when the next one comes.
        let (proposal, _) = proposed(&all(), &findings(&[100]), 20);
        assert_eq!(names(&proposal), ["loader-workers", "compile"]);
        let told = Tuned { has_evaluation: true, ..all() };
        assert_eq!(proposed(&told, &findings(&[100]), 20).0.phases.len(), 4);
        // Too long for the budget.
        let rare = findings(&[20_000, 40_000]);
        let (proposal, _) = proposed(&all(), &rare, 20);
        assert!(proposal.notes.iter().any(|note| note.contains("minutes: raise --budget")), "{:?}", proposal.notes);
    }

    #[test]
    fn what_is_fixed_or_has_no_number_is_no_phase() {
        let mut fixed = all();
        fixed.fixed.insert("compile".to_owned(), "--compile".to_owned());
        fixed.settings.insert("loaderWorkers".to_owned(), 8);
        let (proposal, _) = proposed(&fixed, &findings(&[]), 20);
        assert!(proposal.phases.is_empty());
        assert!(proposal.notes.contains(&"compile is not tried: --compile is given".to_owned()));
        assert!(proposal.notes.contains(&"loader-workers is not tried: the script has 8 already".to_owned()));
        let unknown = of_source(&format!("{}{STEPS_OPTION}", ALL.replace(", default=16", "")));
        assert!(!names(&proposed(&unknown, &findings(&[100, 200]), 20).0).contains(&"larger-batch"));
    }

    /// A thousand looks at the main thread.
    fn shares(seconds: &[(Activity, f64)]) -> Option<Shares> {
        Some(Shares { seconds: seconds.iter().copied().collect(), samples: 1000, place: None })
    }

    #[rstest]
    #[case::loader(
        &[(Activity::Data, 0.6), (Activity::Backward, 0.4)], 0,
        &["loader-workers", "compile", "bf16", "larger-batch"], "a step waits for data for 60 %: at most 2.50×"
    )]
    // With 90 % of the time in the loader, nothing else gains much; twice the batch is loaded in twice the time.
    #[case::only_the_loader(
        &[(Activity::Data, 0.995), (Activity::Backward, 0.005)], 0,
        &["loader-workers"], "larger-batch is not tried: it acts on 0.5 %: at most 1.00×"
    )]
    #[case::no_wait(
        &[(Activity::Data, 0.0), (Activity::Backward, 0.7), (Activity::Optimizer, 0.3)], 0,
        &["compile", "bf16", "larger-batch"], "loader-workers is not tried: a step waits for data for 0 %: at most 1.00×"
    )]
    #[case::evaluations(
        &[(Activity::Evaluation, 0.8), (Activity::Backward, 0.2)], 0,
        &["compile", "bf16", "larger-batch"], "it acts on 20 %: at most 1.25×"
    )]
    #[case::workers_cannot_load_faster(
        &[(Activity::Data, 0.6), (Activity::Backward, 0.4)], 4,
        &["compile", "bf16", "larger-batch"], "loader-workers is not tried: a step waits for data for 60 %: at most 1.00×"
    )]
    fn phases_are_proposed_by_what_they_can_gain(
        #[case] seconds: &[(Activity, f64)],
        #[case] workers: u32,
        #[case] expected: &[&str],
        #[case] text: &str,
    ) {
        let torch = Torch { loaders: vec![Loader { workers }], ..Torch::default() };
        let evidence = Evidence { shares: shares(seconds), cores: 8, torch: Some(torch), ..Evidence::default() };
        let (proposal, _) = seen(&all(), &findings(&[100, 200, 300, 400]), &evidence, 20);
        assert_eq!(names(&proposal), expected, "{:?}", proposal.notes);
        assert!(
            proposal.notes.iter().any(|note| note == text) || proposal.manifest.contains(text),
            "{}",
            proposal.manifest
        );
    }

    #[test]
    fn micro_batches_are_merged_as_far_as_they_fit_at_the_same_batch() {
        let accumulates = of_source(&format!("{ALL}{STEPS_OPTION}a.add_argument('--accumulation', default=6)\n"));
        let (proposal, job) = proposed(&accumulates, &findings(&[100, 200, 300, 400]), 20);
        assert_eq!(names(&proposal), ["loader-workers", "compile", "one-micro-batch", "bf16"], "{:?}", proposal.notes);
        let phase = job.spec.phases.iter().find(|phase| phase.name == "one-micro-batch").unwrap();
        let choices = std::iter::once(&phase.settings).chain(phase.fallbacks.iter().map(|fallback| &fallback.settings));
        let choices: Vec<_> = choices.map(|settings| (settings.batch_per_gpu, settings.accumulation_steps)).collect();
        assert_eq!(choices, [(Some(96), Some(1)), (Some(48), Some(2)), (Some(32), Some(3))]);
        assert_eq!(job.spec.settings.accumulation_steps, Some(6));
        // 600 steps of 6 micro-batches of 16 items.
        assert_eq!(job.spec.analysis.quality_items, Some(600 * 6 * 16));
        assert!(
            proposal.notes.iter().any(|note| note.starts_with("larger-batch is not tried: its steps are accumulated"))
        );
    }

    #[test]
    fn the_batch_that_fits_is_the_phase_and_the_next_smaller_one_its_fallback() {
        let choices = [64, 32].map(|batch| Choice { batch, accumulation: 1 }).to_vec();
        let ground = "64 fits, 96 does not: out of memory".to_owned();
        let found = Larger { choices, ground, multiple: 4 };
        let validated = findings(&[100, 200, 300, 400]);
        let (proposal, job) = searched(&all(), &validated, &Evidence::default(), 20, Some(found.clone()));
        let phase = job.spec.phases.iter().find(|phase| phase.name == "larger-batch").unwrap();
        let fallback = &phase.fallbacks[0];
        assert_eq!((phase.settings.batch_per_gpu, fallback.settings.batch_per_gpu), (Some(64), Some(32)));
        assert!(fallback.when.contains(&Trigger::QualityBelowThreshold) && phase.fallbacks.len() == 1);
        assert!(proposal.manifest.contains("Here 64 fits, 96 does not: out of memory."), "{}", proposal.manifest);
        // 800 steps: a quarter of them ends with an evaluation too.
        assert_eq!(job.spec.analysis.quality_items, Some(800 * 16));
        let none = Larger { choices: Vec::new(), ground: "16 fits, 32 does not: out of memory".to_owned(), multiple: 1 };
        let (proposal, _) = searched(&all(), &validated, &Evidence::default(), 20, Some(none));
        let note = "larger-batch is not tried: 16 fits, 32 does not: out of memory";
        assert!(proposal.notes.iter().any(|known| known == note), "{:?}", proposal.notes);
    }

    #[test]
    fn what_the_script_does_already_is_no_phase_and_busy_cores_load_no_faster() {
        let adam = Optimizer { name: "AdamW".to_owned(), fused: true, ..Optimizer::default() };
        let torch = Torch {
            loaders: vec![Loader { workers: 0 }],
            optimizers: vec![adam],
            autocast: Some("bfloat16".to_owned()),
            compiled: true,
            memory: Some(Memory { peak: 1, total: 2 }),
            ..Torch::default()
        };
        let load = Some(Load { main_thread: 1.0, process: 7.95, ..Load::default() });
        let shares = shares(&[(Activity::Data, 0.5), (Activity::Other, 0.5)]);
        let evidence = Evidence { shares, load, cores: 8, gpu: Some(0.4), torch: Some(torch) };
        let (proposal, _) = seen(&all(), &findings(&[]), &evidence, 20);
        assert_eq!(names(&proposal), [""; 0]);
        for why in [
            "loader-workers is not tried: all 8 cores are busy: more workers would share them",
            "bf16 is not tried: it computes in bfloat16 already",
            "compile is not tried: a module is compiled already",
        ] {
            assert!(proposal.notes.iter().any(|note| note == why), "{why}: {:?}", proposal.notes);
        }
    }
}
