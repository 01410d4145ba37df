//! `pawl init`.

mod options;

use super::print;
use crate::args::{Framework, InitArgs};
use crate::exit;
use options::{ARGUMENTS, Argument, BATCH, Options, SHARDING};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
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
    let source = String::from_utf8_lossy(&source);
    let command = Command::of(arguments, &script, &source);
    let text = manifest(arguments, &script, &command);
    if arguments.out == Path::new("-") {
        return print(&text);
    }
    let out = arguments.out.display();
    match File::create_new(&arguments.out).and_then(|mut file| file.write_all(text.as_bytes())) {
        Ok(()) => {
            let mut next =
                format!("{out}: adapt the arguments to those of the script, then: pawl run --dry-run {out}\n");
            if !parses_arguments(&source) {
                next.push_str(NO_ARGUMENTS);
            }
            if command.needs_batch {
                let names = BATCH.names.join(", ");
                let _ = writeln!(
                    next,
                    "warning: the script has no option for its batch size ({names}): give it one, by which items are counted"
                );
            }
            for argument in &command.absent {
                let _ = writeln!(next, "note: {}", left_out(argument));
            }
            print(&next)
        }
        Err(error) => exit::with_error(exit::INPUT, &format!("{out}: {error}: choose another file with --out")),
    }
}

/// What scripts that parse their command line contain.
const PARSERS: [&str; 10] =
    ["argparse", "ArgumentParser", "sys.argv", "LightningCLI", "click", "fire", "hydra", "typer", "tyro", "absl"];
const NO_ARGUMENTS: &str = "warning: the script seems to parse no arguments, so that no phase would have an effect: parse those of \
    the manifest, or let the script read its settings with the Python package pawl-launch\n";

/// Whether the script seems to parse its command line.
fn parses_arguments(source: &str) -> bool {
    PARSERS.iter().any(|parser| source.contains(parser))
}

fn manifest(arguments: &InitArgs, script: &Path, command: &Command) -> String {
    let stem = script.file_stem().unwrap_or_default().to_string_lossy();
    let name = arguments.name.clone().unwrap_or_else(|| label(&stem));
    let words = command.words.iter().map(|word| format!("      - {}\n", quoted(word))).collect::<String>();
    let InitArgs { framework, gpus, .. } = arguments;
    let mut text = format!(
        "# Written by pawl init. Adapt the arguments to those of the script; `pawl run --dry-run` prints the command of each launch.
apiVersion: pawl.dev/v1alpha1
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
    text.push_str(environment(*framework));
    text.push_str(&ladder(*gpus, command));
    text.push_str(
        "  # With source: Kubeflow, the window has to take more than 15 seconds: updates come every 5.
  analysis: {warmupSteps: 20, windowSteps: 100, qualityItems: 20000}
  # Largest increase of the validation loss.
  gates: {validationLossDelta: \"0.02\"}
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
    let mut text = format!(
        "  # The baseline: the script as it is now.
  settings: {{batchPerGpu: {batch}}}
  seeds: [42, 43, 44]
  # Each phase is measured against the settings accepted so far, and kept only if it is faster and as good.
  phases:
"
    );
    let larger = format!(
        "    - name: larger-batch
      numerics: Changed
      settings: {{batchPerGpu: {}}}
      fallbacks:
        - {{when: [OutOfMemory], settings: {{batchPerGpu: {}}}}}
",
        batch * 2,
        batch + batch.div_ceil(2),
    );
    for (phase, lines) in PHASES {
        let absent = command.absent.iter().find(|argument| argument.phase == Some(phase));
        match absent {
            Some(argument) => drop(writeln!(text, "    # {}", left_out(argument))),
            None if phase == "larger-batch" => text.push_str(&larger),
            None if phase == "fsdp" && gpus <= 1 => {}
            None => text.push_str(lines),
        }
    }
    text
}

/// The phases in their order, each as lines of the manifest; `larger-batch` depends on the batch.
const PHASES: [(&str, &str); 8] = [
    ("loader-workers", "    - {name: loader-workers, settings: {loaderWorkers: 4}}\n"),
    ("fused-optimizer", "    - {name: fused-optimizer, settings: {optimizerKernel: Fused}}\n"),
    ("attention", "    - {name: attention, settings: {attention: Flash}}\n"),
    (
        "bf16",
        "    # Changed numerics: judged by the validation loss too.
    - {name: bf16, numerics: Changed, settings: {precision: bf16}}
",
    ),
    ("compile", "    - {name: compile, settings: {compile: Fuse}}\n"),
    ("larger-batch", ""),
    (
        "gradient-checkpointing",
        "    # Costs speed, saves memory: worth it only with a batch that needs the memory, in the same phase.
    - {name: gradient-checkpointing, settings: {activationCheckpointing: Full}}
",
    ),
    (
        "fsdp",
        "    # FSDP instead of data parallelism (DDP): saves memory, costs communication.
    - {name: fsdp, settings: {sharding: Full}}
",
    ),
];

/// What is said of a phase that is left out.
fn left_out(argument: &Argument) -> String {
    let phase = argument.phase.unwrap_or_default();
    format!("{phase} is left out: the script has no option {}", argument.names.join(", "))
}

/// The command that starts a script, and what is known of the script.
struct Command {
    /// The program and its arguments.
    words: Vec<String>,
    /// The batch size of the baseline.
    batch: u32,
    /// Whether the script has no option for it.
    needs_batch: bool,
    /// What else the script has no option for: the phases of these would have no effect.
    absent: Vec<Argument>,
}

impl Command {
    fn of(arguments: &InitArgs, script: &Path, source: &str) -> Self {
        let script = script.to_string_lossy().replace("$(", "$$(");
        let one_rank = arguments.gpus <= 1 && matches!(arguments.framework, Framework::Hf | Framework::Accelerate);
        // With these, the libraries would treat a single process as distributed.
        let plain = ["env", "-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE"];
        let start = plain.into_iter().filter(|_| one_rank).chain(["python3", &script]);
        let mut words: Vec<String> = start.map(str::to_owned).collect();
        // The options of the other frameworks are declared by their classes.
        let plain = matches!(arguments.framework, Framework::Accelerate | Framework::Pytorch);
        let options = Options::of(if plain { source } else { "" });
        let (mut absent, mut needs_batch) = (Vec::new(), false);
        words.extend(flags(arguments.framework).iter().map(|&flag| flag.to_owned()));
        let sharding = (arguments.framework == Framework::Pytorch && arguments.gpus > 1).then_some(SHARDING);
        for argument in ARGUMENTS.into_iter().filter(|_| plain).chain(sharding) {
            match options.word(&argument) {
                Some(word) => words.push(word),
                None if argument.names == BATCH.names => {
                    needs_batch = true;
                    words.extend(Options::of("").word(&argument));
                }
                None if argument.phase.is_some_and(|phase| !by_environment(arguments.framework, phase)) => {
                    absent.push(argument);
                }
                None => {}
            }
        }
        Self { words, batch: arguments.batch.or_else(|| options.batch()).unwrap_or(8), needs_batch, absent }
    }
}

/// Whether the variables of the framework have the effect of a phase.
fn by_environment(framework: Framework, phase: &str) -> bool {
    framework == Framework::Accelerate && ["bf16", "compile", "fsdp"].contains(&phase)
}

/// The arguments of a script by its framework. A precision that no argument expresses is an error of the phase.
const fn flags(framework: Framework) -> &'static [&'static str] {
    match framework {
        Framework::Hf => &[
            "--output_dir=$(checkpoint.dir)",
            "$(checkpoint.latest:+--resume_from_checkpoint=$(checkpoint.latest))",
            "--seed=$(seed)",
            "--max_steps=$(launch.steps:--1)",
            "--num_train_epochs=$(launch.epochs:-1)",
            "--per_device_train_batch_size=$(settings.batchPerGpu)",
            "--gradient_accumulation_steps=$(settings.accumulationSteps)",
            "--dataloader_num_workers=$(settings.loaderWorkers)",
            "$(settings.precision=bf16:+--bf16=True)",
            "$(settings.precision=fp16:+--fp16=True)",
            "$(settings.precision=tf32:+--tf32=True)",
            "$(settings.compile=Fuse:+--torch_compile=True)",
            "$(settings.optimizerKernel=Fused:+--optim=adamw_torch_fused)",
            "$(settings.activationCheckpointing=Full:+--gradient_checkpointing=True)",
            "$(settings.sharding=Full:+--fsdp=full_shard)",
            // An argument of the script for its model.
            "$(settings.attention=Flash:+--attn_implementation=sdpa)",
            "--logging_steps=10",
            "--logging_nan_inf_filter=False",
            "$(launch.kind=Quality:+--do_eval)",
            "$(launch.kind=Train:+--do_eval)",
        ],
        Framework::Lightning => &[
            "fit",
            "--seed_everything=$(seed)",
            "--trainer.default_root_dir=$(checkpoint.dir)",
            "$(checkpoint.latest:+--ckpt_path=$(checkpoint.latest))",
            "--trainer.max_steps=$(launch.steps:--1)",
            "--trainer.max_epochs=$(launch.epochs:--1)",
            "--trainer.accumulate_grad_batches=$(settings.accumulationSteps)",
            "$(settings.precision=bf16:+--trainer.precision=bf16-mixed)",
            "$(settings.precision=fp16:+--trainer.precision=16-mixed)",
            "--data.batch_size=$(settings.batchPerGpu)",
            "--data.num_workers=$(settings.loaderWorkers)",
            "$(settings.compile=Fuse:+--model.compile=true)",
            "$(settings.attention=Flash:+--model.attention=sdpa)",
            "$(settings.optimizerKernel=Fused:+--optimizer.fused=true)",
            "$(settings.activationCheckpointing=Full:+--model.gradient_checkpointing=true)",
            "$(settings.sharding=Full:+--trainer.strategy=fsdp)",
        ],
        // Those of `ARGUMENTS`.
        Framework::Accelerate | Framework::Pytorch => &[],
    }
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

/// Variables of the framework.
const fn environment(framework: Framework) -> &'static str {
    match framework {
        Framework::Accelerate => {
            "    podTemplate:
      env:
        - {name: ACCELERATE_MIXED_PRECISION, value: '$(settings.precision=bf16:+bf16)$(settings.precision=fp16:+fp16)$(settings.precision=fp32:+no)'}
        - {name: ACCELERATE_GRADIENT_ACCUMULATION_STEPS, value: '$(settings.accumulationSteps)'}
        - {name: ACCELERATE_DYNAMO_BACKEND, value: '$(settings.compile=Fuse:+inductor)$(settings.compile=None:+no)'}
        # The agent adds FSDP_VERSION=2 and the like.
        - {name: ACCELERATE_USE_FSDP, value: '$(settings.sharding=Full:+true)$(settings.sharding=None:+false)'}
"
        }
        Framework::Hf | Framework::Lightning | Framework::Pytorch => "",
    }
}

/// A name of Kubernetes made of `text`.
fn label(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(plain).take(40).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "training".to_owned() } else { name.to_owned() }
}

/// A scalar of YAML.
fn quoted(word: &str) -> String {
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
                let text = manifest(&arguments, path, &Command::of(&arguments, path, ""));
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
    fn phases_that_the_script_has_no_option_for_are_left_out() {
        let arguments = InitArgs {
            script: "train.py".into(),
            framework: Framework::Pytorch,
            name: None,
            gpus: 4,
            batch: None,
            items: None,
            out: "-".into(),
        };
        let source = "a.add_argument('--num_workers', type=int)\na.add_argument('--batch_size', default=24)\n";
        let command = Command::of(&arguments, Path::new("/train.py"), source);
        let text = manifest(&arguments, Path::new("/train.py"), &command);
        let job = pawl_manifest::parse(&text, "job.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let phases: Vec<&str> = job.spec.phases.iter().map(|phase| phase.name.as_str()).collect();
        assert_eq!(phases, ["loader-workers", "larger-batch"]);
        assert_eq!(job.spec.settings.batch_per_gpu, Some(24));
        assert!(text.contains("# fsdp is left out: the script has no option --fsdp, --use-fsdp\n"), "{text}");
        assert!(!command.needs_batch && command.words.contains(&"--num_workers=$(settings.loaderWorkers)".to_owned()));

        // Accelerate reads precision, compilation and sharding from its variables.
        let arguments = InitArgs { framework: Framework::Accelerate, ..arguments };
        let command = Command::of(&arguments, Path::new("/train.py"), "a.add_argument('--workers')");
        let phases: Vec<_> = command.absent.iter().filter_map(|argument| argument.phase).collect();
        assert_eq!(phases, ["attention", "fused-optimizer", "gradient-checkpointing"]);
        assert!(command.needs_batch);
    }

    #[test]
    fn a_script_that_ignores_its_arguments_is_noticed() {
        assert!(parses_arguments("from transformers import HfArgumentParser\n"));
        assert!(!parses_arguments("trainer = Trainer(model, TrainingArguments('out'))\ntrainer.train()\n"));
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        assert_eq!((label("My Script_2"), label("__")), ("my-script-2".to_owned(), "training".to_owned()));
    }
}
