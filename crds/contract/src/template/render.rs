//! Replaces placeholders by the values of a launch.

use super::parse::{Form, Name, Piece, TemplateError, parse};
use crate::plan::{LaunchKind, LaunchPlan};
use crate::settings::{BatchMismatch, Settings};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Directories of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Working directory of the launch.
    pub launch: String,
    /// Directory for checkpoints; empty where the storage is not a directory.
    pub checkpoints: String,
    /// Newest entry of that directory.
    pub latest_checkpoint: Option<String>,
    /// Directory for generated data.
    pub data: String,
}

/// The values by which placeholders are replaced.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    /// The launch.
    pub plan: &'a LaunchPlan,
    /// Ranks of the gang.
    pub world_size: u32,
    /// Directories of the launch.
    pub places: &'a Places,
    /// Value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("plan", self.plan).field("places", self.places).finish_non_exhaustive()
    }
}

/// A command without placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// The settings that placeholders have consumed, such as `compile` and `workload.width`.
    pub consumed: BTreeSet<String>,
    /// Environment variables without a value, whose placeholders are unchanged.
    pub unset: BTreeSet<String>,
    /// Whether its steps or its items are in it: the program knows how long the launch is.
    pub is_given_length: bool,
}

impl Rendered {
    /// The settings of `settings` that no placeholder has consumed: they have no effect, unless the script reads them
    /// itself. The agent itself passes `nccl` on.
    pub fn unused(&self, settings: &Settings) -> Vec<String> {
        given(settings).into_keys().filter(|name| !self.consumed.contains(name)).collect()
    }
}

/// Error: a placeholder cannot be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderError {
    /// It is not valid.
    Template(TemplateError),
    /// It has no value.
    NoValue(Name),
    /// An environment variable is not set.
    Unset(String),
    /// `checkpoint.dir` needs storage that is a directory.
    NoDirectory,
    /// The batch sizes contradict each other.
    Batch(BatchMismatch),
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Template(error) => error.fmt(f),
            Self::NoValue(name) => {
                let written = name.written();
                let set = match name {
                    Name::Setting(_) | Name::Workload(_) => format!("set {written}, or "),
                    _ => String::new(),
                };
                write!(
                    f,
                    "$({written}) has no value in this launch: {set}write $({written}:-DEFAULT) or $({written}:+TEXT)"
                )
            }
            Self::Unset(name) => write!(
                f,
                "$({name}): the environment variable {name} is not set: set it in trainer.podTemplate.env or in the shell of \
                 `pawl run`, or write $$({name}) for the text itself"
            ),
            Self::NoDirectory => write!(
                f,
                "$(checkpoint.dir) needs storage that is a directory: set train.checkpoint.storage to pvc://claim/dir or \
                 file:///dir"
            ),
            Self::Batch(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RenderError {}

impl From<TemplateError> for RenderError {
    fn from(error: TemplateError) -> Self {
        Self::Template(error)
    }
}

impl From<BatchMismatch> for RenderError {
    fn from(error: BatchMismatch) -> Self {
        Self::Batch(error)
    }
}

/// Replaces the placeholders of `command` and of the values of `env`.
///
/// ```
/// use pawl_contract::template::{Places, Values, render};
///
/// let plan = serde_json::from_value(serde_json::json!({
///     "contract": 1, "job": "toy", "attempt": "toy-1", "launch": "l", "kind": "Measure", "workload": {},
///     "settings": {"batchPerGpu": 8}, "seed": 42, "budget": {"warmupSteps": 20, "windowSteps": 50},
///     "hangTimeoutSeconds": 300.0,
/// }))?;
/// let (places, variable) = (Places::default(), |_: &str| None);
/// let values = Values { plan: &plan, world_size: 1, places: &places, variable: &variable };
/// let command = ["train", "--batch=$(settings.batchPerGpu)", "$(settings.compile=Graph:+--compile)", "$(launch.steps)"];
/// let rendered = render(&command.map(str::to_owned), &Default::default(), &values)?;
/// assert_eq!(rendered.command, ["train", "--batch=8", "70"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`RenderError`]: a placeholder is not valid, or has no value and no default.
pub fn render(
    command: &[String],
    env: &BTreeMap<String, String>,
    values: &Values<'_>,
) -> Result<Rendered, RenderError> {
    let mut renderer = Renderer {
        values,
        env,
        open: Vec::new(),
        given: given(&values.plan.settings),
        read: BTreeSet::new(),
        compared: BTreeSet::new(),
        unset: BTreeSet::new(),
        is_given_length: false,
    };
    let mut rendered = Rendered::default();
    for argument in command {
        let pieces = parse(argument)?;
        let conditional = |piece: &Piece| matches!(piece, Piece::Placeholder(_, Form::If { .. }));
        let optional = !pieces.is_empty() && pieces.iter().all(conditional);
        let text = renderer.text(&pieces)?;
        if !(optional && text.is_empty()) {
            rendered.command.push(text);
        }
    }
    for name in env.keys() {
        rendered.env.extend(renderer.variable(name)?.map(|value| (name.clone(), value)));
    }
    rendered.unset = std::mem::take(&mut renderer.unset);
    rendered.is_given_length = renderer.is_given_length;
    rendered.consumed = renderer.consumed();
    Ok(rendered)
}

/// The settings that are given, by name; those of the workload as `workload.KEY`.
fn given(settings: &Settings) -> BTreeMap<String, Value> {
    let Ok(Value::Object(mut all)) = serde_json::to_value(settings) else { return BTreeMap::new() };
    all.remove("nccl");
    let workload = all.remove("workload");
    let workload = workload.as_ref().and_then(Value::as_object).into_iter().flatten();
    let workload = workload.map(|(key, value)| (format!("workload.{key}"), value.clone()));
    workload.chain(all).collect()
}

/// Whether `$(NAME)` has a value with `settings`, if it names a setting.
pub fn has_value(name: &Name, settings: &Settings) -> bool {
    setting(name).is_none_or(|name| {
        let derived = name == "accumulationSteps" && settings.global_batch.is_some();
        derived || given(settings).contains_key(&name) || default_of(&name).is_some()
    })
}

/// The default that the contract gives a setting which the manifest does not give. A command that names the batch size
/// has no default of it: one item per step is never what it means.
fn default_of(name: &str) -> Option<&'static Value> {
    Settings::row(name).filter(|_| name != "batchPerGpu")?.scalar_default()
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Whether a value switches something on.
fn is_on(value: &Value) -> bool {
    !(value.is_null()
        || *value == Value::Bool(false)
        || value.as_str().is_some_and(|text| text == "None" || text.is_empty()))
}

/// Replaces the environment variables in `text`, as Kubernetes does. One that is not set is unchanged, and so is a text
/// with placeholders, which have values in a launch only.
///
/// ```
/// use pawl_contract::template::expand;
///
/// let variable = |name: &str| (name == "VOLUME").then(|| "/data".to_owned());
/// assert_eq!(expand("$(VOLUME)/images of $(WHOM)", &variable), "/data/images of $(WHOM)");
/// assert_eq!(expand("$(VOLUME)/$(settings.batchPerGpu)", &variable), "$(VOLUME)/$(settings.batchPerGpu)");
/// ```
pub fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let Ok(pieces) = parse(text) else { return text.to_owned() };
    let replaced = pieces.iter().map(|piece| match piece {
        Piece::Text(plain) => Some(plain.clone()),
        Piece::Variable(name) => Some(variable(name).unwrap_or_else(|| format!("$({name})"))),
        Piece::Placeholder(..) => None,
    });
    replaced.collect::<Option<String>>().unwrap_or_else(|| text.to_owned())
}

struct Renderer<'a> {
    values: &'a Values<'a>,
    /// Variables whose values have placeholders.
    env: &'a BTreeMap<String, String>,
    /// Those of `env` that are being rendered.
    open: Vec<String>,
    given: BTreeMap<String, Value>,
    /// Settings whose value was used.
    read: BTreeSet<String>,
    /// Settings that were compared with another value than theirs.
    compared: BTreeSet<String>,
    /// Variables without a value.
    unset: BTreeSet<String>,
    /// As [`Rendered::is_given_length`].
    is_given_length: bool,
}

impl Renderer<'_> {
    fn text(&mut self, pieces: &[Piece]) -> Result<String, RenderError> {
        let mut text = String::new();
        for piece in pieces {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Variable(name) => {
                    let value = self.variable(name)?;
                    if value.is_none() {
                        self.unset.insert(name.clone());
                    }
                    text.push_str(&value.unwrap_or_else(|| format!("$({name})")));
                }
                Piece::Placeholder(name, form) => text.push_str(&self.placeholder(name, form)?),
            }
        }
        Ok(text)
    }

    fn variable(&mut self, name: &str) -> Result<Option<String>, RenderError> {
        match self.env.get(name) {
            // One that refers to itself extends the one outside, as in PATH=$(PATH):/opt.
            Some(template) if !self.open.iter().any(|open| open == name) => {
                self.open.push(name.to_owned());
                let text = self.text(&parse(template)?)?;
                self.open.pop();
                Ok(Some(text))
            }
            _ => Ok((self.values.variable)(name)),
        }
    }

    fn placeholder(&mut self, name: &Name, form: &Form) -> Result<String, RenderError> {
        let value = self.given(name)?;
        self.is_given_length |= value.is_some() && matches!(name, Name::Steps | Name::Items);
        match form {
            Form::Value => {
                self.note_read(name);
                let value = value.or_else(|| setting(name).and_then(|name| default_of(&name).cloned()));
                value.as_ref().map(text_of).ok_or_else(|| RenderError::NoValue(name.clone()))
            }
            Form::Default(pieces) => {
                self.note_read(name);
                value.as_ref().map_or_else(|| self.text(pieces), |value| Ok(text_of(value)))
            }
            Form::If { equals: None, then } => {
                self.note_read(name);
                if value.as_ref().is_some_and(is_on) { self.text(then) } else { Ok(String::new()) }
            }
            Form::If { equals: Some(wanted), then } => {
                let value = value.or_else(|| setting(name).and_then(|name| default_of(&name).cloned()));
                if value.is_some_and(|value| text_of(&value) == *wanted) {
                    self.note_read(name);
                    return self.text(then);
                }
                self.compared.extend(setting(name));
                Ok(String::new())
            }
        }
    }

    fn note_read(&mut self, name: &Name) {
        self.read.extend(setting(name));
    }

    /// The value of `name` where there is one without a default.
    fn given(&self, name: &Name) -> Result<Option<Value>, RenderError> {
        let Values { plan, world_size, places, .. } = *self.values;
        let budget = &plan.budget;
        let window = || Some(budget.warmup_steps? + budget.window_steps?);
        let per_step = || plan.settings.items_per_step(world_size);
        // A preflight trains nothing.
        let nothing = || (plan.kind == LaunchKind::Preflight).then(|| Value::from(0));
        let policy = || plan.checkpoint.as_ref().filter(|_| plan.kind == LaunchKind::Train);
        Ok(match name {
            Name::Setting(setting) if setting == "accumulationSteps" && plan.settings.global_batch.is_some() => {
                Some(plan.settings.accumulation(world_size)?.into())
            }
            Name::Setting(setting) => self.given.get(setting).cloned(),
            Name::Workload(key) => self.given.get(&format!("workload.{key}")).cloned(),
            Name::Seed => Some(plan.seed.into()),
            Name::Job => Some(plan.job.as_str().into()),
            Name::Launch => Some(plan.launch.as_str().into()),
            Name::Kind => serde_json::to_value(plan.kind).ok(),
            Name::Steps => match (window(), budget.items) {
                (Some(steps), _) => Some(steps.into()),
                (None, Some(items)) => Some(items.div_ceil(per_step()?).into()),
                (None, None) => nothing(),
            },
            Name::Items => match (window(), budget.items) {
                (Some(steps), _) => Some((steps * per_step()?).into()),
                (None, items) => items.map(Value::from).or_else(nothing),
            },
            Name::Epochs => budget.epochs.filter(|_| budget.items.is_none()).map(Value::from),
            Name::EvalSteps => match (budget.eval_every_items, budget.items) {
                (Some(items), _) => Some((items / per_step()?).max(1).into()),
                // The model that was trained is judged, so that the end is the one time to evaluate.
                (None, Some(items)) if plan.kind == LaunchKind::Quality => Some(items.div_ceil(per_step()?).into()),
                (None, _) => None,
            },
            Name::Dir => Some(places.launch.as_str().into()),
            Name::CheckpointDir if places.checkpoints.is_empty() => return Err(RenderError::NoDirectory),
            Name::CheckpointDir => Some(places.checkpoints.as_str().into()),
            Name::CheckpointLatest => places.latest_checkpoint.as_deref().map(Value::from),
            Name::CheckpointEvery => policy().map(|policy| policy.every_seconds.into()),
            Name::CheckpointKeep => policy().map(|policy| policy.keep.into()),
            Name::DataDir => Some(places.data.as_str().into()),
        })
    }

    /// Settings that have been used, or whose value is the default and was compared with others.
    fn consumed(mut self) -> BTreeSet<String> {
        let at_default =
            |name: &String| self.given.get(name).is_some_and(|value| !is_on(value) || default_of(name) == Some(value));
        let compared: Vec<_> = self.compared.iter().filter(|name| at_default(name)).cloned().collect();
        self.read.extend(compared);
        // Each of them determines the accumulation.
        if self.read.contains("accumulationSteps") || self.read.contains("globalBatch") {
            self.read.insert("globalBatch".to_owned());
            if self.values.plan.settings.global_batch.is_some() {
                self.read.insert("accumulationSteps".to_owned());
            }
        }
        self.read
    }
}

/// The name of a setting as in [`Rendered::consumed`].
fn setting(name: &Name) -> Option<String> {
    match name {
        Name::Setting(setting) => Some(setting.clone()),
        Name::Workload(key) => Some(format!("workload.{key}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn plan(settings: Value, budget: Value) -> LaunchPlan {
        serde_json::from_value(json!({
            "contract": 1, "job": "toy", "attempt": "toy-1", "launch": "l-1", "kind": "Train", "workload": {},
            "settings": settings, "seed": 7, "budget": budget, "hangTimeoutSeconds": 1.0,
            "checkpoint": {"everySeconds": 60.0, "keep": 3, "resume": true},
        }))
        .unwrap()
    }

    fn rendered(plan: &LaunchPlan, command: &[&str]) -> Result<Rendered, RenderError> {
        let places = Places {
            launch: "/attempt/l-1".to_owned(),
            checkpoints: "/checkpoints".to_owned(),
            latest_checkpoint: None,
            data: "/data".to_owned(),
        };
        let variable = |name: &str| (name == "RANK").then(|| "1".to_owned());
        let command: Vec<_> = command.iter().map(|&word| word.to_owned()).collect();
        render(&command, &BTreeMap::new(), &Values { plan, world_size: 2, places: &places, variable: &variable })
    }

    #[test]
    fn a_quality_launch_evaluates_at_its_end() {
        let with = |kind, budget| LaunchPlan { kind, ..plan(json!({"batchPerGpu": 8}), budget) };
        let found = |plan: &LaunchPlan| rendered(plan, &["$(launch.evalSteps:-none)"]).unwrap().command[0].clone();
        let items = || json!({"items": 100});
        // 16 items in a step.
        assert_eq!(found(&with(LaunchKind::Quality, items())), "7");
        assert_eq!(found(&with(LaunchKind::Train, items())), "none");
        assert_eq!(found(&with(LaunchKind::Train, json!({"items": 100, "evalEveryItems": 40}))), "2");
        assert_eq!(found(&with(LaunchKind::Measure, json!({"warmupSteps": 2, "windowSteps": 8}))), "none");
        assert_eq!(found(&with(LaunchKind::Quality, json!({"epochs": 2}))), "none");
    }

    fn words(settings: Value, command: &[&str]) -> Vec<String> {
        rendered(&plan(settings, json!({"items": 100})), command).unwrap().command
    }

    #[test]
    fn values_defaults_and_conditions() {
        let settings = json!({"precision": "bf16", "batchPerGpu": 8, "loaderPinned": false, "learningRate": "1e-3",
            "workload": {"width": 64, "fast": true, "shape": [1, 2]}});
        for (template, expected) in [
            ("$(settings.batchPerGpu)", Some("8")),
            ("--lr=$(settings.learningRate)x", Some("--lr=1e-3x")),
            ("$(settings.workload.width)/$(settings.workload.shape)", Some("64/[1,2]")),
            ("$(settings.weightDecay:-0.1)", Some("0.1")),
            ("$(settings.loaderPrefetch)", Some("2")),
            ("$(settings.precision=bf16:+--bf16)", Some("--bf16")),
            ("$(settings.precision=fp16:+--fp16)", None),
            ("$(settings.precision=fp32:+float32)$(settings.precision=bf16:+bfloat16)", Some("bfloat16")),
            ("--x=$(settings.precision=fp16:+--fp16)", Some("--x=")),
            ("$(settings.loaderPinned:+--pin)", None),
            ("$(settings.workload.fast:+--fast)", Some("--fast")),
            ("$(settings.compile=None:+--eager)", Some("--eager")),
            ("$(settings.learningRate:+--lr=$(settings.learningRate))", Some("--lr=1e-3")),
            ("$(settings.gradientClip:+--clip=$(settings.gradientClip))", None),
            ("$(seed) $(job.name) $(launch.kind) $(RANK) $(HOME_OF_NOBODY)", Some("7 toy Train 1 $(HOME_OF_NOBODY)")),
            ("$$(seed)", Some("$(seed)")),
            ("$(checkpoint.dir) $(checkpoint.keep) $(data.dir)", Some("/checkpoints 3 /data")),
            ("$(checkpoint.latest:+--resume=$(checkpoint.latest))", None),
            // 100 items, 16 in a step of both ranks.
            ("$(launch.steps) of $(launch.items)", Some("7 of 100")),
            ("$(launch.epochs:--1)", Some("-1")),
            ("", Some("")),
        ] {
            let expected: Vec<_> = expected.into_iter().collect();
            assert_eq!(words(settings.clone(), &[template]), expected, "{template}");
        }
    }

    #[test]
    fn variables_may_refer_to_each_other() {
        let plan = plan(json!({"batchPerGpu": 8}), json!({}));
        let (places, variable) = (Places::default(), |name: &str| (name == "PATH").then(|| "/bin".to_owned()));
        let values = Values { plan: &plan, world_size: 1, places: &places, variable: &variable };
        let env = [("A", "$(B)/$(settings.batchPerGpu)"), ("B", "$(seed)$(NOWHERE)"), ("PATH", "$(PATH):/opt/$(seed)")];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect();
        let rendered = render(&["$(A)".to_owned()], &env, &values).unwrap();
        assert_eq!(rendered.command, ["7$(NOWHERE)/8"]);
        let values: Vec<_> = rendered.env.values().map(String::as_str).collect();
        assert_eq!(values, ["7$(NOWHERE)/8", "7$(NOWHERE)", "/bin:/opt/7"]);
        assert_eq!(rendered.unset.iter().collect::<Vec<_>>(), ["NOWHERE"]);
    }

    #[test]
    fn a_program_is_given_its_length_where_a_placeholder_of_it_has_a_value() {
        let plan_of = |budget| plan(json!({"batchPerGpu": 8}), budget);
        let measure = LaunchPlan { kind: LaunchKind::Measure, ..plan_of(json!({"warmupSteps": 2, "windowSteps": 8})) };
        let is_given = |plan: &LaunchPlan, text: &str| rendered(plan, &[text]).unwrap().is_given_length;
        assert!(is_given(&measure, "--steps=$(launch.steps)"));
        assert!(is_given(&measure, "$(launch.kind=Measure:+--items=$(launch.items))"));
        assert!(!is_given(&measure, "$(launch.kind=Train:+--steps=$(launch.steps))"));
        assert!(!is_given(&plan_of(json!({"epochs": 2})), "--steps=$(launch.steps:-500)"), "its own number");
    }

    #[test]
    fn a_preflight_has_no_steps() {
        let preflight = LaunchPlan { kind: LaunchKind::Preflight, ..plan(json!({"batchPerGpu": 8}), json!({})) };
        assert_eq!(rendered(&preflight, &["$(launch.steps) $(launch.items)"]).unwrap().command, ["0 0"]);
    }

    #[test]
    fn a_placeholder_without_a_value_is_an_error_with_a_remedy() {
        let plan = plan(json!({}), json!({"epochs": 2}));
        for name in ["settings.batchPerGpu", "settings.workload.width", "launch.steps", "checkpoint.latest"] {
            let error = rendered(&plan, &[&format!("$({name})")]).unwrap_err().to_string();
            assert!(error.contains(&format!("$({name}) has no value")) && error.contains(":-DEFAULT"), "{error}");
        }
        assert!(
            rendered(&plan, &["$(settings.workload.width)"]).unwrap_err().to_string().contains("set settings.workload")
        );
        assert_eq!(rendered(&plan, &["$(launch.epochs)"]).unwrap().command, ["2"]);
    }

    #[test]
    fn a_setting_without_a_placeholder_for_its_value_is_unused() {
        for (settings, command, unused) in [
            (json!({"compile": "Graph"}), "$(settings.compile=Graph:+--compile)", vec![]),
            (json!({"compile": "Fuse"}), "$(settings.compile=Graph:+--compile)", vec!["compile"]),
            (json!({"compile": "None"}), "$(settings.compile=Graph:+--compile)", vec![]),
            (json!({"loaderPinned": false}), "$(settings.loaderPinned:+--pin)", vec![]),
            (json!({"attention": "Flash", "workload": {"a": 1}}), "$(seed)", vec!["attention", "workload.a"]),
            (json!({"nccl": {"NCCL_ALGO": "Ring"}}), "", vec![]),
            (json!({"globalBatch": 32, "batchPerGpu": 8}), "$(settings.batchPerGpu)", vec!["globalBatch"]),
            (
                json!({"globalBatch": 32, "batchPerGpu": 8}),
                "$(settings.batchPerGpu) $(settings.accumulationSteps)",
                vec![],
            ),
        ] {
            let plan = plan(settings, json!({"items": 100}));
            assert_eq!(rendered(&plan, &[command]).unwrap().unused(&plan.settings), unused, "{command}");
        }
    }

    #[test]
    fn defaults_are_those_of_the_table_except_the_batch_size() {
        assert_eq!(default_of("compile"), Some(&json!("None")));
        assert_eq!(default_of("loaderPrefetch"), Some(&json!(2)));
        for name in ["batchPerGpu", "learningRate", "nccl", "workload.width"] {
            assert_eq!(default_of(name), None, "{name}");
        }
    }

    #[test]
    fn storage_that_is_no_directory_is_named() {
        let plan = plan(json!({}), json!({}));
        let values = Values { plan: &plan, world_size: 1, places: &Places::default(), variable: &|_| None };
        let error = render(&["$(checkpoint.dir)".to_owned()], &BTreeMap::new(), &values).unwrap_err();
        assert!(error.to_string().contains("train.checkpoint.storage"));
    }
}
