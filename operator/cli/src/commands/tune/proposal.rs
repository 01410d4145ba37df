//! The manifest for a script whose output and options are known.

use super::command::{BATCH, Tuned, settings_of};
use super::lines::{Findings, Pace};
use crate::args::Framework;
use crate::commands::init::{environment, phase_lines, quoted};
use pawl_contract::script::{Monitor, MonitorSource};
use std::fmt::Write as _;
use std::time::Duration;

/// Lines in a measured window, at least.
const LINES: u64 = 5;
/// Steps in a measured window, at least.
const STEPS: u64 = 20;
/// Seconds of a measured window, as a part of the budget, and their bounds: a phase that is faster has the same steps in less time.
const WINDOW: (f64, f64, f64) = (1.0 / 300.0, 2.0, 10.0);
/// Seconds of a training that is judged by its validation loss, as a part of the budget.
const QUALITY: f64 = 1.0 / 40.0;
/// Part of the budget for these trainings, at most.
const MOST: f64 = 0.5;
/// Seeds of these trainings.
const SEEDS: u32 = 3;
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
    pub phases: Vec<&'static str>,
    /// One line each.
    pub notes: Vec<String>,
}

/// A phase, the setting without which it has no effect, whether it changes the numerics, and why it may help.
struct Phase {
    name: &'static str,
    needs: &'static str,
    is_changed: bool,
    reason: &'static str,
}

const fn phase(name: &'static str, needs: &'static str, is_changed: bool, reason: &'static str) -> Phase {
    Phase { name, needs, is_changed, reason }
}

/// The phases in their order. `gradient-checkpointing` is none of them: by itself, it costs speed.
const PHASES: [Phase; 7] = [
    phase("loader-workers", "loaderWorkers", false, "Batches are loaded while the step before is computed."),
    phase("fused-optimizer", "optimizerKernel", false, "One kernel updates all parameters, instead of some for each."),
    phase("attention", "attention", false, "Attention whose matrix of weights is never written to memory."),
    phase("bf16", "precision=bf16", true, "Half the bytes, and matrix products on tensor cores."),
    phase("compile", "compile", false, "Fewer kernels, with less traffic between them."),
    phase("larger-batch", BATCH, true, "Fewer steps for the same items, each with more work for the device."),
    phase("fsdp", "sharding", true, "Parameters are sharded: less memory, more communication."),
];

/// The manifest for a script.
pub fn propose(script: &Script<'_>) -> Proposal {
    let Script { tuned, findings, .. } = script;
    let mut notes = findings.notes.clone();
    let quality = quality(script);
    let mut phases = Vec::new();
    let mut absent = Vec::new();
    for phase in &PHASES {
        let setting = phase.needs.split('=').next().unwrap_or_default();
        if phase.name == "fsdp" && script.gpus <= 1 {
            continue;
        }
        if let Some(words) = tuned.fixed.get(setting) {
            notes.push(format!("{} is not tried: {words} is given", phase.name));
        } else if !is_passed(script, phase) {
            absent.push(phase.name);
        } else if phase.name == "loader-workers" && tuned.settings.get(setting).is_some_and(|&workers| workers >= 4) {
            notes.push(format!("loader-workers is not tried: the script has {} already", tuned.settings[setting]));
        } else if let Err(why) = &quality
            && phase.is_changed
        {
            notes.push(format!("{} is not tried: it changes the numerics, and {why}", phase.name));
        } else {
            phases.push(phase);
        }
    }
    if !absent.is_empty() {
        notes.push(format!("not tried, as the script has no option for it: {}", absent.join(", ")));
    }
    let quality = quality.ok().filter(|_| phases.iter().any(|phase| phase.is_changed));
    let manifest = manifest(script, &phases, quality.as_deref(), &notes);
    Proposal { manifest, phases: phases.iter().map(|phase| phase.name).collect(), notes }
}

/// Whether launches can pass the setting of a phase.
fn is_passed(script: &Script<'_>, phase: &Phase) -> bool {
    let needed = format!("$(settings.{}", phase.needs);
    let number = phase.name == "larger-batch" && !script.tuned.settings.contains_key(BATCH);
    let words = script.tuned.launch();
    let all = words.iter().map(String::as_str).chain([environment(script.framework)]);
    !number && all.filter(|word| !settings_of(word).is_empty()).any(|word| word.contains(&needed))
}

/// The length of the trainings that are judged by their validation loss, as a field of `analysis`; or why there are none.
fn quality(script: &Script<'_>) -> Result<String, String> {
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
    let batch = tuned.settings.get(BATCH).copied().map_or(1, u64::from);
    let (has_steps, has_epochs) = tuned.length;
    let (steps, field) = if has_steps && tuned.has_evaluation {
        let steps = rounded(wanted.max(STEPS), 2);
        (steps, format!("qualityItems: {}", steps * batch))
    } else if has_steps && let Some(between) = between {
        // Twice the batch takes half the steps: then too, the last one is followed by an evaluation.
        let steps = rounded(wanted, 2 * between);
        (steps, format!("qualityItems: {}", steps * batch))
    } else if has_steps && script.has_ended {
        let steps = rounded(wanted.max(STEPS), 2);
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
    Ok(field)
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

/// Time without a step after which a launch hangs, in minutes.
fn patience(pace: &Pace) -> u64 {
    ((pace.silence * 10.0 / 60.0).ceil() as u64).clamp(2, 60)
}

fn manifest(script: &Script<'_>, phases: &[&Phase], quality: Option<&str>, notes: &[String]) -> String {
    let Script { name, framework, gpus, tuned, findings, .. } = script;
    let notes: String = notes.iter().map(|note| format!("# - {note}\n")).collect();
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
    for phase in phases {
        let lines = phase_lines(phase.name, batch);
        let own = lines.lines().filter(|line| !line.trim_start().starts_with('#')).map(|line| format!("{line}\n"));
        let _ = write!(text, "    # {}\n{}", phase.reason, own.collect::<String>());
    }
    let (warmup, window) = window(script);
    let quality_field = quality.map(|field| format!(", {field}")).unwrap_or_default();
    let _ = writeln!(text, "  analysis: {{warmupSteps: {warmup}, windowSteps: {window}{quality_field}}}");
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
    use crate::commands::tune::command::Part;
    use std::collections::BTreeMap;

    const ALL: [&str; 6] = [
        "--batch=$(settings.batchPerGpu)",
        "$(settings.loaderWorkers:+--workers=$(settings.loaderWorkers))",
        "$(settings.precision=bf16:+--bf16)",
        "$(settings.compile=Fuse:+--compile)",
        "$(launch.steps:+--steps=$(launch.steps))",
        "--seed=$(seed)",
    ];

    fn tuned(words: &[&str]) -> Tuned {
        let launch = ["python3", "/home/it's/train.py"].iter().chain(words).map(|&word| word.to_owned()).collect();
        Tuned {
            parts: vec![Part { launch, own: Vec::new() }],
            settings: BTreeMap::from([(BATCH.to_owned(), 16)]),
            seed: Some(7),
            fixed: BTreeMap::new(),
            length: (true, false),
            has_evaluation: false,
        }
    }

    fn findings(validated: &[u64]) -> Findings {
        let monitor = Monitor {
            training: Some(r"\bstep\s*(?<step>\d+): loss (?<loss>\S+)".to_owned()),
            validation: (!validated.is_empty()).then(|| r"it's (?<loss>\S+)".to_owned()),
            ..Monitor::default()
        };
        let pace = Pace { start: 1.0, step: 0.05, every: 10, silence: 0.5, steps: 400, restarts: false };
        Findings { monitor, pace, validated: validated.to_vec(), notes: Vec::new() }
    }

    fn proposed(tuned: &Tuned, findings: &Findings, minutes: u64) -> (Proposal, pawl_api::TrainingJob) {
        let budget = Duration::from_secs(60 * minutes);
        let (framework, gpus) = (Framework::Pytorch, 0);
        let script = Script { name: "tune-train", framework, gpus, tuned, findings, has_ended: false, budget };
        let proposal = propose(&script);
        let job = pawl_manifest::parse(&proposal.manifest, "job.yaml");
        let job = job.unwrap_or_else(|error| panic!("{error}\n{}", proposal.manifest));
        (proposal, job)
    }

    #[test]
    fn without_a_validation_only_phases_with_equal_numerics_are_proposed() {
        let (proposal, job) = proposed(&tuned(&ALL), &findings(&[]), 20);
        assert_eq!(proposal.phases, ["loader-workers", "compile"]);
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
        assert_eq!((analysis.warmup_steps, analysis.window_steps, job.spec.seeds), (20, 80, vec![7, 8, 9]));
        assert_eq!(job.spec.settings.batch_per_gpu, Some(16));
    }

    #[test]
    fn phases_that_change_the_numerics_are_judged_where_an_evaluation_ends_their_trainings() {
        let (proposal, job) = proposed(&tuned(&ALL), &findings(&[100, 200, 300, 400]), 20);
        assert_eq!(proposal.phases, ["loader-workers", "bf16", "compile", "larger-batch"]);
        // 30 seconds are 600 steps of 16 items: also with twice the batch, the end is divisible by 100.
        assert_eq!(job.spec.analysis.quality_items, Some(600 * 16));
        assert!(job.spec.gates.validation_loss_delta.is_some());
        let by_epochs = Tuned { length: (false, true), ..tuned(&ALL) };
        let (_, job) = proposed(&by_epochs, &findings(&[100, 200]), 20);
        assert_eq!(job.spec.analysis.quality_epochs, Some(6));
        // One evaluation: nobody knows when the next one comes.
        let (proposal, _) = proposed(&tuned(&ALL), &findings(&[100]), 20);
        assert_eq!(proposal.phases, ["loader-workers", "compile"]);
        let told = Tuned { has_evaluation: true, ..tuned(&ALL) };
        assert_eq!(proposed(&told, &findings(&[100]), 20).0.phases.len(), 4);
        // Too long for the budget.
        let rare = findings(&[20_000, 40_000]);
        let (proposal, _) = proposed(&tuned(&ALL), &rare, 20);
        assert!(proposal.notes.iter().any(|note| note.contains("minutes: raise --budget")), "{:?}", proposal.notes);
    }

    #[test]
    fn what_is_fixed_or_has_no_number_is_no_phase() {
        let mut fixed = tuned(&ALL);
        fixed.fixed.insert("compile".to_owned(), "--compile".to_owned());
        fixed.settings.insert("loaderWorkers".to_owned(), 8);
        let (proposal, _) = proposed(&fixed, &findings(&[]), 20);
        assert!(proposal.phases.is_empty());
        assert!(proposal.notes.contains(&"compile is not tried: --compile is given".to_owned()));
        assert!(proposal.notes.contains(&"loader-workers is not tried: the script has 8 already".to_owned()));
        let unknown = Tuned { settings: BTreeMap::new(), ..tuned(&ALL[1..]) };
        assert!(!proposed(&unknown, &findings(&[100, 200]), 20).0.phases.contains(&"larger-batch"));
    }
}
