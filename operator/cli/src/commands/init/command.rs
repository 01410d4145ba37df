//! The command that starts a script.

use super::arguments::{
    ACCUMULATION, ARGUMENTS, Argument, BATCH, BF16, EPOCHS, PRECISIONS, SHARDING, STEPS, WORKERS, bfloat16,
};
use super::is_by_variable;
use super::options::Options;
use super::phases::{self, MORE_WORKERS, Phase};
use super::words::{Missing, Passed, Style, Value, Word, literal};
use crate::args::{Framework, InitArgs};
use std::path::Path;

/// The command that starts a script, and what is known of the script.
#[derive(Debug)]
pub struct Command {
    /// The program, up to the script.
    start: Vec<String>,
    /// What is passed to the script.
    pub words: Vec<Word>,
    /// The batch size of the baseline.
    pub batch: u32,
    /// Other settings of the baseline: the script's own defaults.
    pub settings: Vec<(&'static str, u32)>,
    /// Whether the script has an option for epochs, and none for steps.
    pub by_epochs: bool,
    /// Whether the script declares options.
    pub has_options: bool,
    /// Phases that would have no effect.
    pub absent: Vec<Phase>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Command {
    /// The command of a script, whose options are read.
    pub fn of(arguments: &InitArgs, script: &Path) -> Self {
        let read = Options::of(script);
        // Those of Hugging Face's classes are known.
        let known = Options::default();
        let options = if arguments.framework == Framework::Hf { &known } else { &read };
        let mut command = Self::with(arguments, script, options);
        command.has_options = !read.is_empty();
        let required = read.required(&[]).into_iter();
        command.notes.extend(required.map(|name| format!("the script requires {name}: add it to the command")));
        command
    }

    /// The command of a script with these options.
    pub fn with(arguments: &InitArgs, script: &Path, options: &Options) -> Self {
        let mut command = Self {
            start: start(arguments, script),
            words: Vec::new(),
            batch: arguments.batch.or_else(|| options.number(&BATCH)).unwrap_or(8),
            settings: Vec::new(),
            by_epochs: false,
            has_options: !options.is_empty(),
            absent: Vec::new(),
            notes: Vec::new(),
        };
        // Where its classes were read, what they do not have is left out.
        let exists = |word: &Word| {
            let name = word.passed().map(|passed| passed.name.as_str()).filter(|name| is_of_class(name));
            !options.is_read || name.is_none_or(|name| options.has(name))
        };
        command.words.extend(flags(arguments.framework).into_iter().filter(exists));
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
        let precision = || options.choice(&BF16, &PRECISIONS, bfloat16).filter(|_| *argument == BF16);
        if let Some(word) = options.word(argument).or_else(precision) {
            self.words.push(Word::Passed(word));
            return;
        }
        let absent = format!("the script has no option {}", argument.named());
        if *argument == BATCH && !options.exact {
            self.words.push(Word::Passed(argument.word(argument.usual, Style::Option)));
            self.notes.push(format!("{absent}: add one: items are counted by the batch size"));
        } else if let Some(phase) = argument.phase.filter(|phase| !is_by_variable(framework, *phase)) {
            self.leave_out(phase, &absent);
        } else if let Some(without) = argument.without {
            self.notes.push(format!("{absent}: {without}"));
        }
    }

    fn leave_out(&mut self, phase: Phase, why: &str) {
        self.absent.push(phase);
        self.notes.push(format!("{} is left out: {why}", phase.name()));
    }

    /// The baseline is the script as it is: a placeholder of a setting that the manifest does not name would say 0 or
    /// 1.
    fn keep_defaults(&mut self, options: &Options) {
        if let Some(workers) = options.number(&WORKERS) {
            self.settings.push((Phase::LoaderWorkers.setting(), workers));
            if workers >= MORE_WORKERS {
                self.leave_out(Phase::LoaderWorkers, &format!("the script has {workers} by default"));
            }
        }
        if let Some(steps) = options.number(&ACCUMULATION).filter(|&steps| steps > 1) {
            self.settings.push((phases::ACCUMULATION, steps));
        }
    }

    /// Micro-batches of a step, in the baseline.
    pub fn accumulation(&self) -> u32 {
        let mut settings = self.settings.iter();
        settings.find(|(name, _)| *name == phases::ACCUMULATION).map_or(1, |(_, steps)| *steps)
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
    let one_rank = arguments.gpus <= 1 && matches!(arguments.framework, Framework::Hf | Framework::Accelerate);
    // With these, the libraries would treat a single process as distributed.
    let plain = ["env", "-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE"];
    let program = ["python3".to_owned(), literal(&script.to_string_lossy())];
    plain.into_iter().filter(|_| one_rank).map(str::to_owned).chain(program).collect()
}

impl Command {
    /// All words of the command, with placeholders: variables come before the program.
    pub fn text(&self) -> Vec<String> {
        let is_variable = |word: &&Word| word.passed().is_some_and(|passed| passed.style == Style::Variable);
        let (variables, arguments): (Vec<&Word>, Vec<&Word>) = self.words.iter().partition(is_variable);
        let (environment, program) = self.start.split_at(self.start.len() - 2);
        let is_new = environment.is_empty() && !variables.is_empty();
        let environment = is_new.then(|| "env".to_owned()).into_iter().chain(environment.iter().cloned());
        let texts = |words: Vec<&Word>| words.into_iter().map(Word::text).collect::<Vec<_>>();
        environment.chain(texts(variables)).chain(program.iter().cloned()).chain(texts(arguments)).collect()
    }
}

/// Whether an argument of LightningCLI is that of a class, not of the library.
fn is_of_class(name: &str) -> bool {
    ["--model.", "--data.", "--optimizer."].iter().any(|start| name.starts_with(start))
}

/// The arguments that a framework parses itself. A precision that no argument expresses is an error of the phase.
fn flags(framework: Framework) -> Vec<Word> {
    let word = |name: &str, value, missing| {
        Word::Passed(Passed { name: name.to_owned(), style: Style::Option, value, missing })
    };
    let plain = |name: &str, value| word(name, value, Missing::Never);
    let number = |name: &str, setting| plain(name, Value::Number(setting));
    let latest = |name: &str| word(name, Value::Latest, Missing::Omitted);
    let or = |name: &str, value, otherwise: &'static str| word(name, value, Missing::Text(otherwise.into()));
    let chosen = |name: &str, setting, is, text: &'static str| {
        plain(name, Value::Chosen { setting, is, text: (!text.is_empty()).then(|| text.into()) })
    };
    match framework {
        Framework::Hf => vec![
            plain("--output_dir", Value::Checkpoints),
            latest("--resume_from_checkpoint"),
            plain("--seed", Value::Seed),
            or("--max_steps", Value::Steps, "-1"),
            or("--num_train_epochs", Value::Epochs, "1"),
            number("--per_device_train_batch_size", "batchPerGpu"),
            number("--gradient_accumulation_steps", phases::ACCUMULATION),
            number("--dataloader_num_workers", "loaderWorkers"),
            chosen("--bf16", "precision", "bf16", "True"),
            chosen("--fp16", "precision", "fp16", "True"),
            chosen("--tf32", "precision", "tf32", "True"),
            chosen("--torch_compile", "compile", "Fuse", "True"),
            chosen("--optim", "optimizerKernel", "Fused", "adamw_torch_fused"),
            chosen("--gradient_checkpointing", "activationCheckpointing", "Full", "True"),
            chosen("--fsdp", "sharding", "Full", "full_shard"),
            // An argument of the script for its model.
            chosen("--attn_implementation", "attention", "Flash", "sdpa"),
            Word::Fixed("--logging_steps=10".to_owned()),
            Word::Fixed("--logging_nan_inf_filter=False".to_owned()),
            Word::OfKind("Quality", "--do_eval".to_owned()),
            Word::OfKind("Train", "--do_eval".to_owned()),
        ],
        Framework::Lightning => vec![
            Word::Fixed("fit".to_owned()),
            plain("--seed_everything", Value::Seed),
            plain("--trainer.default_root_dir", Value::Checkpoints),
            latest("--ckpt_path"),
            or("--trainer.max_steps", Value::Steps, "-1"),
            or("--trainer.max_epochs", Value::Epochs, "-1"),
            number("--trainer.accumulate_grad_batches", phases::ACCUMULATION),
            chosen("--trainer.precision", "precision", "bf16", "bf16-mixed"),
            chosen("--trainer.precision", "precision", "fp16", "16-mixed"),
            number("--data.batch_size", "batchPerGpu"),
            number("--data.num_workers", "loaderWorkers"),
            chosen("--model.compile", "compile", "Fuse", "true"),
            chosen("--model.attention", "attention", "Flash", "sdpa"),
            chosen("--optimizer.fused", "optimizerKernel", "Fused", "true"),
            chosen("--model.gradient_checkpointing", "activationCheckpointing", "Full", "true"),
            chosen("--trainer.strategy", "sharding", "Full", "fsdp"),
        ],
        // Those of `ARGUMENTS`.
        Framework::Accelerate | Framework::Pytorch => Vec::new(),
    }
}
