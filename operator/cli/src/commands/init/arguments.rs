//! The arguments that a launch passes to a script, and the options that scripts usually have for them.

use super::phases::{self, Phase};
use super::words::{Missing, Passed, Style, Value};
use std::borrow::Cow;

/// Names of an option in a note.
const NAMED: usize = 7;

/// A value that a launch passes to a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// What scripts call the option, the most specific first.
    pub names: &'static [&'static str],
    /// What is written when nothing is known of the script.
    pub usual: &'static str,
    /// The value.
    value: Value,
    /// What is passed without one.
    missing: Missing,
    /// The phase that would have no effect without it.
    pub phase: Option<Phase>,
    /// What else follows when the script has no such option.
    pub without: Option<&'static str>,
}

impl Argument {
    const fn new(names: &'static [&'static str], value: Value) -> Self {
        Self::unless(names, value, Missing::Never)
    }

    /// Of a value that some launches do not have.
    const fn unless(names: &'static [&'static str], value: Value, missing: Missing) -> Self {
        Self { names, usual: names[0], value, missing, phase: None, without: None }
    }

    /// Of an option that is given, or has a text, where a setting has a value.
    const fn chosen(
        names: &'static [&'static str],
        (setting, is): (&'static str, &'static str),
        text: Option<&'static str>,
    ) -> Self {
        let text = match text {
            Some(text) => Some(Cow::Borrowed(text)),
            None => None,
        };
        Self::new(names, Value::Chosen { setting, is, text })
    }

    const fn usually(mut self, usual: &'static str) -> Self {
        self.usual = usual;
        self
    }

    const fn without(mut self, without: &'static str) -> Self {
        self.without = Some(without);
        self
    }

    const fn of(mut self, phase: Phase) -> Self {
        self.phase = Some(phase);
        self
    }

    /// Its word for an option.
    pub fn word(&self, name: &str, style: Style) -> Passed {
        Passed { name: name.to_owned(), style, value: self.value.clone(), missing: self.missing.clone() }
    }

    /// Its word for an option that takes a text where it would be a switch.
    pub fn switched(&self, name: &str, style: Style, on: &str) -> Passed {
        let mut word = self.word(name, style);
        if let Value::Chosen { text, .. } = &mut word.value {
            *text = Some(on.to_owned().into());
        }
        word
    }

    /// Its usual names, for a note.
    pub fn named(&self) -> String {
        let names = self.names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        if self.names.len() > NAMED { format!("{names} or the like") } else { names }
    }

    /// Whether it turns something on, instead of giving a value.
    pub const fn is_switch(&self) -> bool {
        matches!(self.value, Value::Chosen { text: None, .. })
    }
}

/// Items are counted by it: no script can be measured without.
pub const BATCH: Argument = Argument::new(
    &[
        "--batch-size-per-gpu",
        "--per-device-train-batch-size",
        "--per-gpu-train-batch-size",
        "--per-device-batch-size",
        "--per-gpu-batch-size",
        "--device-batch-size",
        "--local-batch-size",
        "--micro-batch-size",
        "--micro-bsz",
        "--mbs",
        "--train-batch-size",
        "--training-batch-size",
        "--batch-size-training",
        "--batch-size-train",
        "--train-batch",
        "--train-bs",
        "--batch-size",
        "--batchsize",
        "--batch",
        "--bsz",
        "--bs",
        "--max-sentences",
    ],
    Value::Number("batchPerGpu"),
)
.usually("--batch-size")
.of(Phase::LargerBatch);
pub const SEED: Argument =
    Argument::new(&["--seed", "--random-seed", "--manual-seed"], Value::Seed).without("the seeds have no effect");
pub const RESUME: Argument = Argument::unless(
    &["--resume", "--resume-from-checkpoint", "--resume-from", "--resume-path"],
    Value::Latest,
    Missing::Omitted,
)
.without("a training that is interrupted begins anew");
const CHECKPOINTS: Argument = Argument::new(
    &[
        "--checkpoints",
        "--checkpoint-dir",
        "--checkpoint-path",
        "--ckpt-dir",
        "--save-dir",
        "--output-dir",
        "--out-dir",
        "--out",
        "--output",
    ],
    Value::Checkpoints,
)
.without("checkpoints are not where Pawl keeps them");
pub const STEPS: Argument = Argument::unless(
    &["--steps", "--max-steps", "--num-steps", "--max-train-steps", "--iterations", "--max-iters", "--num-iterations"],
    Value::Steps,
    Missing::Omitted,
);
/// Launches that measure speed have no number of epochs, and are ended after their last step.
pub const EPOCHS: Argument = Argument::unless(
    &["--epochs", "--num-epochs", "--max-epochs", "--num-train-epochs", "--niter"],
    Value::Epochs,
    Missing::Text(Cow::Borrowed("100000")),
);
/// The evaluation that a quality launch is judged by is the one at its end.
pub const EVALUATION: Argument = Argument::unless(
    &[
        "--eval-every",
        "--eval-interval",
        "--eval-steps",
        "--eval-freq",
        "--val-every",
        "--val-interval",
        "--validate-every",
    ],
    Value::Evaluation,
    Missing::Omitted,
);
/// Micro-batches of a step.
pub const ACCUMULATION: Argument = Argument::new(
    &[
        "--accumulation",
        "--gradient-accumulation-steps",
        "--gradient-accumulation",
        "--gradient-accumulation-iters",
        "--gradient-accumulate-steps",
        "--gradient-accumulate-every",
        "--gradient-accum-steps",
        "--gradient-accum",
        "--grad-accumulation-steps",
        "--grad-accumulation",
        "--grad-accumulate-every",
        "--grad-accum-steps",
        "--grad-accum-iters",
        "--grad-accum-every",
        "--grad-accum",
        "--grad-acc-steps",
        "--grad-acc",
        "--accumulation-steps",
        "--accumulate-grad-batches",
        "--accumulate-steps",
        "--accumulate",
        "--accum-steps",
        "--accum-iter",
        "--accum-freq",
        "--accum-grad",
        "--accum-count",
        "--accum",
    ],
    Value::Number(phases::ACCUMULATION),
);
pub const WORKERS: Argument = Argument::new(
    &[
        "--workers",
        "--num-workers",
        "--loader-workers",
        "--dataloader-num-workers",
        "--num-dataloader-workers",
        "--num-workers-dataloader",
        "--dataloader-workers",
        "--num-loader-workers",
        "--max-data-loader-n-workers",
        "--data-workers",
        "--num-data-workers",
        "--n-workers",
        "--nworkers",
    ],
    Value::Number("loaderWorkers"),
)
.of(Phase::LoaderWorkers);
pub const BF16: Argument = Argument::chosen(
    &["--bf16", "--use-bf16", "--enable-bf16", "--amp-bf16", "--bfloat16", "--use-bfloat16"],
    ("precision", "bf16"),
    None,
)
.of(Phase::Bf16);
pub const COMPILE: Argument = Argument::chosen(
    &[
        "--compile",
        "--torch-compile",
        "--torchcompile",
        "--use-compile",
        "--use-torch-compile",
        "--enable-compile",
        "--do-compile",
        "--compile-model",
        "--model-compile",
    ],
    ("compile", "Fuse"),
    None,
)
.of(Phase::Compile);
pub const FUSED: Argument =
    Argument::chosen(&["--fused-optimizer", "--fused"], ("optimizerKernel", "Fused"), None).of(Phase::FusedOptimizer);

/// The arguments of scripts with their own training loop, plain or with Accelerate.
pub const ARGUMENTS: [Argument; 14] = [
    SEED,
    CHECKPOINTS,
    RESUME,
    STEPS,
    EPOCHS,
    BATCH,
    ACCUMULATION,
    WORKERS,
    BF16,
    Argument::chosen(
        &["--fp16", "--amp", "--use-amp", "--enable-amp", "--use-fp16", "--use-mixed-precision"],
        ("precision", "fp16"),
        None,
    ),
    COMPILE,
    Argument::chosen(&["--attention", "--attn-implementation", "--attn"], ("attention", "Flash"), Some("sdpa"))
        .of(Phase::Attention),
    FUSED,
    Argument::chosen(
        &["--gradient-checkpointing", "--grad-checkpointing", "--activation-checkpointing"],
        ("activationCheckpointing", "Full"),
        None,
    )
    .of(Phase::GradientCheckpointing),
];

/// Accelerate shards by its environment.
pub const SHARDING: Argument = Argument::chosen(&["--fsdp", "--use-fsdp"], ("sharding", "Full"), None).of(Phase::Fsdp);

/// Options that take the name of a precision.
pub const PRECISIONS: [&str; 7] = [
    "--mixed-precision",
    "--precision",
    "--amp-dtype",
    "--autocast-dtype",
    "--compute-dtype",
    "--train-dtype",
    "--dtype",
];

/// What an option with this name and default may call bfloat16, the most likely first.
pub fn bfloat16(name: &str, default: &str) -> [&'static str; 3] {
    match () {
        () if name.ends_with("dtype") || default.starts_with("float") => ["bfloat16", "bf16", "bf16-mixed"],
        () if default.starts_with("32") || default.ends_with("-true") => ["bf16-mixed", "bf16", "bfloat16"],
        () => ["bf16", "bfloat16", "bf16-mixed"],
    }
}
