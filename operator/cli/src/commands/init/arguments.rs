//! The arguments that a launch passes to a script, and the options that scripts usually have for them.

/// A value that a launch passes to a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argument {
    /// What scripts call the option, the most specific first.
    pub names: &'static [&'static str],
    /// What is written when nothing is known of the script.
    pub usual: &'static str,
    /// The word of the command, with `{}` for the option.
    word: &'static str,
    /// The phase that would have no effect without it.
    pub phase: Option<&'static str>,
    /// What else follows when the script has no such option.
    pub without: Option<&'static str>,
}

impl Argument {
    const fn new(names: &'static [&'static str], word: &'static str) -> Self {
        Self { names, usual: names[0], word, phase: None, without: None }
    }

    const fn usually(self, usual: &'static str) -> Self {
        Self { usual, ..self }
    }

    const fn without(self, without: &'static str) -> Self {
        Self { without: Some(without), ..self }
    }

    const fn of(self, phase: &'static str) -> Self {
        Self { phase: Some(phase), ..self }
    }

    /// Its word for an option.
    pub fn word(&self, option: &str) -> String {
        self.word.replace("{}", option)
    }

    /// Whether it turns something on, instead of giving a value.
    pub fn is_switch(&self) -> bool {
        !self.word.contains("{}=")
    }
}

/// Items are counted by it: no script can be measured without.
pub const BATCH: Argument = Argument::new(
    &[
        "--batch-size-per-gpu",
        "--per-device-train-batch-size",
        "--micro-batch-size",
        "--train-batch-size",
        "--batch-size",
        "--batch",
        "--bs",
    ],
    "{}=$(settings.batchPerGpu)",
)
.usually("--batch-size")
.of("larger-batch");
pub const SEED: Argument =
    Argument::new(&["--seed", "--random-seed", "--manual-seed"], "{}=$(seed)").without("the seeds have no effect");
pub const RESUME: Argument = Argument::new(
    &["--resume", "--resume-from-checkpoint", "--resume-from", "--resume-path"],
    "$(checkpoint.latest:+{}=$(checkpoint.latest))",
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
    "{}=$(checkpoint.dir)",
)
.without("checkpoints are not where Pawl keeps them");
pub const STEPS: Argument = Argument::new(
    &["--steps", "--max-steps", "--num-steps", "--max-train-steps", "--iterations", "--max-iters", "--num-iterations"],
    "$(launch.steps:+{}=$(launch.steps))",
);
/// Launches that measure speed have no number of epochs, and are ended after their last step.
pub const EPOCHS: Argument = Argument::new(
    &["--epochs", "--num-epochs", "--max-epochs", "--num-train-epochs", "--niter"],
    "{}=$(launch.epochs:-100000)",
);
/// The evaluation that a quality launch is judged by is the one at its end.
pub const EVALUATION: Argument = Argument::new(
    &[
        "--eval-every",
        "--eval-interval",
        "--eval-steps",
        "--eval-freq",
        "--val-every",
        "--val-interval",
        "--validate-every",
    ],
    "$(launch.evalSteps:+{}=$(launch.evalSteps))",
);
pub const ACCUMULATION: Argument = Argument::new(
    &[
        "--accumulation",
        "--gradient-accumulation-steps",
        "--accumulation-steps",
        "--grad-accum-steps",
        "--grad-accum",
        "--accum-iter",
    ],
    "{}=$(settings.accumulationSteps)",
);
pub const WORKERS: Argument = Argument::new(
    &["--workers", "--num-workers", "--loader-workers", "--dataloader-num-workers"],
    "{}=$(settings.loaderWorkers)",
)
.of("loader-workers");
pub const BF16: Argument = Argument::new(&["--bf16", "--use-bf16"], "$(settings.precision=bf16:+{})").of("bf16");
pub const COMPILE: Argument =
    Argument::new(&["--compile", "--torch-compile", "--torchcompile", "--use-compile"], "$(settings.compile=Fuse:+{})")
        .of("compile");
pub const FUSED: Argument =
    Argument::new(&["--fused-optimizer", "--fused"], "$(settings.optimizerKernel=Fused:+{})").of("fused-optimizer");

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
    Argument::new(&["--fp16", "--amp", "--use-amp"], "$(settings.precision=fp16:+{})"),
    COMPILE,
    Argument::new(&["--attention", "--attn-implementation", "--attn"], "$(settings.attention=Flash:+{}=sdpa)")
        .of("attention"),
    FUSED,
    Argument::new(
        &["--gradient-checkpointing", "--grad-checkpointing", "--activation-checkpointing"],
        "$(settings.activationCheckpointing=Full:+{})",
    )
    .of("gradient-checkpointing"),
];

/// Accelerate shards by its environment.
pub const SHARDING: Argument = Argument::new(&["--fsdp", "--use-fsdp"], "$(settings.sharding=Full:+{})").of("fsdp");

/// Options that take the name of a precision, and what they call bfloat16.
pub const PRECISIONS: [&str; 4] = ["--mixed-precision", "--precision", "--amp-dtype", "--dtype"];
pub const BFLOAT16: [&str; 3] = ["bf16", "bfloat16", "bf16-mixed"];
