//! The options of a script's command line, read from its source.

use super::arguments::{ARGUMENTS, Argument};
use super::declared::{Declared, Takes};
use super::hydra;
use super::words::{Passed, Style};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Reads the source with the parser of Python.
const READER: &str = include_str!("options.py");

/// The options that a script in Python declares.
#[derive(Debug, Default, Deserialize)]
pub struct Options {
    declared: Vec<Declared>,
    /// Whether it has no others.
    complete: bool,
    /// Whether what is not known is not there, rather than called as usual.
    #[serde(skip)]
    pub exact: bool,
    /// Whether its classes or functions were read that declare its options.
    #[serde(skip)]
    pub is_read: bool,
    /// Where its configuration is.
    #[serde(default)]
    hydra: Option<hydra::Main>,
    /// Variables that the command line sets.
    #[serde(skip)]
    set: BTreeMap<String, String>,
}

impl Options {
    /// The options that a script declares one by one. The script is read by the Python of this machine, not run;
    /// without Python nothing is known.
    pub fn of(script: &Path) -> Self {
        Self::with(script, &[])
    }

    /// Whether it declares none.
    pub const fn is_empty(&self) -> bool {
        self.declared.is_empty()
    }

    fn with(script: &Path, given: &[String]) -> Self {
        let mut options = Self::read(script, given).unwrap_or_default();
        if let Some(main) = options.hydra.take() {
            let keys = main.keys(script, given);
            options.complete &= !keys.is_empty();
            options.declared.extend(keys);
        }
        // A script that has none of the usual options may have its parser in another file.
        options.complete &= ARGUMENTS.iter().any(|argument| options.find(argument.names).is_some());
        options.is_read = options.complete;
        options
    }

    /// As [`Self::of`], of a script that is started with these arguments, in this environment with these variables
    /// besides: it has the options that it declares, and those that are given.
    pub fn given(script: &Path, arguments: &[String], set: BTreeMap<String, String>) -> Self {
        let mut options = Self { set, ..Self::with(script, arguments) };
        (options.complete, options.exact) = (true, true);
        for (index, word) in arguments.iter().enumerate().filter(|(_, word)| word.starts_with("--")) {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if options.resolve(name).is_none() {
                let next = arguments.get(index + 1).filter(|next| !next.starts_with('-'));
                let takes = if value.is_some() || next.is_some() { Takes::Value } else { Takes::Nothing };
                options.declared.push(Declared { names: vec![name.to_owned()], takes, ..Declared::default() });
            }
        }
        for option in options.declared.iter_mut().filter(|option| option.style == Style::Variable) {
            if let Some(value) = option.names.first().and_then(|name| variable(&options.set, name)) {
                option.default = match option.takes {
                    Takes::Boolean => Value::Bool(value == option.on),
                    Takes::Nothing | Takes::Value | Takes::Optional | Takes::Other => {
                        value.parse::<u64>().map_or_else(|_| value.into(), Value::from)
                    }
                };
            }
        }
        options
    }

    /// The variables that it reads and that are set here.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let names =
            self.declared.iter().filter(|option| option.style == Style::Variable).flat_map(|option| &option.names);
        names.filter_map(|name| Some((name.clone(), variable(&self.set, name)?))).collect()
    }

    /// The option that a word of a command line names, maybe in short or abbreviated, or as a key.
    pub fn resolve(&self, word: &str) -> Option<&Declared> {
        let is = |option: &&Declared| option.names.iter().chain(&option.short).any(|name| name == word);
        let is_long = word.starts_with("--") && word.len() > 2;
        let abbreviated = || {
            let mut all = self.declared.iter().filter(|option| option.names.iter().any(|name| name.starts_with(word)));
            all.next().filter(|_| is_long && all.next().is_none())
        };
        self.declared.iter().find(is).or_else(abbreviated)
    }

    /// The option that is given by this position.
    pub fn at(&self, position: usize) -> Option<&Declared> {
        let place = position.to_string();
        self.declared.iter().find(|option| !option.names.is_empty() && option.place.as_ref() == Some(&place))
    }

    /// The word and the value of an argument: `--batch=8`, or the key of a configuration.
    pub fn split<'a>(&self, word: &'a str) -> (&'a str, Option<&'a str>) {
        match word.split_once('=') {
            Some((name, value)) if word.starts_with('-') => (name, Some(value)),
            Some((name, value)) => {
                let key = name.trim_start_matches('+');
                let is_key = self.declared.iter().any(|option| option.style == Style::Key);
                if is_key { (key, Some(value)) } else { (word, None) }
            }
            None => (word, None),
        }
    }

    /// What this command line, in this environment, does not give although the script requires it.
    pub fn required(&self, given: &[String]) -> Vec<String> {
        let mut named = BTreeSet::new();
        let mut positions = 0;
        let mut rest = given.iter().peekable();
        while let Some(word) = rest.next() {
            let (name, value) = self.split(word);
            match self.resolve(name) {
                Some(option) => {
                    named.extend(option.names.iter().map(String::as_str));
                    let takes_value = option.takes != Takes::Nothing;
                    if value.is_none() && takes_value && option.style == Style::Option {
                        rest.next_if(|next| !next.starts_with('-'));
                    }
                }
                None if name.starts_with('-') => {}
                None => {
                    named.extend(self.at(positions).into_iter().flat_map(|option| &option.names).map(String::as_str));
                    positions += 1;
                }
            }
        }
        let missing = self.declared.iter().filter(|option| option.required);
        let (positional, options): (Vec<&Declared>, Vec<&Declared>) =
            missing.partition(|option| option.names.is_empty());
        let is_absent = |option: &&Declared| {
            let is_set = |name: &String| option.style == Style::Variable && variable(&self.set, name).is_some();
            !option
                .names
                .iter()
                .any(|name| named.contains(name.as_str()) || is_set(name) || PROVIDED.contains(&name.as_str()))
        };
        let positional = positional.into_iter().skip(positions).filter_map(|option| option.place.clone());
        positional.chain(options.into_iter().filter(is_absent).map(|option| option.names[0].clone())).collect()
    }

    fn read(script: &Path, given: &[String]) -> Option<Self> {
        let mut python = Command::new("python3")
            .args(["-I", "-"])
            .arg(script)
            .args(given)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        python.stdin.take()?.write_all(READER.as_bytes()).ok()?;
        serde_json::from_slice(&python.wait_with_output().ok()?.stdout).ok()
    }

    /// The first of these options that the script has, in its own spelling: `--batch_size`, `--batchSize`, the key
    /// `data.batch_size` and the variable `BATCH_SIZE` are `--batch-size`.
    fn find(&self, names: &[&str]) -> Option<(&str, &Declared)> {
        names.iter().find_map(|wanted| {
            self.declared.iter().find_map(|option| {
                let name = option.names.iter().find(|name| usual(name).as_deref() == Some(*wanted))?;
                Some((name.as_str(), option))
            })
        })
    }

    /// Whether the script has an option of this very name.
    pub fn has(&self, name: &str) -> bool {
        self.declared.iter().any(|option| option.names.iter().any(|known| known == name))
    }

    /// The default of an option, where it is a positive number.
    pub fn number(&self, argument: &Argument) -> Option<u32> {
        let (_, option) = self.find(argument.names)?;
        u32::try_from(option.default.as_u64()?).ok().filter(|&number| number > 0)
    }

    /// The word of a command that passes a value to the script; the usual one where other options may exist. `None`:
    /// the script has no such option, or one that cannot be used so.
    pub fn word(&self, argument: &Argument) -> Option<Passed> {
        let Some((name, option)) = self.find(argument.names) else {
            return (!self.complete).then(|| argument.word(argument.usual, Style::Option));
        };
        let is_off = option.default.as_u64().is_none_or(|number| number == 0) && option.default.is_number();
        match (argument.is_switch(), option.takes) {
            (true, Takes::Nothing | Takes::Boolean) if option.default == true => None,
            (true, Takes::Optional) if !matches!(option.default, Value::Null | Value::Bool(false)) => None,
            (true, Takes::Nothing | Takes::Optional) => Some(argument.word(name, option.style)),
            (true, Takes::Boolean) => Some(argument.switched(name, option.style, option.on())),
            (true, Takes::Value) if option.style == Style::Variable && is_off => {
                Some(argument.switched(name, option.style, option.on()))
            }
            (false, Takes::Value | Takes::Optional) => Some(argument.word(name, option.style)),
            (true, Takes::Value) | (_, Takes::Other) | (false, Takes::Nothing | Takes::Boolean) => None,
        }
    }

    /// The word for the first of these options that the script has, with the first of the values that it takes, such as
    /// `--dtype=bfloat16`; `None` where one of them is its default.
    pub fn choice(&self, argument: &Argument, names: &[&str], values: Values) -> Option<Passed> {
        let (name, option) = self.find(names)?;
        let default = option.default.as_str().map_or_else(|| option.default.to_string(), str::to_owned);
        let values = values(name, &default);
        let taken = |value: &&&str| option.choices.is_empty() || option.choices.iter().any(|choice| choice == **value);
        let value = values.iter().find(taken)?;
        let is_default = values.contains(&default.as_str());
        (matches!(option.takes, Takes::Value | Takes::Optional) && !is_default)
            .then(|| argument.switched(name, option.style, value))
    }
}

/// The value of a variable, which the command line may set.
fn variable(set: &BTreeMap<String, String>, name: &str) -> Option<String> {
    set.get(name).cloned().or_else(|| std::env::var(name).ok())
}

/// Values of an option, by its name and its default.
pub type Values = fn(&str, &str) -> [&'static str; 3];

/// Variables that a launch has by itself.
const PROVIDED: [&str; 6] = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"];
/// Sections of a configuration in which an option is not that of the training.
const OTHER_SECTIONS: [&str; 8] = ["val", "valid", "validation", "eval", "evaluation", "test", "predict", "inference"];

/// An option, a key or a variable as the usual option would be called; `None`: it is of something other than the
/// training.
fn usual(name: &str) -> Option<String> {
    let mut sections: Vec<&str> = name.trim_start_matches('-').split('.').collect();
    let last = sections.pop()?;
    let is_other = sections.iter().any(|section| OTHER_SECTIONS.contains(section));
    // A variable has capital letters only.
    let is_variable = !last.contains(|c: char| c.is_ascii_lowercase());
    let last = if is_variable { last.to_ascii_lowercase() } else { last.to_owned() };
    (!is_other).then(|| format!("--{}", plain(&last)))
}

/// An option in small letters, with `-` between words.
pub fn plain(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && text.ends_with(|last: char| last.is_ascii_lowercase()) {
            text.push('-');
        }
        text.push(if c == '_' { '-' } else { c.to_ascii_lowercase() });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{BATCH, BF16, COMPILE, FUSED, PRECISIONS, RESUME, WORKERS, bfloat16};
    use super::*;
    use rstest::rstest;

    fn options(source: &str) -> Options {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        Options::of(file.path())
    }

    fn word(options: &Options, argument: &Argument) -> Option<String> {
        options.word(argument).map(|word| word.text())
    }

    #[test]
    fn options_are_written_as_the_script_spells_them() {
        let options = options(
            r##"
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch_size", type=int, default=32, help="1) items (of a GPU), default=16; not '--epochs'")
# parser.add_argument("--workers", type=int, default=4)
parser.add_argument('--use_compile', type=bool, default=False)
parser.add_argument("--bf16", help="like store_true",
                    action="store_true")
parser.add_argument("--resume", action="store_true")
subprocess.run(["tool", "--fused"])
"##,
        );
        assert!(options.complete);
        assert_eq!(word(&options, &BATCH).as_deref(), Some("--batch_size=$(settings.batchPerGpu)"));
        assert_eq!(options.number(&BATCH), Some(32));
        assert_eq!(word(&options, &COMPILE).as_deref(), Some("$(settings.compile=Fuse:+--use_compile=True)"));
        assert_eq!(word(&options, &BF16).as_deref(), Some("$(settings.precision=bf16:+--bf16)"));
        assert_eq!(word(&options, &WORKERS), None, "it is a comment");
        assert_eq!(word(&options, &FUSED), None, "it is another program's");
        assert_eq!(word(&options, &RESUME), None, "it takes no path");
    }

    #[test]
    fn options_of_click_are_read_and_what_is_on_by_default_is_no_phase() {
        let source = "@click.option('--batchSize', default=16)\n@click.option('--compile/--eager', default=True)\n";
        let options = options(&format!("{source}@click.option('--fused', is_flag=True)\ndef main(): ...\n"));
        assert_eq!((options.number(&BATCH), word(&options, &COMPILE)), (Some(16), None));
        assert_eq!(word(&options, &FUSED).as_deref(), Some("$(settings.optimizerKernel=Fused:+--fused)"));
    }

    #[test]
    fn an_option_whose_value_may_be_left_out_is_a_switch() {
        let compile = |more: &str| {
            let source = "a.add_argument('-b', '--batch-size', type=int)\n";
            let options = options(&format!("{source}a.add_argument('--torchcompile', nargs='?', type=str, {more})\n"));
            word(&options, &COMPILE)
        };
        let alone = Some("$(settings.compile=Fuse:+--torchcompile)");
        assert_eq!(compile("default=None, const='inductor'").as_deref(), alone);
        assert_eq!(compile("default='inductor', const='inductor'"), None, "it is on by default");
        assert_eq!(compile("default=None"), None, "alone, it says nothing");
        let dtype =
            "a.add_argument('--seed')\na.add_argument('--dtype', nargs='?', const='bfloat16', default='float32')\n";
        let choice = options(dtype).choice(&BF16, &PRECISIONS, bfloat16).unwrap().text();
        assert!(choice.contains("--dtype=bfloat16"), "{choice}");
        let source = "a.add_argument('--torchcompile', nargs='?', const='inductor')\na.add_argument('data')\n";
        assert!(options(source).required(&["--torchcompile", "inductor", "images"].map(str::to_owned)).is_empty());
    }

    #[test]
    fn a_precision_is_chosen_among_the_values_that_the_script_takes() {
        let source = "a.add_argument('--seed')\na.add_argument('--dtype', choices=['float32', 'bfloat16'])\n";
        let choice = |source| options(source).choice(&BF16, &PRECISIONS, bfloat16);
        let expected = "$(settings.precision=bf16:+--dtype=bfloat16)";
        assert_eq!(choice(source).map(|word| word.text()).as_deref(), Some(expected));
        assert_eq!(choice("a.add_argument('--seed')\na.add_argument('--dtype', default='bfloat16')\n"), None);
        for (source, expected) in [
            ("a.add_argument('--seed')\na.add_argument('--dtype', default='float32')\n", "--dtype=bfloat16"),
            ("a.add_argument('--seed')\na.add_argument('--precision', default='32-true')\n", "--precision=bf16-mixed"),
            ("a.add_argument('--seed')\na.add_argument('--mixed_precision', default='no')\n", "--mixed_precision=bf16"),
        ] {
            assert!(choice(source).unwrap().text().contains(expected), "{source}");
        }
    }

    #[test]
    fn options_of_a_command_line_are_found_by_their_short_and_abbreviated_names() {
        let source =
            "a.add_argument('-b', '--batch_size', type=int)\na.add_argument('--compile', action='store_true')\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        let given = ["-b", "4", "--comp", "--lr", "0.1", "--workers=2", "--verbose"].map(str::to_owned);
        let options = Options::given(file.path(), &given, BTreeMap::new());
        let resolved = |word: &str| options.resolve(word).map(|option| (option.names[0].clone(), option.has_value()));
        for (word, expected) in [
            ("-b", Some(("--batch_size", true))),
            ("--batch", Some(("--batch_size", true))),
            ("--comp", Some(("--compile", false))),
            ("--lr", Some(("--lr", true))),
            ("--verbose", Some(("--verbose", false))),
            ("--", None),
            ("--fused", None),
        ] {
            assert_eq!(resolved(word), expected.map(|(name, value)| (name.to_owned(), value)), "{word}");
        }
        // What is given is an option, what is neither given nor declared is none.
        assert_eq!(word(&options, &WORKERS).as_deref(), Some("--workers=$(settings.loaderWorkers)"));
        assert_eq!(word(&options, &FUSED), None);
    }

    const FIRE: &str = "
def train(data, batch_size=32, num_workers: int = 0, compile=False): ...
fire.Fire(train)
";
    const ABSL: &str = "
flags.DEFINE_integer('batch_size', 32, 'items')
flags.DEFINE_integer('num_workers', default=0, help='workers')
flags.DEFINE_bool('compile', False, 'fuse')
flags.DEFINE_string('data', None, 'files')
flags.mark_flag_as_required('data')
";
    const CONFIGURATOR: &str = "
batch_size = 4 * 8
num_workers = 0
compile = False
exec(open('configurator.py').read())
batch_size = 1
";
    const ENVIRONMENT: &str = "
if int(os.environ.get('NUM_WORKERS', '0')) > 0: print('loads in processes')
BATCH = int(os.environ.get('BATCH_SIZE', 32))
WORKERS = int(os.getenv('NUM_WORKERS', '0'))
COMPILE = os.environ.get('COMPILE', '0') == '1'
DATA = os.environ['TUNE_TEST_DATA']
RANK = os.environ['RANK']
";
    const DATACLASS: &str = "
@dataclass
class Arguments:
    data: str
    batch_size: int = field(default=32)
    num_workers: int = 0
    compile: bool = False
HfArgumentParser(Arguments)
";
    const STRUCTURED: &str = "
@dataclass
class Data:
    batch_size: int = 32
    num_workers: int = 0
@dataclass
class Config:
    data: str = MISSING
    train: Data = field(default_factory=Data)
    compile: bool = False
ConfigStore.instance().store(name='config', node=Config)
";
    const LIGHTNING: &str = "
class Model(LightningModule):
    def __init__(self, width=3, compile: bool = False): ...
class Data(LightningDataModule):
    def __init__(self, data, batch_size: int = 32, num_workers: int = 0): ...
LightningCLI(Model, datamodule_class=Data)
";

    #[rstest]
    #[case::fire(FIRE, "--data", &["--batch_size=", "--num_workers=", "--compile=True"])]
    #[case::absl(ABSL, "--data", &["--batch_size=", "--num_workers=", "--compile=True"])]
    #[case::configurator(CONFIGURATOR, "", &["--batch_size=", "--num_workers=", "--compile=True"])]
    #[case::environment(ENVIRONMENT, "TUNE_TEST_DATA", &["BATCH_SIZE=", "NUM_WORKERS=", "COMPILE=1"])]
    #[case::dataclass(DATACLASS, "--data", &["--batch_size=", "--num_workers=", "--compile=True"])]
    #[case::structured(STRUCTURED, "data", &["train.batch_size=", "train.num_workers=", "compile=True"])]
    #[case::lightning(LIGHTNING, "--data.data", &["--data.batch_size=", "--data.num_workers=", "--model.compile=True"])]
    fn options_of_a_parser_are_read(#[case] source: &str, #[case] required: &str, #[case] words: &[&str]) {
        let options = options(source);
        assert!(options.complete, "{options:?}");
        assert_eq!(options.number(&BATCH), Some(32), "{options:?}");
        assert_eq!(options.required(&[]).join(" "), required);
        for (argument, expected) in [&BATCH, &WORKERS, &COMPILE].into_iter().zip(words) {
            let text = word(&options, argument).unwrap_or_else(|| panic!("{expected}: {options:?}"));
            assert!(text.contains(expected), "{text}: {expected}");
        }
        assert_eq!(word(&options, &FUSED), None);
    }

    #[rstest]
    #[case::given(FIRE, &["--data", "x"], "")]
    #[case::by_its_position(FIRE, &["x", "--batch_size=3"], "")]
    #[case::inline(ABSL, &["--data=x"], "")]
    #[case::as_a_key(STRUCTURED, &["data=x"], "")]
    #[case::positional("a.add_argument('data')\na.add_argument('out')\na.add_argument('--lr')\n", &["--lr", "1", "x"], "out")]
    #[case::optional("a.add_argument('data', nargs='?')\n@click.argument('out', required=False)\ndef main(): ...\n", &[], "")]
    #[case::option("a.add_argument('--data', required=True)\n@click.option('--out', required=True)\ndef main(): ...\n", &[], "--data --out")]
    #[case::of_a_subcommand("p.add_subparsers()\np.add_parser('x').add_argument('--data', required=True)\n", &[], "")]
    fn what_is_required_and_not_given_is_known(#[case] source: &str, #[case] given: &[&str], #[case] expected: &str) {
        let given: Vec<String> = given.iter().map(|&word| word.to_owned()).collect();
        assert_eq!(options(source).required(&given).join(" "), expected);
    }

    #[test]
    fn sections_other_than_the_training_have_no_batch_of_its_own() {
        let source = "
@dataclass
class Eval:
    batch_size: int = 512
@dataclass
class Config:
    eval: Eval = field(default_factory=Eval)
    seed: int = 1
cs.store(name='config', node=Config)
";
        assert_eq!(options(source).number(&BATCH), None);
    }

    #[test]
    fn a_script_whose_options_are_unknown_gets_the_usual_ones() {
        for source in [
            "parser = HfArgumentParser(Arguments)\nparser.add_argument('--seed')\n",
            "parser = ArgumentParser(parents=[common])\nparser.add_argument('--seed')\n",
            "parser.add_argument('--verbose')\n",
            "fire.Fire()\n",
            "not Python (",
        ] {
            let options = options(source);
            assert!(!options.complete && options.number(&BATCH).is_none(), "{source}");
            assert_eq!(word(&options, &BATCH).as_deref(), Some("--batch-size=$(settings.batchPerGpu)"));
        }
    }
}
