//! The options of a script's command line, as far as its source tells.

use regex::Regex;
use std::sync::LazyLock;

/// A call that declares an option: `add_argument(...)` of argparse, `option(...)` of click, `Option(...)` of typer.
static CALL: LazyLock<Regex> = LazyLock::new(|| regex(r"\b(?:add_argument|[oO]ption)\(((?:[^()]|\([^()]*\))*)\)"));
/// The names in such a call; those of typer may be followed by that of the opposite: `--compile/--no-compile`.
static NAME: LazyLock<Regex> = LazyLock::new(|| regex(r#"["'](--[A-Za-z][A-Za-z0-9_-]*)(?:/[^"']*)?["']"#));
/// Its default, where it is a number: `default=8`; typer's is the first argument.
static DEFAULT: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:\bdefault\s*=\s*|^\s*)(\d+)\s*(?:,|$)"));
/// What makes it an option without a value.
static SWITCH: LazyLock<Regex> = LazyLock::new(|| {
    regex(r#"store_true|BooleanOptionalAction|\bis_flag\s*=\s*True|["']--[\w-]+/--|^\s*(?:True|False)\s*,"#)
});

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

/// An option of a command line.
struct Declared {
    names: Vec<String>,
    switch: bool,
    default: Option<u32>,
}

/// The options that a script in Python declares one by one. Empty when it declares them otherwise, such as by the fields of a class.
pub struct Options(Vec<Declared>);

impl Options {
    /// The options in a source text.
    pub fn of(source: &str) -> Self {
        let code: Vec<&str> = source.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        let code = code.join("\n");
        let declared = CALL.captures_iter(&code).map(|call| {
            let inside = &call[1];
            Declared {
                names: NAME.captures_iter(inside).map(|name| name[1].to_owned()).collect(),
                switch: SWITCH.is_match(inside),
                default: DEFAULT.captures(inside).and_then(|default| default[1].parse().ok()),
            }
        });
        Self(declared.filter(|option| !option.names.is_empty()).collect())
    }

    /// Whether nothing is known of the script's options.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first of these options that the script has, in its own spelling: `--batch_size` for `--batch-size`.
    fn find(&self, names: &[&str]) -> Option<(&str, &Declared)> {
        names.iter().find_map(|wanted| {
            self.0.iter().find_map(|option| {
                let name = option.names.iter().find(|name| name.replace('_', "-") == *wanted)?;
                Some((name.as_str(), option))
            })
        })
    }

    /// The batch size that the script has now.
    pub fn batch(&self) -> Option<u32> {
        self.find(BATCH.names)?.1.default.filter(|items| (1..=262_144).contains(items))
    }

    /// The word of a command that passes a value to the script; `None` when the script has no such option.
    pub fn word(&self, argument: &Argument) -> Option<String> {
        if self.is_empty() {
            return Some(argument.word.replace("{}", argument.names[0]));
        }
        let (name, option) = self.find(argument.names)?;
        // A switch that takes a value, such as `type=bool`.
        let on = if option.switch || argument.word.contains("{}=") { "" } else { "=True" };
        Some(argument.word.replace("{}", &format!("{name}{on}")))
    }
}

/// A value that a launch passes to a script.
pub struct Argument {
    /// What scripts call the option; the first is written when nothing is known of the script.
    pub names: &'static [&'static str],
    /// The word of the command, with `{}` for the option.
    word: &'static str,
    /// The phase that would have no effect without it.
    pub phase: Option<&'static str>,
}

const fn argument(names: &'static [&'static str], word: &'static str) -> Argument {
    Argument { names, word, phase: None }
}

const fn of_phase(phase: &'static str, names: &'static [&'static str], word: &'static str) -> Argument {
    Argument { names, word, phase: Some(phase) }
}

/// Items are counted by it: no script can be measured without.
pub const BATCH: Argument = of_phase(
    "larger-batch",
    &["--batch-size", "--batch", "--bs", "--train-batch-size", "--per-device-train-batch-size", "--micro-batch-size"],
    "{}=$(settings.batchPerGpu)",
);

/// What scripts with a loop of their own, plain or with Accelerate, are told.
pub const ARGUMENTS: [Argument; 14] = [
    argument(&["--seed", "--random-seed", "--manual-seed"], "{}=$(seed)"),
    argument(
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
    ),
    argument(
        &["--resume", "--resume-from-checkpoint", "--resume-from", "--resume-path"],
        "$(checkpoint.latest:+{}=$(checkpoint.latest))",
    ),
    argument(
        &[
            "--steps",
            "--max-steps",
            "--num-steps",
            "--max-train-steps",
            "--iterations",
            "--max-iters",
            "--num-iterations",
        ],
        "{}=$(launch.steps:--1)",
    ),
    argument(&["--epochs", "--num-epochs", "--max-epochs", "--num-train-epochs"], "{}=$(launch.epochs:-1)"),
    BATCH,
    argument(
        &[
            "--accumulation",
            "--gradient-accumulation-steps",
            "--accumulation-steps",
            "--grad-accum-steps",
            "--grad-accum",
            "--accum-iter",
        ],
        "{}=$(settings.accumulationSteps)",
    ),
    of_phase(
        "loader-workers",
        &["--workers", "--num-workers", "--loader-workers", "--dataloader-num-workers"],
        "{}=$(settings.loaderWorkers)",
    ),
    of_phase("bf16", &["--bf16", "--use-bf16"], "$(settings.precision=bf16:+{})"),
    argument(&["--fp16", "--amp", "--use-amp"], "$(settings.precision=fp16:+{})"),
    of_phase("compile", &["--compile", "--torch-compile", "--use-compile"], "$(settings.compile=Fuse:+{})"),
    of_phase("attention", &["--attention", "--attn-implementation", "--attn"], "$(settings.attention=Flash:+{}=sdpa)"),
    of_phase("fused-optimizer", &["--fused-optimizer", "--fused"], "$(settings.optimizerKernel=Fused:+{})"),
    of_phase(
        "gradient-checkpointing",
        &["--gradient-checkpointing", "--grad-checkpointing", "--activation-checkpointing"],
        "$(settings.activationCheckpointing=Full:+{})",
    ),
];

/// Accelerate shards by its environment.
pub const SHARDING: Argument = of_phase("fsdp", &["--fsdp", "--use-fsdp"], "$(settings.sharding=Full:+{})");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_written_as_the_script_spells_them() {
        let options = Options::of(
            r#"
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=32, help="items (per GPU) of a step")
# parser.add_argument("--workers", type=int, default=4)
parser.add_argument('--use_compile', type=bool, default=False)
parser.add_argument("--bf16",
                    action="store_true")
subprocess.run(["tool", "--fused"])
"#,
        );
        let word = |argument: &Argument| options.word(argument);
        assert_eq!(word(&BATCH).as_deref(), Some("--batch_size=$(settings.batchPerGpu)"));
        assert_eq!(options.batch(), Some(32));
        let of = |phase| ARGUMENTS.iter().find(|argument| argument.phase == Some(phase)).unwrap();
        assert_eq!(word(of("compile")).as_deref(), Some("$(settings.compile=Fuse:+--use_compile=True)"));
        assert_eq!(word(of("bf16")).as_deref(), Some("$(settings.precision=bf16:+--bf16)"));
        assert_eq!(word(of("loader-workers")), None, "it is a comment");
        assert_eq!(word(of("fused-optimizer")), None, "it is another program's");
    }

    #[test]
    fn options_of_click_and_typer_are_read() {
        let click =
            Options::of("@click.option('--batch-size', default=16)\n@click.option('--compile', is_flag=True)\n");
        assert_eq!((click.batch(), click.0[1].switch), (Some(16), true));
        let typer = Options::of(
            "def main(batch: int = typer.Option(64, '--batch'), c: bool = typer.Option(False, '--compile/--eager')):",
        );
        assert_eq!((typer.batch(), typer.0[1].switch, typer.0[1].names.len()), (Some(64), true, 1));
    }

    #[test]
    fn a_script_that_declares_no_option_gets_the_usual_ones() {
        let options = Options::of("parser = HfArgumentParser(Arguments)\n");
        assert!(options.is_empty() && options.batch().is_none());
        assert_eq!(options.word(&BATCH).as_deref(), Some("--batch-size=$(settings.batchPerGpu)"));
    }
}
