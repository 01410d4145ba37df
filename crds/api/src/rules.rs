//! Validation rules of the CRD: what the API server refuses by itself, in CEL, with no webhook.
//!
//! Each rule is the CEL form of a check in [`crate::validate()`], which also knows what CEL cannot say. Tests run every
//! rule through a CEL interpreter and hold both against the same manifests. Rules see objects after defaulting, and only
//! objects that keep the schema. Functions used: CEL's standard ones, and `indexOf` of Kubernetes' list library.

use crate::bounds::{self, SETTINGS};
use serde_json::{Value, json};

/// Settings that change what is computed, whatever their value: an `Equivalent` phase may not touch them.
pub(crate) const CHANGES_NUMERICS: [&str; 9] = [
    "precision",
    "lossFrequency",
    "querySamples",
    "learningRate",
    "warmupSteps",
    "weightDecay",
    "ema",
    "gradientClip",
    "weightQuantization",
];

/// Most phases of a job.
pub(crate) const MAX_PHASES: usize = 50;

/// Longest name of a job: the pods of its attempts are named `<job>-<attempt>-<pod>`, and a host name has 63 characters.
pub(crate) const MAX_JOB_NAME: usize = 52;

/// One rule at one place of the schema.
struct Rule {
    /// Path of the schema, `[]` for items.
    at: String,
    /// CEL; true when all is well.
    rule: String,
    /// What is wrong: field, value, remedy.
    message: Message,
}

/// What a refusal says.
enum Message {
    /// CEL that makes the text, with the value in it.
    Expression(String),
    /// A text. For values whose length the API server cannot bound (numbers as text, elements that were searched for): it
    /// refuses an expression that may cost too much.
    Text(&'static str),
}

fn rule(at: &str, rule: impl Into<String>, message: impl Into<String>) -> Rule {
    Rule { at: at.to_owned(), rule: rule.into(), message: Message::Expression(message.into()) }
}

fn plain(at: &str, rule: impl Into<String>, message: &'static str) -> Rule {
    Rule { at: at.to_owned(), rule: rule.into(), message: Message::Text(message) }
}

/// Puts the rules into the schema of a whole `TrainingJob`.
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

/// CEL: whether the patch `self.settings` names anything.
fn patches(settings: &Value) -> String {
    let names = settings["properties"].as_object().into_iter().flat_map(|p| p.keys());
    let mut names: Vec<_> = names.map(|name| format!("has(self.settings.{name})")).collect();
    names.sort();
    names.join(" || ")
}

fn all(patches: &str) -> Vec<Rule> {
    let mut rules = vec![rule(
        "",
        format!("size(self.metadata.name) <= {MAX_JOB_NAME} && !self.metadata.name.contains('.')"),
        format!(
            "'metadata.name: ' + self.metadata.name + ' is longer than {MAX_JOB_NAME} characters or has a dot: pods are \
             named after it; choose a shorter name of lower-case letters, digits and -'"
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
            "'gpuResource: cannot change from ' + oldSelf.gpuResource + ' to ' + self.gpuResource + ': evidence from other \
             devices does not carry over; make a new job'",
        ),
        plain(
            "spec.analysis",
            "self.minPairs <= self.maxPairs",
            "minPairs: is more than maxPairs: lower minPairs (3 unless set) or raise maxPairs (at most 7)",
        ),
        plain(
            "spec.analysis",
            "!(has(self.qualityItems) && has(self.qualityEpochs))",
            "qualityItems and qualityEpochs are both set: keep one of them",
        ),
        plain(
            "spec.cost",
            "!(has(self.gpuHour) && has(self.machineHour))",
            "gpuHour and machineHour are both set: keep one of them",
        ),
        rule(
            "spec.gates.validationMetrics[]",
            "has(self.maxRelativeRegression) || has(self.maxRegression) || has(self.min) || has(self.max)",
            "'name: ' + self.name + ' has no bound: set maxRelativeRegression, maxRegression, min or max'",
        ),
        plain(
            "spec.gates.validationMetrics[]",
            "!has(self.min) || !has(self.max) || double(self.min) <= double(self.max)",
            "min: is above max, so no value passes: lower min or raise max",
        ),
        plain("spec.train", "!(has(self.items) && has(self.epochs))", "items and epochs are both set: keep one of them"),
        rule(
            "spec.train.checkpoint",
            "!has(self.storage) || self.storage.matches('^(pvc://[^/]+|s3://[^/]+|gs://[^/]+|file:///)')",
            "'storage: \"' + self.storage + '\" is no storage: write pvc://claim/dir, s3://bucket/dir, gs://bucket/dir or \
             file:///dir'",
        ),
        plain(
            "spec.search",
            "size(self) == 0",
            "search: is not available yet: remove it, and set the hyperparameters in settings",
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
            "'args: ' + self.args[0] + ' has no command to go to: set command, or remove args'",
        ),
        rule(
            at,
            "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
            "'name: ' + (has(self.name) ? self.name : '(none)') + ' differs from what the job began with: a job trains one \
             workload; make a new job'",
        ),
        rule(
            at,
            "has(self.command) == has(oldSelf.command) && (!has(self.command) || self.command == oldSelf.command)",
            "'command: it differs from what the job began with: a job trains one workload; make a new job'",
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
            "requires: an entry is no earlier phase: name phases that come before it in the list, or move them up",
        ),
        plain(
            at,
            "self.all(p, !has(p.conflictsWith) || p.conflictsWith.all(r, r != p.name && self.exists(q, q.name == r) && \
             !(has(p.requires) && r in p.requires)))",
            "conflictsWith: an entry is no other phase of this job, or is in requires too: correct or remove it",
        ),
        plain(
            at,
            "self.all(p, p.role != 'Enabler' || self.exists(q, has(q.requires) && p.name in q.requires))",
            "role: an Enabler is kept only for a phase that requires it, and none does: add it to requires of a later phase, \
             or make it an Optimization",
        ),
    ];
    let touched = |name: &str| format!("has(self.settings.{name})");
    let in_fallback = |name: &str| format!("has(f.settings.{name})");
    let any = |with: &dyn Fn(&str) -> String| CHANGES_NUMERICS.iter().map(|n| with(n)).collect::<Vec<_>>().join(" || ");
    rules.extend([
        rule(
            "spec.phases[]",
            "self.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
            "'name: \"' + self.name + '\" is not a name: use lower-case letters, digits and -, at most 63'",
        ),
        rule(
            "spec.phases[]",
            format!("has(self.pin) || {patches}"),
            "'settings of ' + self.name + ': the phase changes nothing: name at least one setting, or remove the phase'",
        ),
        rule(
            "spec.phases[]",
            format!(
                "self.numerics != 'Equivalent' || !({} || (has(self.fallbacks) && self.fallbacks.exists(f, {})))",
                any(&touched),
                any(&in_fallback)
            ),
            format!(
                "'numerics of ' + self.name + ': Equivalent does not go with a patch of {}, which change what is computed: \
                 write numerics: Changed, so that the quality gate is checked'",
                CHANGES_NUMERICS.join(", ")
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
                "nccl: a name does not begin with NCCL_, so it is no variable of NCCL: correct or remove it",
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
            format!("self.phases.all(p, {uneven})"),
            "phases: a settings.globalBatch is not a multiple of batchPerGpu x ranks (replicas x gpusPerReplica): choose one \
             that is",
        ),
        plain(
            "spec",
            "has(self.gates.validationLossDelta) || has(self.gates.validationLossWithin) || (has(self.gates.validationMetrics) && size(self.gates.validationMetrics) > \
             0) || !self.phases.exists(p, p.numerics == 'Changed' && (!has(p.pin) || p.pin == 'DryRun'))",
            "phases: numerics: Changed needs a quality gate: set gates.validationLossDelta, gates.validationLossWithin or \
             gates.validationMetrics",
        ),
    ]);
    rules
}
