//! The user's own command, and what launches vary in it.

use crate::args::{Framework, InitArgs};
use crate::commands::init::arguments::EVALUATION;
use crate::commands::init::command::{Command, has_own_options};
use crate::commands::init::options::{Options, plain};
use pawl_api::TrainingJob;
use pawl_contract::plan::LaunchPlan;
use pawl_contract::settings::Settings;
use pawl_contract::template::{Places, RenderError, Rendered, Values, render};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The batch size, by which phases are made.
pub const BATCH: &str = "batchPerGpu";
/// More steps than a measurement needs.
const MANY: &str = "1000000";
/// Settings that are numbers of the baseline.
const NUMBERS: [&str; 2] = [BATCH, "loaderWorkers"];

/// Words of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// With placeholders, for launches.
    pub launch: Vec<String>,
    /// As the user wrote them; none: Pawl has added the words.
    pub own: Vec<String>,
}

/// The command of the user, as launches run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tuned {
    /// All of it, from the program on.
    pub parts: Vec<Part>,
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
}

impl Tuned {
    /// The command `python3 SCRIPT GIVEN...` of a user whose directory is `here`.
    pub fn new(arguments: &InitArgs, script: &Path, given: &[String], here: &Path) -> Self {
        let options = match has_own_options(arguments.framework) {
            true => Options::given(script, given),
            false => Options::default(),
        };
        let command = Command::with(arguments, script, &options);
        let mut words: Vec<String> = command.words.into_iter().filter(|word| is_varied(word)).collect();
        words.extend(options.word(&EVALUATION).filter(|_| options.exact));
        let mut tuned = Self {
            parts: vec![started(arguments, script, here)],
            settings: command.settings.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            seed: None,
            fixed: BTreeMap::new(),
            length: (has(&words, "launch.steps"), has(&words, "launch.epochs")),
            has_evaluation: has(&words, "launch.evalSteps"),
        };
        tuned.settings.retain(|name, _| NUMBERS.contains(&name.as_str()));
        let batch = options.number(&crate::commands::init::arguments::BATCH);
        let batch = batch.or_else(|| (!options.exact).then_some(command.batch));
        tuned.settings.extend(batch.map(|batch| (BATCH.to_owned(), batch)));
        tuned.keep(given, &options, &mut words);
        tuned.add(words);
        tuned
    }

    /// The user's own arguments: those that launches vary become placeholders.
    fn keep(&mut self, given: &[String], options: &Options, words: &mut Vec<String>) {
        let mut rest = given.iter();
        while let Some(word) = rest.next() {
            let mut own = vec![word.clone()];
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let found = options.resolve(name);
            let is_named = |word: &String| {
                let option = option_of(word).map(plain);
                let names =
                    found.map_or_else(|| vec![plain(name)], |(names, _)| names.iter().map(|n| plain(n)).collect());
                option.is_some_and(|option| names.contains(&option))
            };
            let at = words.iter().position(is_named).filter(|_| word.starts_with('-') && word.len() > 1);
            let Some(template) = at.map(|at| words.remove(at)) else {
                self.parts.push(Part { launch: own.iter().map(|word| literal(word)).collect(), own });
                continue;
            };
            let takes_value = template.contains('=') && found.is_none_or(|(_, takes)| takes);
            let value = match value {
                None if takes_value => rest.as_slice().first().filter(|next| !next.starts_with('-')).map(|next| {
                    rest.next();
                    own.push(next.clone());
                    next.as_str()
                }),
                inline => inline,
            };
            let launch = match self.varied(&template, value) {
                Some(varied) => vec![varied],
                None => {
                    let fixed = settings_of(&template);
                    self.fixed.extend(fixed.into_iter().map(|setting| (setting, own.join(" "))));
                    own.iter().map(|word| literal(word)).collect()
                }
            };
            self.parts.push(Part { launch, own });
        }
    }

    /// The word of launches in place of an argument with this value; `None`: they keep the argument.
    fn varied(&mut self, template: &str, value: Option<&str>) -> Option<String> {
        let option = option_of(template)?;
        let is_value = template.starts_with(&format!("{option}="));
        if let Some(name) = settings_of(template).into_iter().next() {
            let number = value?.parse().ok().filter(|_| is_value && NUMBERS.contains(&name.as_str()))?;
            self.settings.insert(name, number);
            return Some(template.to_owned());
        }
        match template {
            _ if template.contains("$(seed)") => self.seed = Some(value?.parse().ok()?),
            // Launches without a number of their own have the user's.
            _ if template.starts_with("$(launch.kind") => return None,
            _ if template.starts_with("$(launch.") => {
                let name = template.trim_start_matches("$(").split(":+").next()?;
                return Some(format!("{option}=$({name}:-{})", literal(value?)));
            }
            _ if template.contains("$(checkpoint.dir)") => {
                return value.filter(|value| Path::new(value).extension().is_none()).map(|_| template.to_owned());
            }
            _ if !is_value => return None,
            _ => {}
        }
        Some(template.to_owned())
    }

    /// Adds what launches pass besides.
    fn add(&mut self, words: Vec<String>) {
        for word in words {
            let settings = settings_of(&word);
            if settings.iter().any(|setting| self.fixed.contains_key(setting)) {
                continue;
            }
            let unknown =
                settings.iter().find(|name| NUMBERS.contains(&name.as_str()) && !self.settings.contains_key(*name));
            let word = match unknown {
                // A placeholder without a value would change the baseline.
                Some(name) => format!("$(settings.{name}:+{word})"),
                None => word,
            };
            self.parts.push(Part { launch: vec![word], own: Vec::new() });
        }
        let used: BTreeSet<String> = self.launch().iter().flat_map(|word| settings_of(word)).collect();
        self.settings.retain(|name, _| used.contains(name));
    }

    /// Gives launches that measure speed more steps than they need: they are ended after their last one. For a script that counts
    /// anew in each epoch, and does not print the last steps of one: it would end before as many were seen.
    pub fn lengthen(&mut self) {
        for part in &mut self.parts {
            let Some(at) = part.launch.iter().position(|word| word.contains("$(launch.steps:")) else { continue };
            let Some(option) = option_of(&part.launch[at]).map(str::to_owned) else { continue };
            let word = |kind: &str, steps: &str| format!("$(launch.kind={kind}:+{option}={steps})");
            let given = ["Quality", "Train"].map(|kind| word(kind, "$(launch.steps)"));
            part.launch.splice(at..=at, [&given[..], &[word("Measure", MANY)]].concat());
        }
    }

    /// The command of launches.
    pub fn launch(&self) -> Vec<String> {
        self.parts.iter().flat_map(|part| part.launch.clone()).collect()
    }

    /// The command of the user.
    pub fn own(&self) -> Vec<String> {
        self.parts.iter().flat_map(|part| part.own.clone()).collect()
    }
}

/// The user's command with the settings that were accepted, and the variables that it needs then: what differs from the baseline
/// is as in a launch, everything else as the user wrote it.
///
/// # Errors
/// [`RenderError`]: a placeholder of the manifest has no value.
pub fn changed(parts: &[Part], job: &TrainingJob, accepted: &Settings) -> Result<Vec<String>, RenderError> {
    let preview = pawl_decision::preview(job);
    let Some(baseline) = preview.launches.first() else { return Ok(Vec::new()) };
    let places = Places { checkpoints: "checkpoints".to_owned(), ..Places::default() };
    let rendered = |launch: &[String], settings: &Settings| -> Result<Rendered, RenderError> {
        let plan = LaunchPlan { settings: settings.clone(), ..baseline.clone() };
        let variable = |name: &str| Some(format!("$({name})"));
        let values = Values { plan: &plan, world_size: preview.world_size(), places: &places, variable: &variable };
        render(launch, &preview.script.env, &values)
    };
    let mut words = Vec::new();
    let before = rendered(&[], &job.spec.settings)?.env;
    let after = rendered(&[], accepted)?.env;
    words
        .extend(after.iter().filter(|(name, value)| before.get(*name) != Some(value)).map(|(n, v)| format!("{n}={v}")));
    for Part { launch, own } in parts {
        let (before, after) = (rendered(launch, &job.spec.settings)?, rendered(launch, accepted)?);
        words.extend(if before.command == after.command { own.clone() } else { after.command });
    }
    Ok(words)
}

/// The start of the command.
fn started(arguments: &InitArgs, script: &Path, here: &Path) -> Part {
    let mut launch: Vec<String> = vec!["env".into(), "-C".into(), literal(&here.to_string_lossy())];
    if arguments.gpus <= 1 {
        // With these, the script would believe that it is one of several.
        launch.extend(["-u", "RANK", "-u", "LOCAL_RANK", "-u", "WORLD_SIZE"].map(str::to_owned));
    }
    launch.extend(["python3".to_owned(), literal(&script.to_string_lossy())]);
    let own = vec!["python3".to_owned(), arguments.script.to_string_lossy().into_owned()];
    Part { launch, own }
}

/// Whether launches of `pawl tune` pass this word. It does not train, and leaves alone what no phase changes.
fn is_varied(word: &str) -> bool {
    !word.contains("settings.accumulationSteps") && !word.contains("$(checkpoint.latest")
}

fn has(words: &[String], name: &str) -> bool {
    words.iter().any(|word| word.contains(name))
}

/// The option in a word of a launch.
fn option_of(word: &str) -> Option<&str> {
    let text = &word[word.find("--")?..];
    let end = text.find(|c: char| !c.is_alphanumeric() && !"-_.".contains(c)).unwrap_or(text.len());
    Some(&text[..end])
}

/// The settings in the placeholders of a word.
pub fn settings_of(word: &str) -> BTreeSet<String> {
    let after = word.split("$(settings.").skip(1);
    after.map(|text| text.chars().take_while(char::is_ascii_alphanumeric).collect()).collect()
}

/// A text without placeholders.
fn literal(text: &str) -> String {
    text.replace("$(", "$$(")
}

/// The framework of a script, by its source.
pub fn framework(source: &str) -> Framework {
    let has = |word: &str| source.contains(word);
    match () {
        () if has("HfArgumentParser") && has("TrainingArguments") => Framework::Hf,
        () if has("LightningCLI") => Framework::Lightning,
        () if has("Accelerator(") => Framework::Accelerate,
        () => Framework::Pytorch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SOURCE: &str = "
a.add_argument('-b', '--batch_size', type=int, default=12)
a.add_argument('--num_workers', type=int, default=0)
a.add_argument('--max_steps', type=int, default=100)
a.add_argument('--eval_interval', type=int, default=50)
a.add_argument('--seed', type=int, default=1337)
a.add_argument('--out_dir', default='out')
a.add_argument('--compile', action='store_true')
a.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32')
a.add_argument('--resume')
a.add_argument('--lr', type=float, default=0.1)
a.add_argument('data')
";

    fn tuned(source: &str, given: &[&str]) -> Tuned {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), source).unwrap();
        let arguments = InitArgs {
            script: "train.py".into(),
            framework: framework(source),
            name: None,
            gpus: 0,
            batch: None,
            items: None,
            out: "-".into(),
        };
        let given: Vec<String> = given.iter().map(|&word| word.to_owned()).collect();
        Tuned::new(&arguments, file.path(), &given, Path::new("/home/me"))
    }

    fn line(tuned: &Tuned, from: usize) -> String {
        tuned.launch()[from..].join(" ")
    }

    #[test]
    fn given_values_are_the_baseline_and_everything_else_is_kept() {
        let given =
            ["data/x", "-b", "16", "--lr", "3e-4", "--max_steps=500", "--seed", "7", "--eval_interval", "20", "$(x)"];
        let tuned = tuned(SOURCE, &given);
        assert_eq!(tuned.launch()[..3], ["env", "-C", "/home/me"]);
        assert_eq!(
            line(&tuned, 11),
            "data/x --batch_size=$(settings.batchPerGpu) --lr 3e-4 --max_steps=$(launch.steps:-500) --seed=$(seed) \
             --eval_interval=$(launch.evalSteps:-20) $$(x) --out_dir=$(checkpoint.dir) $(settings.loaderWorkers:+\
             --num_workers=$(settings.loaderWorkers)) $(settings.precision=bf16:+--dtype=bfloat16) \
             $(settings.compile=Fuse:+--compile)"
        );
        assert_eq!(tuned.settings, BTreeMap::from([(BATCH.to_owned(), 16)]));
        assert_eq!((tuned.seed, tuned.length, tuned.has_evaluation), (Some(7), (true, false), true));
        assert_eq!(tuned.own(), [&["python3", "train.py"], &given[..]].concat());
    }

    #[test]
    fn what_the_user_has_switched_on_is_no_phase() {
        let tuned = tuned(
            SOURCE,
            &["--compile", "--dtype", "bfloat16", "--resume", "a.pt", "--num_workers", "2", "--out_dir", "a.pt"],
        );
        let fixed: Vec<&str> = tuned.fixed.keys().map(String::as_str).collect();
        assert_eq!(fixed, ["compile", "precision"]);
        let launch = line(&tuned, 11);
        assert!(
            launch.starts_with(
                "--compile --dtype bfloat16 --resume a.pt --num_workers=$(settings.loaderWorkers) --out_dir a.pt "
            ),
            "{launch}"
        );
        assert!(!launch.contains("bf16") && !launch.contains("Fuse"), "{launch}");
        assert_eq!(tuned.settings["loaderWorkers"], 2);
    }

    #[test]
    fn a_script_that_counts_anew_is_ended_by_its_measurement() {
        let mut tuned = tuned(SOURCE, &["x", "--max_steps", "500"]);
        tuned.lengthen();
        let steps = "$(launch.kind=Quality:+--max_steps=$(launch.steps)) $(launch.kind=Train:+--max_steps=$(launch.steps)) \
                     $(launch.kind=Measure:+--max_steps=1000000)";
        assert!(line(&tuned, 12).starts_with(steps), "{}", line(&tuned, 12));
        assert_eq!(tuned.own()[2..], ["x", "--max_steps", "500"]);
    }

    #[test]
    fn a_script_without_options_is_started_as_it_is() {
        let tuned = tuned("print(1)\n", &["a", "--verbose"]);
        assert_eq!(line(&tuned, 11), "a --verbose");
        assert!(tuned.settings.is_empty() && tuned.length == (false, false));
    }

    #[test]
    fn arguments_of_hugging_face_are_known_by_their_names() {
        let source = "parser = HfArgumentParser((TrainingArguments,))\n";
        let tuned = tuned(source, &["--per_device_train_batch_size", "4", "--bf16", "True", "--do_train"]);
        let launch = line(&tuned, 11);
        assert!(
            launch.starts_with("--per_device_train_batch_size=$(settings.batchPerGpu) --bf16 True --do_train "),
            "{launch}"
        );
        assert!(launch.contains("--max_steps=$(launch.steps:--1)") && !launch.contains("fp16"), "{launch}");
        assert_eq!(tuned.settings[BATCH], 4);
    }

    #[test]
    fn the_changed_command_differs_from_the_users_in_what_was_accepted() {
        let tuned = tuned(SOURCE, &["data", "-b", "16", "--lr=0.2", "--max_steps", "500"]);
        let job: TrainingJob = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
            "workload": {"command": tuned.launch(), "monitor": {"training": r"(?<step>\d+)"}},
            "trainer": {"gpusPerReplica": 0}, "settings": {"batchPerGpu": 16}}}))
        .unwrap();
        let with = |settings: serde_json::Value| {
            let accepted = serde_json::from_value(settings).unwrap();
            changed(&tuned.parts, &job, &accepted).unwrap().join(" ")
        };
        assert_eq!(with(json!({"batchPerGpu": 16})), "python3 train.py data -b 16 --lr=0.2 --max_steps 500");
        assert_eq!(
            with(json!({"batchPerGpu": 32, "compile": "Fuse", "loaderWorkers": 4})),
            "python3 train.py data --batch_size=32 --lr=0.2 --max_steps 500 --num_workers=4 --compile"
        );
    }
}
