//! `pawl init`.

pub(super) mod arguments;
pub(super) mod command;
pub(super) mod declared;
mod hydra;
pub(super) mod options;
pub(super) mod phases;
pub(super) mod words;

use super::output::create;
use super::print;
use crate::args::{Framework, InitArgs};
use crate::exit;
use command::Command;
use phases::Phase;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Writes a manifest for a script.
pub fn init(arguments: &InitArgs) -> ExitCode {
    let script = match std::fs::canonicalize(&arguments.script) {
        Ok(script) => script,
        Err(error) => {
            let place = arguments.script.display();
            return exit::with_error(exit::INPUT, &format!("{place}: {error}: give the path of the training script"));
        }
    };
    let source = std::fs::read(&script).unwrap_or_default();
    let mut command = Command::of(arguments, &script);
    let mismatch = mismatch(&String::from_utf8_lossy(&source), arguments.framework, command.has_options);
    command.notes.splice(..0, mismatch.map(str::to_owned));
    let text = manifest(arguments, &script, &command);
    if arguments.out == Path::new("-") {
        return print(&text);
    }
    let out = arguments.out.display();
    match create(&arguments.out, &text) {
        Ok(()) => {
            let notes: String = command.notes.iter().map(|note| format!("note: {note}\n")).collect();
            print(&format!("{out}: adapt it to the script, then: pawl run --dry-run {out}\n{notes}"))
        }
        Err(error) => exit::with_error(exit::INPUT, &error),
    }
}

/// What scripts that parse their command line contain.
const PARSERS: [&str; 10] =
    ["argparse", "ArgumentParser", "sys.argv", "LightningCLI", "click", "fire", "hydra", "typer", "tyro", "absl"];
const NO_ARGUMENTS: &str = "the script seems to parse no arguments, so that no phase would have an effect: parse those of the manifest, \
    or let the script read its settings with the Python package pawl-launch";

const NO_LIGHTNING_CLI: &str = "the script seems to parse its arguments itself, and those of the manifest are LightningCLI's: write those of \
    the script, or use --framework pytorch";

/// What to do if the script seems not to read the command line that the manifest gives it.
fn mismatch(source: &str, framework: Framework, has_options: bool) -> Option<&'static str> {
    let parses = has_options || PARSERS.iter().any(|parser| source.contains(parser));
    let other = framework == Framework::Lightning && !source.contains("LightningCLI");
    match (parses, other) {
        (false, _) => Some(NO_ARGUMENTS),
        (true, true) => Some(NO_LIGHTNING_CLI),
        (true, false) => None,
    }
}

fn manifest(arguments: &InitArgs, script: &Path, command: &Command) -> String {
    let stem = script.file_stem().unwrap_or_default().to_string_lossy();
    let name = arguments.name.clone().unwrap_or_else(|| label(&stem));
    let words = command.text().iter().map(|word| format!("      - {}\n", quoted(word))).collect::<String>();
    let notes = command.notes.iter().map(|note| format!("# - {note}\n")).collect::<String>();
    let InitArgs { framework, gpus, .. } = arguments;
    let mut text = format!(
        "# Written by pawl init. Adapt the arguments to those of the script; `pawl run --dry-run` prints the command of each launch.
{notes}apiVersion: pawl.dev/v1alpha1
kind: TrainingJob
metadata: {{name: {name}}}
spec:
  workload:
    # Placeholders are replaced for each launch: $(NAME), $(NAME:-DEFAULT), $(NAME:+TEXT if it is on), $(NAME=VALUE:+TEXT if it is
    # VALUE). A setting without a placeholder is an error, so that no phase is measured without effect.
    command:
{words}{}  trainer:
    gpusPerReplica: {gpus}
",
        monitor(*framework)
    );
    text.push_str(&environment(*framework));
    text.push_str(&ladder(*gpus, command));
    let quality = if command.by_epochs { "qualityEpochs: 1" } else { "qualityItems: 20000" };
    let _ = write!(
        text,
        "  # With source: Kubeflow, the window has to take more than 15 seconds: updates come every 5.
  analysis: {{warmupSteps: 20, windowSteps: 100, {quality}}}
  # Largest increase of the validation loss.
  gates: {{validationLossDelta: \"0.02\"}}
",
    );
    if let Some(items) = arguments.items {
        let _ = writeln!(text, "  train: {{items: {items}}}");
    }
    // Without a training line for this long, the launch is a hang: longer than an evaluation.
    text.push_str(
        "  # Longer than an evaluation and a checkpoint: without a step for this long, a launch counts as hung.\n",
    );
    text.push_str("  lifecycle: {hangTimeout: 10m}\n");
    text
}

/// The baseline and the phases, without those that the script has no option for.
fn ladder(gpus: u32, command: &Command) -> String {
    let batch = command.batch;
    let more: String = command.settings.iter().map(|(name, value)| format!(", {name}: {value}")).collect();
    let mut text = format!(
        "  # The baseline: the script as it is now.
  settings: {{batchPerGpu: {batch}{more}}}
  seeds: [42, 43, 44]
  # Each phase is measured against the settings accepted so far, and kept only if it is faster and as good.
"
    );
    let accumulation = command.accumulation();
    let is_tried = |phase: &Phase| {
        let applies = match phase {
            Phase::Fsdp => gpus > 1,
            // Both would change the batch.
            Phase::OneMicroBatch => accumulation > 1,
            Phase::LargerBatch => accumulation <= 1,
            Phase::LoaderWorkers
            | Phase::FusedOptimizer
            | Phase::Attention
            | Phase::Bf16
            | Phase::Compile
            | Phase::GradientCheckpointing => true,
        };
        applies && !command.absent.contains(phase)
    };
    let phases: String =
        Phase::ALL.into_iter().filter(is_tried).map(|phase| phase.entry(batch, accumulation, phase.reason())).collect();
    text.push_str(if phases.is_empty() { "  phases: []\n" } else { "  phases:\n" });
    text + &phases
}

/// How the script is followed.
const fn monitor(framework: Framework) -> &'static str {
    match framework {
        Framework::Hf => {
            "    # The script needs no change: its Trainer reports to the agent by its KubeflowCallback (a recent Transformers).
    monitor: {source: Kubeflow}
"
        }
        Framework::Lightning | Framework::Accelerate | Framework::Pytorch => {
            "    # The lines that the script prints: `step 120: loss 2.31`, and after an evaluation `validation: loss 2.4, accuracy 0.6`.
    # Adapt the patterns to its own lines; groups are (?<step>..), (?<items>..), (?<loss>..) and names of metrics.
    monitor:
      training: 'step (?<step>\\d+): loss (?<loss>\\S+)'
      validation: 'validation: loss (?<loss>\\S+)'
"
        }
    }
}

/// Variables of Accelerate, the phase without which each has no effect, and their values.
const ACCELERATE: [(&str, Option<Phase>, &str); 4] = [
    (
        "ACCELERATE_MIXED_PRECISION",
        Some(Phase::Bf16),
        "$(settings.precision=bf16:+bf16)$(settings.precision=fp16:+fp16)$(settings.precision=fp32:+no)",
    ),
    ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", None, "$(settings.accumulationSteps)"),
    (
        "ACCELERATE_DYNAMO_BACKEND",
        Some(Phase::Compile),
        "$(settings.compile=Fuse:+inductor)$(settings.compile=None:+no)",
    ),
    // The agent adds FSDP_VERSION=2 and the like.
    ("ACCELERATE_USE_FSDP", Some(Phase::Fsdp), "$(settings.sharding=Full:+true)$(settings.sharding=None:+false)"),
];

const fn variables(framework: Framework) -> &'static [(&'static str, Option<Phase>, &'static str)] {
    match framework {
        Framework::Accelerate => &ACCELERATE,
        Framework::Hf | Framework::Lightning | Framework::Pytorch => &[],
    }
}

/// Whether a variable of the framework has the effect of a phase.
pub(super) fn is_by_variable(framework: Framework, phase: Phase) -> bool {
    variables(framework).iter().any(|(_, of, _)| *of == Some(phase))
}

/// Variables of the framework.
pub(super) fn environment(framework: Framework) -> String {
    let entries: String = variables(framework)
        .iter()
        .map(|(name, _, value)| format!("        - {{name: {name}, value: {}}}\n", quoted(value)))
        .collect();
    if entries.is_empty() { entries } else { format!("    podTemplate:\n      env:\n{entries}") }
}

/// A name of Kubernetes made of `text`.
pub(super) fn label(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(plain).take(40).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "training".to_owned() } else { name.to_owned() }
}

/// A scalar of YAML.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use pawl_contract::plan::LaunchKind;

    #[test]
    fn every_manifest_is_valid_and_each_of_its_settings_reaches_the_script() {
        for framework in Framework::value_variants() {
            for (gpus, items) in [(0, None), (1, Some(1000)), (4, Some(1000))] {
                let arguments = InitArgs {
                    script: "train_it's.py".into(),
                    framework: *framework,
                    name: None,
                    gpus,
                    batch: Some(8),
                    items,
                    out: "-".into(),
                };
                let path = Path::new("/scripts/Train_it's.py");
                let text = manifest(&arguments, path, &Command::of(&arguments, path));
                let job = pawl_manifest::parse(&text, "job.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"));
                assert_eq!(job.metadata.name.as_deref(), Some("train-it-s"));
                assert_eq!(job.spec.phases.len(), if gpus > 1 { 8 } else { 7 });
                assert_eq!(job.spec.train.items, items);
                let plan = pawl_decision::preview(&job);
                let node = pawl_agent::Node::local("/work", Vec::new());
                for launch in &plan.launches {
                    let preview = pawl_agent::preview(&plan, launch, &node).unwrap();
                    assert_eq!(preview.unsupported, None, "{framework:?}: {}", launch.title);
                    assert!(preview.command.iter().any(|word| word.contains("Train_it's.py")));
                    assert_eq!(launch.kind == LaunchKind::Train, launch.title == "training");
                }
            }
        }
    }

    #[test]
    fn phases_without_an_option_are_left_out_and_noted() {
        let script = tempfile::NamedTempFile::new().unwrap();
        let source = "a.add_argument('--num_workers', type=int, default=2)\na.add_argument('--batch_size', default=24)\n\
                      a.add_argument('--epochs')\n";
        std::fs::write(script.path(), source).unwrap();
        let arguments = InitArgs {
            script: script.path().to_owned(),
            framework: Framework::Pytorch,
            name: Some("train".to_owned()),
            gpus: 4,
            batch: None,
            items: None,
            out: "-".into(),
        };
        let command = Command::of(&arguments, script.path());
        let text = manifest(&arguments, script.path(), &command);
        let job = pawl_manifest::parse(&text, "job.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let phases: Vec<&str> = job.spec.phases.iter().map(|phase| phase.name.as_str()).collect();
        assert_eq!(phases, ["loader-workers", "larger-batch"]);
        let settings = &job.spec.settings;
        assert_eq!((settings.batch_per_gpu, settings.loader_workers), (Some(24), Some(2)));
        assert_eq!(job.spec.analysis.quality_epochs, Some(1));
        assert!(text.contains("# - fsdp is left out: the script has no option --fsdp, --use-fsdp\n"), "{text}");
        assert!(text.contains("--seed, --random-seed, --manual-seed: the seeds have no effect\n"), "{text}");
        assert!(command.text().contains(&"--num_workers=$(settings.loaderWorkers)".to_owned()));

        // Accelerate reads precision, compilation and sharding from its variables.
        let arguments = InitArgs { framework: Framework::Accelerate, ..arguments };
        let command = Command::of(&arguments, script.path());
        assert_eq!(command.absent, [Phase::Attention, Phase::FusedOptimizer, Phase::GradientCheckpointing]);
    }

    #[test]
    fn a_script_that_ignores_its_arguments_is_noticed() {
        for (source, framework, expected) in [
            ("from transformers import HfArgumentParser\n", Framework::Hf, None),
            (
                "trainer = Trainer(model, TrainingArguments('out'))\ntrainer.train()\n",
                Framework::Hf,
                Some(NO_ARGUMENTS),
            ),
            ("LightningCLI(Model, Data)\n", Framework::Lightning, None),
            ("import argparse, lightning\n", Framework::Lightning, Some(NO_LIGHTNING_CLI)),
            ("import argparse, lightning\n", Framework::Pytorch, None),
        ] {
            assert_eq!(mismatch(source, framework, false), expected, "{source}");
        }
        // Such as constants that a configurator replaces.
        assert_eq!(mismatch("exec(open('configurator.py').read())", Framework::Pytorch, true), None);
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        assert_eq!((label("My Script_2"), label("__")), ("my-script-2".to_owned(), "training".to_owned()));
    }
}
