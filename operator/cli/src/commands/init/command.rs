//! The command that starts a script.

use super::arguments::{
    ACCUMULATION, ARGUMENTS, Argument, BATCH, BF16, BFLOAT16, EPOCHS, PRECISIONS, SHARDING, STEPS, WORKERS,
};
use super::options::Options;
use crate::args::{Framework, InitArgs};
use std::path::Path;

/// Workers of the data loader in the phase `loader-workers`.
const MORE_WORKERS: u32 = 4;

/// The command that starts a script, and what is known of the script.
#[derive(Debug)]
pub struct Command {
    /// The program, up to the script.
    pub start: Vec<String>,
    /// The arguments of the script.
    pub words: Vec<String>,
    /// The batch size of the baseline.
    pub batch: u32,
    /// Other settings of the baseline: the script's own defaults.
    pub settings: Vec<(&'static str, u32)>,
    /// Whether the script has an option for epochs, and none for steps.
    pub by_epochs: bool,
    /// Phases that would have no effect.
    pub absent: Vec<&'static str>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Command {
    /// The command of a script, whose options are read.
    pub fn of(arguments: &InitArgs, script: &Path) -> Self {
        // The options of the other frameworks are those of their classes.
        let options = if has_own_options(arguments.framework) { Options::of(script) } else { Options::default() };
        Self::with(arguments, script, &options)
    }

    /// The command of a script with these options.
    pub fn with(arguments: &InitArgs, script: &Path, options: &Options) -> Self {
        let mut command = Self {
            start: start(arguments, script),
            words: Vec::new(),
            batch: arguments.batch.or_else(|| options.number(&BATCH)).unwrap_or(8),
            settings: Vec::new(),
            by_epochs: false,
            absent: Vec::new(),
            notes: Vec::new(),
        };
        command.words.extend(flags(arguments.framework).iter().map(|&flag| flag.to_owned()));
        if has_own_options(arguments.framework) {
            let sharding = (arguments.framework == Framework::Pytorch && arguments.gpus > 1).then_some(SHARDING);
            for argument in ARGUMENTS.into_iter().chain(sharding) {
                command.pass(&argument, options, arguments.framework);
            }
            command.keep_defaults(options);
            command.length(options, arguments.items);
        }
        command
    }

    /// Passes a value to the script, or notes what follows when it has no option for it.
    fn pass(&mut self, argument: &Argument, options: &Options, framework: Framework) {
        let precision = || options.choice(&PRECISIONS, &BFLOAT16).map(|option| BF16.word(&option));
        if let Some(word) = options.word(argument).or_else(|| precision().filter(|_| *argument == BF16)) {
            self.words.push(word);
            return;
        }
        let absent = format!("the script has no option {}", argument.names.join(", "));
        if *argument == BATCH && !options.exact {
            self.words.push(argument.word(argument.usual));
            self.notes.push(format!("{absent}: add one: items are counted by the batch size"));
        } else if let Some(phase) = argument.phase.filter(|phase| !by_environment(framework, phase)) {
            self.leave_out(phase, &absent);
        } else if let Some(without) = argument.without {
            self.notes.push(format!("{absent}: {without}"));
        }
    }

    fn leave_out(&mut self, phase: &'static str, why: &str) {
        self.absent.push(phase);
        self.notes.push(format!("{phase} is left out: {why}"));
    }

    /// The baseline is the script as it is: a placeholder of a setting that the manifest does not name would say 0 or 1.
    fn keep_defaults(&mut self, options: &Options) {
        if let Some(workers) = options.number(&WORKERS) {
            self.settings.push(("loaderWorkers", workers));
            if workers >= MORE_WORKERS {
                self.leave_out("loader-workers", &format!("the script has {workers} by default"));
            }
        }
        if let Some(steps) = options.number(&ACCUMULATION).filter(|&steps| steps > 1) {
            self.settings.push(("accumulationSteps", steps));
        }
    }

    /// Sets whether launches have a number of steps, of epochs, or neither.
    fn length(&mut self, options: &Options, items: Option<u64>) {
        match (options.word(&STEPS), options.word(&EPOCHS)) {
            (None, Some(_)) => {
                self.by_epochs = true;
                if items.is_some() {
                    self.notes.push(
                        "the script has an option for epochs, not for steps: set train.epochs instead of train.items"
                            .to_owned(),
                    );
                }
            }
            (None, None) => {
                let names = [STEPS.names, EPOCHS.names].concat().join(", ");
                self.notes.push(format!(
                    "the script has no option {names}: launches that judge quality, and the training, have its own length"
                ));
            }
            (Some(_), _) => {}
        }
    }
}

/// Whether scripts of the framework declare the options that a launch passes one by one.
pub const fn has_own_options(framework: Framework) -> bool {
    matches!(framework, Framework::Accelerate | Framework::Pytorch)
}

/// The program, before the arguments of the script.
fn start(arguments: &InitArgs, script: &Path) -> Vec<String> {
    let script = script.to_string_lossy().replace("$(", "$$(");
    let one_rank = arguments.gpus <= 1 && matches!(arguments.framework, Framework::Hf | Framework::Accelerate);
    // With these, the libraries would treat a single process as distributed.
    let plain = ["env", "-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE"];
    plain.into_iter().filter(|_| one_rank).chain(["python3", &script]).map(str::to_owned).collect()
}

/// Whether the variables of the framework have the effect of a phase.
fn by_environment(framework: Framework, phase: &str) -> bool {
    framework == Framework::Accelerate && ["bf16", "compile", "fsdp"].contains(&phase)
}

/// The arguments that a framework parses itself. A precision that no argument expresses is an error of the phase.
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
