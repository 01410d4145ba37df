//! Validation rules of the CRD: CEL expressions that the API server evaluates, without a webhook.
//!
//! Each rule is the CEL form of a check in [`crate::validate()`], which also has checks that CEL cannot express. Tests
//! run every rule in a CEL interpreter and compare both on the same manifests. Rules see objects after defaulting,
//! which fills no items of lists, and only objects that conform to the schema. Functions used: CEL's standard ones, and
//! `indexOf` of Kubernetes' list library.

use crate::bounds::{self, SETTINGS};
use pawl_contract::settings::{Numerics, Settings};
use serde_json::{Value, json};

/// Settings that change the computation, whatever their value: an `Equivalent` phase must not set them.
pub(crate) fn changing_numerics() -> impl Iterator<Item = &'static str> {
    let changing = Settings::table().iter().filter(|row| row.numerics == Numerics::Changes);
    changing.map(|row| row.name.as_str())
}

/// What of the settings determines the model beyond rounding errors, for `world` ranks: equal values train equal
/// models.
///
/// ```
/// let numerics = |json| pawl_api::numerics(&serde_json::from_value(json).unwrap(), 1);
/// let plain = numerics(serde_json::json!({"batchPerGpu": 8}));
/// assert_eq!(numerics(serde_json::json!({"batchPerGpu": 4, "accumulationSteps": 2, "compile": "Graph"})), plain);
/// assert_ne!(numerics(serde_json::json!({"batchPerGpu": 8, "learningRate": "0.1"})), plain);
/// ```
pub fn numerics(settings: &Settings, world: u32) -> Value {
    let all = serde_json::to_value(settings).unwrap_or_default();
    let chosen = changing_numerics().chain(["workload"]);
    let mut numerics: serde_json::Map<String, Value> =
        chosen.filter_map(|name| Some((name.to_owned(), all.get(name)?.clone()))).collect();
    numerics.insert("itemsPerStep".to_owned(), json!(settings.items_per_step(world).ok()));
    Value::Object(numerics)
}

/// Most phases of a job.
pub(crate) const MAX_PHASES: usize = 50;

/// Longest name of a job: the pods of its attempts are named `<job>-<attempt>-<pod>`, and a host name has 63
/// characters.
pub(crate) const MAX_JOB_NAME: usize = 52;

/// One rule at one place of the schema.
struct Rule {
    /// Path of the schema, `[]` for items.
    at: String,
    /// The CEL expression; true for a valid object.
    rule: String,
    /// The error message: field, value and remedy.
    message: Message,
}

/// The error message of a violated rule.
enum Message {
    /// A CEL expression of the text, which includes the value.
    Expression(String),
    /// A constant text, for values whose length the API server cannot bound (numbers as strings, results of a search):
    /// it rejects an expression whose estimated cost exceeds its budget.
    Text(&'static str),
}

fn rule(at: &str, rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule { at: at.to_owned(), rule: rule.into(), message: Message::Expression(message.into()) }
}

fn plain(at: &str, rule: impl Into<String>, message: &'static str) -> Rule {
    Rule { at: at.to_owned(), rule: rule.into(), message: Message::Text(message) }
}

/// Adds the rules to the schema of a whole `TrainingJob`.
pub(crate) fn attach(schema: &mut Value) {
    let patches = patches(&schema["properties"]["spec"]["properties"]["settings"]);
    for Rule { at, rule, message } in all(&patches) {
        let place = at.split('.').filter(|step| !step.is_empty()).fold(&mut *schema, |schema, step| {
            let (name, items) = step.split_once("[]").map_or((step, false), |(name, _)| (name, true));
            let property = &mut schema["properties"][name];
            if items { &mut property["items"] } else { property }
        });
        let rules = place["x-kubernetes-validations"].take();
        let mut rules = rules.as_array().cloned().unwrap_or_default();
        rules.push(match message {
            Message::Expression(message) => json!({"rule": rule, "messageExpression": message}),
            Message::Text(message) => json!({"rule": rule, "message": message}),
        });
        place["x-kubernetes-validations"] = Value::Array(rules);
    }
}

/// A CEL expression: whether the patch `self.settings` sets any field.
fn patches(settings: &Value) -> String {
    let names = settings["properties"].as_object().into_iter().flat_map(|p| p.keys());
    let mut names: Vec<_> = names.map(|name| format!("has(self.settings.{name})")).collect();
    names.sort();
    names.join(" || ")
}

#[expect(clippy::too_many_lines, reason = "a table of rules")]
fn all(patches: &str) -> Vec<Rule> {
    let mut rules = vec![rule(
        "",
        format!("size(self.metadata.name) <= {MAX_JOB_NAME} && !self.metadata.name.contains('.')"),
        format!(
            "'metadata.name: ' + self.metadata.name + ' is longer than {MAX_JOB_NAME} characters or contains a dot: pods \
             are named after it; choose a shorter name of lower-case letters, digits and -'"
        ),
    )];
    rules.extend(bounds::all().map(|bound| {
        let field = bound.field;
        let text = format!("'{field}: \"' + self.{field} + '\" is not {}: {}'", bound.words(), bound.remedy);
        rule(bound.at, bound.cel(), text)
    }));
    rules.extend(workload());
    rules.extend(phases(patches));
    rules.extend(settings());
    rules.extend([
        rule(
            "spec.trainer",
            "self.gpuResource == oldSelf.gpuResource",
            "'gpuResource: is immutable, cannot change from ' + oldSelf.gpuResource + ' to ' + self.gpuResource + ': \
             measurements on different devices are not comparable; create a new TrainingJob'",
        ),
        plain(
            "spec.analysis",
            "self.minPairs <= self.maxPairs",
            "minPairs: is greater than maxPairs: lower minPairs (default 3) or raise maxPairs (at most 7)",
        ),
        plain(
            "spec.analysis",
            "!(has(self.qualityItems) && has(self.qualityEpochs))",
            "qualityItems and qualityEpochs are both set: keep one of them",
        ),
        plain(
            "spec.analysis",
            "!has(self.qualityLooks) || self.qualityLooks == 1 || !has(self.qualityEpochs)",
            "qualityLooks: is in parts of qualityItems, which is not set: set qualityItems in place of qualityEpochs",
        ),
        plain(
            "spec",
            "!has(self.analysis.qualityLooks) || self.analysis.qualityLooks == 1 || size(self.seeds) != 1",
            "analysis.qualityLooks: needs several seeds: with one there is no interval, and no result is clear before the last \
             look: add two seeds, such as seeds: [42, 43, 44]",
        ),
        plain(
            "spec",
            "!has(self.analysis.budgetPercent) || type(self.analysis.budgetPercent) != int || has(self.train.items) || \
             has(self.train.epochs)",
            "analysis.budgetPercent: needs a training: set train.items or train.epochs",
        ),
        plain(
            "spec.analysis",
            "!has(self.budgetPercent) || (type(self.budgetPercent) == int ? self.budgetPercent >= 1 && \
             self.budgetPercent <= 1000 : self.budgetPercent == 'Unlimited')",
            "budgetPercent: is neither from 1 to 1000 nor Unlimited: write an integer such as 10, or Unlimited",
        ),
        plain(
            "spec.cost",
            "!(has(self.gpuHour) && has(self.machineHour))",
            "gpuHour and machineHour are both set: keep one of them",
        ),
        rule(
            "spec.gates.validationMetrics[]",
            "has(self.maxRelativeRegression) || has(self.maxRelativeDifference) || has(self.maxRegression) || has(self.min) || has(self.max)",
            "'name: ' + self.name + ' has no bound: set maxRelativeRegression, maxRelativeDifference, maxRegression, min or max'",
        ),
        plain(
            "spec.gates.validationMetrics[]",
            "!has(self.min) || !has(self.max) || double(self.min) <= double(self.max)",
            "min: is above max, so no value passes: lower min or raise max",
        ),
        plain("spec.train", "!(has(self.items) && has(self.epochs))", "items and epochs are both set: keep one of them"),
        rule(
            "spec.train.checkpoint",
            "!has(self.storage) || self.storage.matches('^((pvc|s3|gs|az|abfss)://[^/]+|file:///|None$)')",
            "'storage: \"' + self.storage + '\" is not a storage URL: write pvc://claim/dir, s3://bucket/dir, gs://bucket/dir, \
             az://container/dir, file:///dir or None'",
        ),
        plain(
            "spec.search[]",
            "has(self.epochs) != has(self.items)",
            "epochs and items: exactly one must be set: the length of a complete trial",
        ),
        plain(
            "spec.search[]",
            "!has(self.parallelism) || self.parallelism <= self.trials",
            "parallelism: is greater than the number of trials: use at most as many as trials",
        ),
        plain(
            "spec.search[].parameters[]",
            "has(self.values) && size(self.values) > 0 ? !(has(self.min) || has(self.max) || has(self.step)) : has(self.min) && \
             has(self.max) && double(self.min) < double(self.max) && (!has(self.step) || double(self.step) > 0.0) && \
             (!has(self.scale) || self.scale != 'Log' || double(self.min) > 0.0)",
            "parameters: each needs either values, or min below max, with a step above 0 if any and a min above 0 for scale Log",
        ),
    ]);
    rules
}

fn workload() -> [Rule; 4] {
    let at = "spec.workload";
    [
        rule(
            at,
            "has(self.name) != (has(self.command) && size(self.command) > 0)",
            "has(self.name) ? 'name: ' + self.name + ' and command: ' + self.command[0] + ' are both set: keep one of them' \
             : 'neither name nor command is set: name a built-in workload such as ups, or give the command of your image'",
        ),
        rule(
            at,
            "!has(self.args) || size(self.args) == 0 || (has(self.command) && size(self.command) > 0)",
            "'args: ' + self.args[0] + ' is set without command: set command, or remove args'",
        ),
        rule(
            at,
            "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
            "'name: ' + (has(self.name) ? self.name : '(none)') + ' is immutable after the job is created: a job trains one \
             workload; create a new TrainingJob'",
        ),
        rule(
            at,
            "has(self.command) == has(oldSelf.command) && (!has(self.command) || self.command == oldSelf.command)",
            "'command: is immutable after the job is created: a job trains one workload; create a new TrainingJob'",
        ),
    ]
}

fn phases(patches: &str) -> Vec<Rule> {
    let at = "spec.phases";
    let places = (0..MAX_PHASES).map(|i| i.to_string()).collect::<Vec<_>>().join(", ");
    let earlier = format!("[{places}].exists(j, j < i && self[j].name == r)");
    let mut rules = vec![
        plain(
            at,
            format!(
                "[{places}].all(i, i >= size(self) || !has(self[i].requires) || self[i].requires.all(r, {earlier}))"
            ),
            "requires: an entry is not an earlier phase: name phases that come before it in the list, or move them up",
        ),
        plain(
            at,
            "self.all(p, !has(p.conflictsWith) || p.conflictsWith.all(r, r != p.name && self.exists(q, q.name == r) && \
             !(has(p.requires) && r in p.requires)))",
            "conflictsWith: an entry is not another phase of this job, or is also in requires: correct or remove it",
        ),
        plain(
            at,
            "self.all(p, !has(p.role) || p.role != 'Enabler' || self.exists(q, has(q.requires) && p.name in q.requires))",
            "role: an Enabler must be required by a later phase, and no phase requires it: add it to requires of a later \
             phase, or set role to Optimization",
        ),
    ];
    let touched = |name: &str| format!("has(self.settings.{name})");
    let in_fallback = |name: &str| format!("has(f.settings.{name})");
    let any = |with: &dyn Fn(&str) -> String| changing_numerics().map(with).collect::<Vec<_>>().join(" || ");
    rules.extend([
        rule(
            "spec.phases[]",
            "self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "'name: \"' + self.name + '\" is not a valid phase name: use lower-case letters, digits and -, at most 63 characters'",
        ),
        rule(
            "spec.phases[]",
            format!("has(self.pin) || has(self.settings) && ({patches})"),
            "'settings of ' + self.name + ': the patch is empty: set at least one setting, or remove the phase'",
        ),
        rule(
            "spec.phases[]",
            format!(
                "has(self.numerics) && self.numerics != 'Equivalent' || !(has(self.settings) && ({}) || (has(self.fallbacks) && self.fallbacks.exists(f, {})))",
                any(&touched),
                any(&in_fallback)
            ),
            format!(
                "'numerics of ' + self.name + ': Equivalent cannot be combined with a patch of {}, which change the \
                 computation: set numerics to Changed, so that the quality gate is checked'",
                changing_numerics().collect::<Vec<_>>().join(", ")
            ),
        ),
    ]);
    rules
}

fn settings() -> Vec<Rule> {
    let mut rules: Vec<_> = SETTINGS
        .iter()
        .map(|at| {
            plain(
                at,
                "!has(self.nccl) || self.nccl.all(k, k.startsWith('NCCL_'))",
                "nccl: a name does not begin with NCCL_, so it is not an NCCL variable: correct or remove it",
            )
        })
        .collect();
    let ranks = "(self.trainer.replicas * (self.trainer.gpusPerReplica > 0 ? self.trainer.gpusPerReplica : 1))";
    let whole = |s: &str| {
        format!("!has({s}.globalBatch) || !has({s}.batchPerGpu) || {s}.globalBatch % ({s}.batchPerGpu * {ranks}) == 0")
    };
    let uneven = whole("p.settings");
    rules.extend([
        plain(
            "spec",
            whole("self.settings"),
            "settings.globalBatch: is not a multiple of batchPerGpu x ranks (replicas x gpusPerReplica): choose one that is",
        ),
        plain(
            "spec",
            format!("self.phases.all(p, !has(p.settings) || {uneven})"),
            "phases: a settings.globalBatch is not a multiple of batchPerGpu x ranks (replicas x gpusPerReplica): choose one \
             that is",
        ),
        plain(
            "spec",
            "has(self.gates.validationLossDelta) || has(self.gates.validationLossWithin) || (has(self.gates.validationMetrics) && size(self.gates.validationMetrics) > \
             0) || !self.phases.exists(p, has(p.numerics) && p.numerics == 'Changed' && (!has(p.pin) || p.pin == 'DryRun'))",
            "phases: numerics: Changed requires a quality gate: set gates.validationLossDelta, gates.validationLossWithin or \
             gates.validationMetrics",
        ),
    ]);
    rules
}
