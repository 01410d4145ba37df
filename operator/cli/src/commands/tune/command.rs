//! The user's own command, and what launches vary in it.

use crate::args::{Framework, InitArgs};
use crate::commands::init::arguments::{BATCH as BATCH_OPTION, EVALUATION};
use crate::commands::init::command::{Command, has_own_options};
use crate::commands::init::declared::Declared;
use crate::commands::init::options::{Options, plain};
use crate::commands::init::phases::{ACCUMULATION, Phase};
use crate::commands::init::words::{Missing, Passed, Style, Value, Word, literal};
use crate::commands::tune::start::{Launcher, Program, Start, Wrapper};
use pawl_local::tuned::Part;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The batch size, by which phases are made.
pub const BATCH: &str = Phase::LargerBatch.setting();
/// Settings that are numbers of the baseline.
const NUMBERS: [&str; 3] = [BATCH, ACCUMULATION, Phase::LoaderWorkers.setting()];

/// Words of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Those of launches.
    pub launch: Vec<Word>,
    /// As the user wrote them; none: Pawl has added the words.
    pub own: Vec<String>,
}

/// The command of the user, as launches run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// All of it, from the program on.
    pub pieces: Vec<Piece>,
    /// Numbers of the baseline.
    pub settings: BTreeMap<String, u32>,
    /// The seed that is given.
    pub seed: Option<u32>,
    /// Settings that the user has fixed, each with the words.
    pub fixed: BTreeMap<String, String>,
    /// Whether launches can be given a number of steps, and of epochs.
    pub length: (bool, bool),
    /// Whether an option sets when the script evaluates.
    pub has_evaluation: bool,
    /// What the script requires and is not given.
    pub required: Vec<String>,
    /// Its variables that are set.
    pub variables: BTreeMap<String, String>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Tuned {
    /// The command of a user whose directory is `here`.
    pub fn new(arguments: &InitArgs, start: &Start, here: &Path) -> Self {
        let given = start.arguments();
        let read = Options::given(&start.script, &given, start.variables.iter().cloned().collect());
        let (required, variables) = (read.required(&given), read.variables());
        let options = if arguments.framework == Framework::Hf { Options::default() } else { read };
        let command = Command::with(arguments, &start.script, &options);
        let mut words: Vec<Word> = command.words.into_iter().filter(is_varied).collect();
        if has_own_options(arguments.framework) {
            words.extend(options.word(&EVALUATION).map(Word::Passed));
        }
        words.retain(|word| start.wrapper.as_ref().is_none_or(|wrapper| is_passed_on(word, wrapper)));
        let has = |value| words.iter().filter_map(Word::passed).any(|passed| passed.value == value);
        let mut tuned = Self {
            pieces: Vec::new(),
            settings: command.settings.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            seed: None,
            fixed: BTreeMap::new(),
            length: (has(Value::Steps), has(Value::Epochs)),
            has_evaluation: has(Value::Evaluation),
            required,
            variables,
            notes: start.notes.clone(),
        };
        tuned.settings.retain(|name, _| NUMBERS.contains(&name.as_str()));
        let batch = options.number(&BATCH_OPTION);
        let batch = batch.or_else(|| (!options.exact).then_some(command.batch));
        tuned.settings.extend(batch.map(|batch| (BATCH.to_owned(), batch)));
        let set = tuned.keep_variables(&start.variables, &mut words);
        tuned.keep(start.wrapped(), &options, &mut words);
        // They are given once more, after those of the shell script: the last one counts.
        words.extend(std::mem::take(&mut tuned.pieces).into_iter().flat_map(|piece| piece.launch).filter(is_passed));
        let count = set.len();
        tuned.pieces = set;
        tuned.keep(&start.given, &options, &mut words);
        let of_launcher = tuned.of_launcher(start);
        tuned.add(words);
        let mut set = std::mem::take(&mut tuned.pieces);
        let (variables, rest): (Vec<Piece>, Vec<Piece>) =
            set.split_off(count).into_iter().partition(Piece::is_variable);
        set.extend(variables);
        tuned.pieces = started(arguments, start, here, set, of_launcher);
        tuned.pieces.extend(rest);
        tuned
    }

    /// The variables that `env` sets: those that launches vary become placeholders.
    fn keep_variables(&mut self, set: &[(String, String)], words: &mut Vec<Word>) -> Vec<Piece> {
        let kept = set.iter().map(|(name, value)| {
            let own = format!("{name}={value}");
            let is = |word: &Word| word.passed().is_some_and(|it| it.style == Style::Variable && it.name == *name);
            let found = words.iter().position(is).map(|at| words.remove(at));
            let setting = found.as_ref().and_then(Word::passed).and_then(|passed| passed.value.setting());
            let varied = found.as_ref().and_then(Word::passed).and_then(|it| self.varied(it.clone(), Some(value)));
            if varied.is_none() {
                self.fixed.extend(setting.map(|setting| (setting.to_owned(), own.clone())));
            }
            Piece { launch: vec![varied.map_or_else(|| Word::Fixed(own.clone()), Word::Passed)], own: vec![own] }
        });
        kept.collect()
    }

    /// The options of `accelerate launch` for what a script has no option for.
    fn of_launcher(&mut self, start: &Start) -> Vec<Word> {
        if start.launcher != Some(Launcher::Accelerate) || start.program.options.is_none() {
            return Vec::new();
        }
        let option = |name: &str, setting, is, text: &'static str| Passed {
            name: name.to_owned(),
            style: Style::Option,
            value: Value::Chosen { setting, is, text: Some(text.into()) },
            missing: Missing::Never,
        };
        let options = [
            option("--mixed_precision", "precision", "bf16", "bf16"),
            option("--dynamo_backend", "compile", "Fuse", "inductor"),
        ];
        let (given, open): (Vec<_>, Vec<_>) =
            options.into_iter().partition(|option| start.program.given.contains(&plain(&option.name)));
        let fixed = |option: Passed| Some((option.value.setting()?.to_owned(), option.name));
        self.fixed.extend(given.into_iter().filter_map(fixed));
        open.into_iter().map(Word::Passed).collect()
    }

    /// The user's own arguments: those that launches vary become placeholders.
    fn keep(&mut self, given: &[String], options: &Options, words: &mut Vec<Word>) {
        let mut rest = given.iter();
        let mut positions = 0;
        while let Some(word) = rest.next() {
            let mut own = vec![word.clone()];
            let is_option = word.starts_with('-') && word.len() > 1;
            let (name, value) = options.split(word);
            let is_positional = !is_option && value.is_none();
            let placed = is_positional.then_some(positions).and_then(|position| options.at(position));
            positions += usize::from(is_positional);
            let found = if is_positional { placed } else { options.resolve(name) };
            let names =
                found.map_or_else(|| vec![plain(name)], |option| option.names.iter().map(|n| plain(n)).collect());
            let is_named = |word: &Word| word.passed().is_some_and(|passed| names.contains(&plain(&passed.name)));
            let at = words.iter().position(is_named).filter(|_| is_option || found.is_some());
            // Beside options that are given by their names, a position would be that of another one.
            let kept = placed.map_or_else(|| word.clone(), |option| format!("{}={word}", option.names[0]));
            let follows = |rest: &mut std::slice::Iter<'_, String>| {
                let has_value = rest.as_slice().first().is_some_and(|next| !next.starts_with('-'));
                if has_value { rest.next().cloned() } else { None }
            };
            let Some(Word::Passed(template)) = at.map(|at| words.remove(at)) else {
                let has_value = value.is_none() && placed.is_none() && found.is_some_and(Declared::has_value);
                let more = if has_value { follows(&mut rest) } else { None };
                own.extend(more.clone());
                let launch = std::iter::once(kept).chain(more).map(Word::Fixed).collect();
                self.pieces.push(Piece { launch, own });
                continue;
            };
            let takes_value = template.has_value() && found.is_none_or(Declared::has_value);
            let value = match value {
                None if placed.is_some() => Some(word.clone()),
                None if takes_value => follows(&mut rest).inspect(|next| own.push(next.clone())),
                inline => inline.map(str::to_owned),
            };
            let setting = template.value.setting();
            let launch = match self.varied(template, value.as_deref()) {
                Some(varied) => vec![Word::Passed(varied)],
                None => {
                    self.fixed.extend(setting.map(|setting| (setting.to_owned(), own.join(" "))));
                    std::iter::once(kept).chain(own[1..].iter().cloned()).map(Word::Fixed).collect()
                }
            };
            self.pieces.push(Piece { launch, own });
        }
    }

    /// The word of launches in place of an argument with this value; `None`: they keep the argument.
    fn varied(&mut self, word: Passed, value: Option<&str>) -> Option<Passed> {
        match word.value {
            Value::Number(setting) => {
                let number = value?.parse().ok().filter(|_| NUMBERS.contains(&setting))?;
                self.settings.insert(setting.to_owned(), number);
                Some(Passed { missing: Missing::Never, ..word })
            }
            Value::Chosen { .. } | Value::Latest => None,
            Value::Seed => {
                self.seed = Some(value?.parse().ok()?);
                Some(word)
            }
            // Launches without a number of their own have the user's.
            Value::Steps | Value::Epochs | Value::Evaluation => {
                Some(Passed { missing: Missing::Text(literal(value?).into()), ..word })
            }
            Value::Checkpoints => value.filter(|value| Path::new(value).extension().is_none()).map(|_| word),
        }
    }

    /// Adds what launches pass besides.
    fn add(&mut self, words: Vec<Word>) {
        for mut word in words {
            if let Word::Passed(passed) = &mut word
                && let Some(setting) = passed.value.setting()
            {
                // Of a script that is not known to accumulate, nothing is changed.
                let is_known = setting != ACCUMULATION || self.settings.contains_key(setting);
                if self.fixed.contains_key(setting) || !is_known {
                    continue;
                }
                // A placeholder without a value would change the baseline.
                if passed.value == Value::Number(setting) && !self.settings.contains_key(setting) {
                    passed.missing = Missing::Omitted;
                }
            }
            self.pieces.push(Piece { launch: vec![word], own: Vec::new() });
        }
        let used: BTreeSet<&str> =
            self.pieces.iter().flat_map(Piece::passed).filter_map(|passed| passed.value.setting()).collect();
        self.settings.retain(|name, _| used.contains(name.as_str()));
    }

    /// Gives launches that measure speed so many steps, instead of those that they need at least.
    pub fn lengthen(&mut self, steps: u64) {
        for piece in &mut self.pieces {
            let is_length = |word: &Word| word.passed().is_some_and(|passed| passed.value == Value::Steps);
            let Some(at) = piece.launch.iter().position(is_length) else { continue };
            let Some(name) = piece.launch[at].passed().map(|passed| passed.name.clone()) else { continue };
            let of = |kind, steps: &str| Word::OfKind(kind, format!("{name}={steps}"));
            let given = ["Quality", "Train"].map(|kind| of(kind, "$(launch.steps)"));
            piece.launch.splice(at..=at, [&given[..], &[of("Measure", &steps.to_string())]].concat());
        }
    }

    /// Micro-batches of a step, in the baseline.
    pub fn accumulation(&self) -> u32 {
        self.settings.get(ACCUMULATION).copied().unwrap_or(1)
    }

    /// What launches pass.
    pub fn passed(&self) -> impl Iterator<Item = &Passed> {
        self.pieces.iter().flat_map(Piece::passed)
    }

    /// All of it, with placeholders.
    pub fn parts(&self) -> Vec<Part> {
        let part =
            |piece: &Piece| Part { launch: piece.launch.iter().map(Word::text).collect(), own: piece.own.clone() };
        self.pieces.iter().map(part).collect()
    }

    /// The command of launches.
    pub fn launch(&self) -> Vec<String> {
        self.parts().into_iter().flat_map(|part| part.launch).collect()
    }

    /// The command of the user.
    pub fn own(&self) -> Vec<String> {
        self.pieces.iter().flat_map(|piece| piece.own.clone()).collect()
    }
}

impl Piece {
    /// What launches vary in it.
    pub fn passed(&self) -> impl Iterator<Item = &Passed> {
        self.launch.iter().filter_map(Word::passed)
    }

    fn is_variable(&self) -> bool {
        self.passed().any(|passed| passed.style == Style::Variable)
    }
}

/// Starts a launcher in the first of the ranks that Pawl starts, which has a process for each GPU itself. The others
/// end well at once.
const ONCE: [&str; 4] =
    ["sh", "-c", "test \"$RANK\" = 0 || exit 0; unset RANK LOCAL_RANK WORLD_SIZE; exec \"$@\"", "sh"];

/// The start of the command, with the variables of the script.
fn started(
    arguments: &InitArgs,
    start: &Start,
    here: &Path,
    variables: Vec<Piece>,
    of_launcher: Vec<Word>,
) -> Vec<Piece> {
    let mut environment: Vec<String> = vec!["env".into(), "-C".into(), here.to_string_lossy().into_owned()];
    if arguments.gpus <= 1 {
        // With these, the script would believe that it is one of several.
        environment.extend(["-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE"].map(str::to_owned));
    }
    environment.extend(start.env.iter().skip(1).cloned());
    let fixed = |words: &[String]| words.iter().cloned().map(Word::Fixed).collect();
    let mut pieces = vec![Piece { launch: fixed(&environment), own: start.env.clone() }];
    pieces.extend(variables);
    if arguments.gpus > 1 && start.launcher.is_some() {
        pieces.push(Piece { launch: fixed(&ONCE.map(str::to_owned)), own: Vec::new() });
    }
    let Program { launch, own, options, .. } = &start.program;
    let (in_launch, in_own) = options.unwrap_or((launch.len(), own.len()));
    pieces.push(Piece { launch: fixed(&launch[..in_launch]), own: own[..in_own].to_vec() });
    pieces.extend(of_launcher.into_iter().map(|word| Piece { launch: vec![word], own: Vec::new() }));
    pieces.push(Piece { launch: fixed(&launch[in_launch..]), own: own[in_own..].to_vec() });
    pieces
}

/// Whether a word differs between launches.
fn is_passed(word: &Word) -> bool {
    word.passed().is_some()
}

/// Whether a shell script passes a word on to the script that it starts.
fn is_passed_on(word: &Word, wrapper: &Wrapper) -> bool {
    match word.passed().filter(|passed| passed.style == Style::Variable) {
        Some(variable) => !wrapper.reads_file && !wrapper.set.contains(&variable.name),
        None => wrapper.passes,
    }
}

/// Whether launches of `pawl tune` pass this word. It does not train, and the user gives the subcommand.
fn is_varied(word: &Word) -> bool {
    match word {
        Word::Passed(passed) => passed.value != Value::Latest,
        Word::Fixed(text) => text.starts_with('-'),
        Word::OfKind(..) => true,
    }
}

/// The framework of a script, by its source and what starts its processes.
pub fn framework(source: &str, launcher: Option<Launcher>) -> Framework {
    let has = |word: &str| source.contains(word);
    match () {
        () if has("HfArgumentParser") && has("TrainingArguments") => Framework::Hf,
        () if has("LightningCLI") => Framework::Lightning,
        // Its launcher gives it other variables than those of the launch.
        () if has("Accelerator(") && launcher != Some(Launcher::Accelerate) => Framework::Accelerate,
        () => Framework::Pytorch,
    }
}

#[cfg(test)]
mod tests;
