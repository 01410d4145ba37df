//! Validation of a job beyond its schema: the CRD's CEL rules, and checks that CEL cannot express.

mod batch;
mod effect;
mod nccl;
mod phases;
mod pods;
mod script;
mod search;

use crate::bounds::{self, NumberFormat};
use crate::duration::Span;
use crate::object::TrainingJob;
use crate::rules::MAX_JOB_NAME;
use crate::spec::{Gates, JudgingBudget, MetricGate, NO_STORAGE, TrainingJobSpec};
use pawl_contract::decimal::Decimal;
pub use pawl_contract::problem::Problem;
pub(crate) use pawl_contract::problem::quoted;
use serde_json::Value;

/// All validation errors of a job; empty for a valid job.
///
/// Assumes, but does not require, that the job conforms to the schema: it never panics.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}, "seeds": [42], "phases": [{"name": "compile", "settings": {"precision": "bf16"}}]},
/// }))?;
/// let problems = pawl_api::validate(&job);
/// assert_eq!(problems[0].field, "spec.phases[0].settings.precision");
/// assert_eq!(problems[0].remedy, "set numerics to Changed, so that the quality gate is checked");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn validate(job: &TrainingJob) -> Vec<Problem> {
    let mut problems: Vec<_> = name(job).into_iter().collect();
    problems.extend(workload(job));
    problems.extend(ranges(job));
    problems.extend(phases::check(&job.spec));
    problems.extend(batch::check(&job.spec));
    problems.extend(nccl::check(&job.spec));
    problems.extend(pods::check(&job.spec.trainer));
    problems.extend(script::check(&job.spec));
    problems.extend(search::check(&job.spec));
    problems.extend(rest(job));
    problems
}

/// What is valid, but is not what was meant: phases that cannot have an effect.
///
/// ```
/// let job: pawl_api::TrainingJob = serde_json::from_value(serde_json::json!({
///     "metadata": {"name": "toy"},
///     "spec": {"workload": {"name": "ups"}, "phases": [{"name": "scope", "settings": {"compileScope": {"exclude": ["decoder"]}}}]},
/// }))?;
/// assert!(pawl_api::validate(&job).is_empty());
/// let warnings = pawl_api::warnings(&job);
/// assert_eq!(warnings[0].field, "spec.phases[0].settings.compileScope");
/// assert_eq!(warnings[0].remedy, "set compile to Fuse or Graph in this phase or an earlier one");
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn warnings(job: &TrainingJob) -> Vec<Problem> {
    effect::check(&job.spec)
}

/// Lower-case letters, digits and `-` (RFC 1123), at most 63.
fn is_label(text: &str) -> bool {
    let inner = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    inner && !text.is_empty() && text.len() <= 63 && !text.starts_with('-') && !text.ends_with('-')
}

fn name(job: &TrainingJob) -> Option<Problem> {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let remedy =
        format!("use lower-case letters, digits and -, at most {MAX_JOB_NAME} characters: pods are named after it");
    (!is_label(name) || name.len() > MAX_JOB_NAME)
        .then(|| Problem::new("metadata.name", quoted(name), "is not a valid job name", remedy))
}

fn workload(job: &TrainingJob) -> Vec<Problem> {
    let workload = &job.spec.workload;
    let mut problems = Vec::new();
    match (&workload.name, workload.command.first()) {
        (None, None) => problems.push(Problem::new(
            "spec.workload",
            "",
            "has neither name nor command",
            "name a built-in workload such as ups, or give the command of your image",
        )),
        (Some(name), Some(_)) => problems.push(Problem::new(
            "spec.workload.command",
            "",
            format!("is mutually exclusive with name: {name}"),
            "keep one of them",
        )),
        _ => {}
    }
    if let (Some(first), true) = (workload.args.first(), workload.command.is_empty()) {
        problems.push(Problem::new(
            "spec.workload.args",
            quoted(first),
            "is set without command",
            "set command, or remove args",
        ));
    }
    problems
}

/// The numbers that are written as strings.
fn ranges(job: &TrainingJob) -> Vec<Problem> {
    let spec = serde_json::to_value(&job.spec).unwrap_or_default();
    let mut problems = Vec::new();
    for bound in bounds::all() {
        let steps = bound.at.split('.').skip(1);
        let start = vec![("spec".to_owned(), &spec)];
        for (path, object) in
            steps.fold(start, |places, step| places.into_iter().flat_map(|p| inside(p, step)).collect())
        {
            let Some(text) = object.get(bound.field).and_then(Value::as_str) else { continue };
            let number = match bound.format {
                NumberFormat::Decimal => text.parse().map(|d: Decimal| d.value()).ok(),
                NumberFormat::Time => text.parse().map(|s: Span| s.seconds()).ok(),
            };
            if !number.is_some_and(|n| bound.admits(n)) {
                let field = format!("{path}.{}", bound.field);
                problems.push(Problem::new(field, quoted(text), format!("is not {}", bound.words()), bound.remedy));
            }
        }
    }
    problems
}

/// The values at one step of a path of [`bounds::Bound::at`].
fn inside<'a>((path, value): (String, &'a Value), step: &str) -> Vec<(String, &'a Value)> {
    match step.strip_suffix("[]") {
        None => value.get(step).map(|v| (format!("{path}.{step}"), v)).into_iter().collect(),
        Some(list) => {
            let items = value.get(list).and_then(Value::as_array).into_iter().flatten();
            items.enumerate().map(|(i, v)| (format!("{path}.{list}[{i}]"), v)).collect()
        }
    }
}

/// Pairs of fields of which at most one may be set.
fn alternatives(spec: &TrainingJobSpec) -> impl Iterator<Item = Problem> {
    let number = |value: Option<u64>| value.map(|value| value.to_string());
    let price = |value: &Option<Decimal>| value.as_ref().map(|value| quoted(value.as_str()));
    let (train, analysis, cost) = (&spec.train, &spec.analysis, &spec.cost);
    let pairs = [
        ("spec.train.items", number(train.items), "epochs", number(train.epochs.map(u64::from))),
        (
            "spec.analysis.qualityItems",
            number(analysis.quality_items),
            "qualityEpochs",
            number(analysis.quality_epochs.map(u64::from)),
        ),
        ("spec.cost.gpuHour", price(&cost.gpu_hour), "machineHour", price(&cost.machine_hour)),
    ];
    pairs.into_iter().filter_map(|(field, value, other, other_value)| {
        Some(Problem::new(
            field,
            value?,
            format!("is mutually exclusive with {other}: {}", other_value?),
            "keep one of them",
        ))
    })
}

/// Gates on metrics have a bound, and one that can be met.
fn metric_bounds(gates: &Gates) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, gate) in gates.validation_metrics.iter().enumerate() {
        let at = format!("spec.gates.validationMetrics[{i}]");
        // Destructured without `..`: whether a new field is a bound is decided here.
        let MetricGate { name, better: _, max_relative_regression, max_relative_difference, max_regression, min, max } =
            gate;
        let bounds = [max_relative_regression, max_relative_difference, max_regression, min, max];
        if bounds.iter().all(|bound| bound.is_none()) {
            let remedy = "set maxRelativeRegression, maxRelativeDifference, maxRegression, min or max";
            problems.push(Problem::new(format!("{at}.name"), quoted(name), "has no bound", remedy));
        }
        if let (Some(min), Some(max)) = (min, max)
            && min.value() > max.value()
        {
            let message = format!("is above max, which is {max}: no value passes");
            let value = quoted(min.as_str());
            problems.push(Problem::new(format!("{at}.min"), value, message, "lower min or raise max"));
        }
    }
    problems
}

/// Whether `text` names a storage: `pvc://claim/dir`, `s3://bucket/dir`, `gs://bucket/dir`, `az://container/dir`,
/// `abfss://container@account.dfs.core.windows.net/dir` or `file:///dir`.
///
/// ```
/// # use pawl_api::is_storage_url;
/// assert!(is_storage_url("pvc://models/runs") && is_storage_url("file:///mnt/models"));
/// assert!(is_storage_url("az://models/runs") && is_storage_url("abfss://models@account.dfs.core.windows.net/runs"));
/// assert!(!is_storage_url("/mnt/models") && !is_storage_url("s3:///runs"));
/// ```
pub fn is_storage_url(text: &str) -> bool {
    let named = |scheme: &str| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    ["pvc://", "s3://", "gs://", "az://", "abfss://"].into_iter().any(named) || text.starts_with("file:///")
}

/// A percentage that is given is one, and of something. What a job has that gives none is always valid.
fn budget(spec: &TrainingJobSpec) -> Option<Problem> {
    let percent = spec.analysis.budget_percent.and_then(JudgingBudget::percent)?;
    let (least, most) = (JudgingBudget::LEAST, JudgingBudget::MOST);
    let (message, remedy) = if !(least..=most).contains(&percent) {
        (format!("is not from {least} to {most}"), JudgingBudget::REMEDY)
    } else if !spec.train.is_asked_for() {
        let message = "is a share of the training's time, and there is no training".to_owned();
        (message, "set spec.train.items or spec.train.epochs, or remove it")
    } else {
        return None;
    };
    Some(Problem::new("spec.analysis.budgetPercent", percent.to_string(), message, remedy))
}

fn rest(job: &TrainingJob) -> Vec<Problem> {
    let spec = &job.spec;
    let mut problems = Vec::new();
    if spec.analysis.min_pairs > spec.analysis.max_pairs {
        problems.push(Problem::new(
            "spec.analysis.minPairs",
            spec.analysis.min_pairs.to_string(),
            format!("is greater than maxPairs, which is {}", spec.analysis.max_pairs),
            "lower minPairs or raise maxPairs (at most 7)",
        ));
    }
    if spec.analysis.quality_looks > 1 && spec.analysis.quality_epochs.is_some() {
        problems.push(Problem::new(
            "spec.analysis.qualityLooks",
            spec.analysis.quality_looks.to_string(),
            "is in parts of qualityItems, which is not set",
            "set qualityItems in place of qualityEpochs",
        ));
    }
    if spec.analysis.quality_looks > 1 && spec.seeds.len() == 1 {
        problems.push(Problem::new(
            "spec.analysis.qualityLooks",
            spec.analysis.quality_looks.to_string(),
            "needs several seeds: with one there is no interval, and no result is clear before the last look",
            "add two seeds, such as seeds: [42, 43, 44]",
        ));
    }
    problems.extend(budget(spec));
    problems.extend(alternatives(spec));
    problems.extend(metric_bounds(&spec.gates));
    if let Some(storage) = spec.train.checkpoint.storage.as_deref()
        && storage != NO_STORAGE
        && !is_storage_url(storage)
    {
        problems.push(Problem::new(
            "spec.train.checkpoint.storage",
            quoted(storage),
            "is not a storage URL",
            "write pvc://claim/dir, s3://bucket/dir, gs://bucket/dir, az://container/dir, file:///dir or None",
        ));
    }
    if let Some(bytes) = spec.gates.gpu_memory.as_ref().filter(|b| b.get() == 0) {
        let remedy = "write bytes such as \"50Gi\", or leave it out";
        problems.push(Problem::new("spec.gates.gpuMemory", quoted(bytes.as_str()), "is not above 0", remedy));
    }
    problems
}
