//! What the built-in trainer would refuse of a job, by its own parser: this program contains it. Nothing is started.

use pawl_api::spec::{Pin, Trigger};
use pawl_api::{Problem, TrainingJob};
use pawl_contract::problem::{choose, quoted};
use pawl_trainer::device::Place;
use pawl_trainer::{Refusal, RefusalKind};
use serde_json::Value;

/// The path of the baseline.
const BASELINE: &str = "spec";

/// What was found in a job.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// For these the job would fail.
    errors: Vec<Problem>,
    /// A line each: phases that would not be applied, and what cannot be validated on this machine.
    notes: Vec<String>,
}

/// Checks the settings of the baseline and of each phase with each fallback, as the preflight does, and the metrics
/// that the job names. Finds nothing in a job with a command of its own.
pub fn check(job: &TrainingJob) -> Found {
    let mut found = Found::default();
    let Some(workload) = &job.spec.workload.name else { return found };
    let spec = serde_json::to_value(&job.spec).unwrap_or_default();
    let (mut of_baseline, mut known) = (None, Vec::new());
    for (at, plan) in pawl_decision::checks(job) {
        match pawl_trainer::check(&plan, job.spec.trainer.world_size(), place(job)) {
            Ok(metrics) if at == BASELINE => found.errors.extend(unknown_metrics(job, workload, &metrics)),
            Ok(_) => {}
            Err(Refusal { kind, problem }) => {
                let written = located(problem.clone(), &at, &spec);
                // What is wrong with the baseline is wrong with every phase.
                if of_baseline.as_ref() == Some(&problem) || known.contains(&written) {
                    continue;
                }
                if at == BASELINE {
                    of_baseline = Some(problem);
                }
                known.push(written.clone());
                found.add(kind, job, &at, written);
            }
        }
    }
    found
}

/// Where the job runs.
pub const fn place(job: &TrainingJob) -> Place {
    if job.spec.trainer.gpus_per_replica == 0 { Place::Cpu } else { Place::AbsentGpu }
}

impl Found {
    fn add(&mut self, kind: RefusalKind, job: &TrainingJob, at: &str, problem: Problem) {
        match (kind, unsupported(job, at)) {
            (RefusalKind::Unsupported, Some(result)) => {
                self.notes.push(format!("warning: {problem}; {at} {result}"));
            }
            (RefusalKind::Invalid | RefusalKind::Unsupported, _) => self.errors.push(problem),
            (RefusalKind::Unread, _) => {
                self.notes.push(format!("note: {problem}; what depends on it is not validated here"));
            }
        }
    }

    /// The errors; everything else is written to `notes`.
    pub fn errors(self, notes: &mut Vec<String>) -> Vec<Problem> {
        *notes = self.notes;
        self.errors
    }

    /// As [`Self::errors`], for a job that may run on a cluster: its operator's default image may contain another
    /// trainer.
    pub fn errors_of_this_pawl(self, notes: &mut Vec<String>) -> Vec<Problem> {
        let mut errors = self.errors(notes);
        for Problem { message, remedy, .. } in &mut errors {
            let last = if remedy.is_empty() { message } else { remedy };
            last.push_str("; found by the trainer of this pawl");
        }
        errors
    }

    /// All as warnings and notes: the image that runs the job may contain another trainer than this program.
    pub fn of_another_image(self) -> Vec<String> {
        let warning = |problem| {
            format!(
                "warning: {problem}; found by the trainer of this pawl, and the image of the job may contain another"
            )
        };
        self.errors.into_iter().map(warning).chain(self.notes).collect()
    }
}

/// What becomes of the settings at `at` that the trainer does not support; `None`: the job fails, for it runs with them
/// whatever the preflight says.
fn unsupported(job: &TrainingJob, at: &str) -> Option<&'static str> {
    let phases = job.spec.phases.iter().enumerate();
    let (path, phase) = phases
        .map(|(index, phase)| (format!("{BASELINE}.phases[{index}]"), phase))
        .find(|(path, _)| at.starts_with(path.as_str()))?;
    let has_answer = phase.fallbacks.iter().any(|fallback| fallback.when.contains(&Trigger::Unsupported));
    match at == path {
        false => Some("cannot be used"),
        true if phase.pin == Some(Pin::Accepted) => None,
        true if has_answer => Some("will be replaced by its fallback for Unsupported"),
        true => Some("will be Unsupported"),
    }
}

/// `problem`, whose field is one of a plan, with the field of the manifest: `at` is what is new in the plan.
fn located(problem: Problem, at: &str, spec: &Value) -> Problem {
    let Problem { field, value, message, remedy } = problem;
    if field.is_empty() {
        return Problem::new(at, value, message, remedy);
    }
    let patch = |within: &str| match field.strip_prefix("workload.config.") {
        Some(rest) => format!("{within}.settings.workload.{rest}"),
        None => format!("{within}.{field}"),
    };
    let found = [patch(at), patch(BASELINE)].into_iter().find(|path| is_in(spec, path));
    Problem::new(found.unwrap_or_else(|| format!("{BASELINE}.{field}")), value, message, remedy)
}

/// Whether `spec` has the field at `path`, such as `spec.phases[1].settings.batchPerGpu`.
fn is_in(spec: &Value, path: &str) -> bool {
    let pointer = path.replace(['.', '['], "/").replace(']', "");
    pointer.strip_prefix(BASELINE).is_some_and(|pointer| spec.pointer(pointer).is_some())
}

/// The metrics that the job names and its workload does not report: it reports `metrics`.
fn unknown_metrics(job: &TrainingJob, workload: &str, metrics: &[String]) -> Vec<Problem> {
    let (gates, train) = (&job.spec.gates, &job.spec.train);
    let gates = gates.validation_metrics.iter().enumerate();
    let gates = gates.map(|(i, gate)| (format!("spec.gates.validationMetrics[{i}].name"), &gate.name));
    let stopping = train.early_stopping.iter().map(|rule| ("spec.train.earlyStopping.metric".to_owned(), &rule.metric));
    let best = train.checkpoint.best.iter().map(|best| ("spec.train.checkpoint.best.metric".to_owned(), &best.metric));
    let objectives = job.spec.search.iter().enumerate().flat_map(|(stage, search)| {
        let of_evaluations = search.objectives.iter().enumerate().filter(|(_, objective)| !objective.is_of_launch());
        let path = move |number| format!("spec.search[{stage}].objectives[{number}].metric");
        of_evaluations.map(move |(number, objective)| (path(number), &objective.metric))
    });
    let names: Vec<&str> = metrics.iter().map(String::as_str).collect();
    let named = gates.chain(stopping).chain(best).chain(objectives);
    let unknown = named.filter(|(_, name)| !metrics.contains(name));
    let problem = |(field, name): (String, &String)| {
        let message = format!("is not a validation metric of workload {workload}");
        Problem::new(field, quoted(name), message, choose(name, &names))
    };
    unknown.map(problem).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn job(changes: Value) -> TrainingJob {
        let mut spec = json!({
            "workload": {"name": "ups", "config": {"preset": "smoke"}}, "trainer": {"gpusPerReplica": 0},
            "settings": {"batchPerGpu": 2},
        });
        spec.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).unwrap()
    }

    #[rstest]
    #[case::workload(
        json!({"workload": {"name": "upps"}}),
        "spec.workload.name: \"upps\" is not a workload: did you mean ups? Choose one of ups, slm, "
    )]
    #[case::preset(
        json!({"workload": {"name": "ups", "config": {"preset": "smokey"}}}),
        "spec.workload.config.preset: smokey is not a preset: choose smoke, small, medium or full (did you mean smoke?)"
    )]
    #[case::field(
        json!({"workload": {"name": "ups", "config": {"preset": "smoke", "data": {"directroy": "/x"}}}}),
        "spec.workload.config.data.directroy: /x is not a field: did you mean directory? Choose one of "
    )]
    #[case::patch(
        json!({"settings": {"batchPerGpu": 2, "workload": {"pair": 1}}}),
        "spec.settings.workload.pair: 1 is not a field: did you mean pairs? Choose one of "
    )]
    #[case::phase(
        json!({"phases": [{"name": "b", "settings": {"batchPerGpu": 4}},
                          {"name": "w", "settings": {"workload": {"operator": {"dept": 1}}}}]}),
        "spec.phases[1].settings.workload.operator.dept: 1 is not a field: did you mean depth?"
    )]
    #[case::fallback(
        json!({"phases": [{"name": "b", "settings": {"batchPerGpu": 4},
                           "fallbacks": [{"when": ["OutOfMemory"], "settings": {"batchPerGpu": 3}}]}]}),
        "spec.phases[0].fallbacks[0].settings.batchPerGpu: 3 "
    )]
    #[case::baseline_of_a_gpu(
        json!({"settings": {"batchPerGpu": 2, "precision": "tf32"}}),
        "spec: settings.precision: tf32 needs a GPU"
    )]
    #[case::default(json!({"settings": {}}), "spec.settings.batchPerGpu: 1 ")]
    #[case::scope(
        json!({"settings": {"batchPerGpu": 2, "compileScope": {"exclude": ["decode"]}}}),
        "spec: settings.compileScope.exclude: decode is not a scope of the model"
    )]
    #[case::gate(
        json!({"gates": {"validationMetrics": [{"name": "loss", "max": "1"}, {"name": "nmrse", "max": "1"}]}}),
        "spec.gates.validationMetrics[1].name: \"nmrse\" is not a validation metric of workload ups: did you mean nrmse?"
    )]
    #[case::stopping(
        json!({"train": {"items": 100, "earlyStopping": {"metric": "accuracy", "patience": 2}}}),
        "spec.train.earlyStopping.metric: \"accuracy\" is not a validation metric of workload ups: choose one of "
    )]
    fn what_the_first_launch_would_refuse_is_an_error(#[case] changes: Value, #[case] expected: &str) {
        let found = check(&job(changes));
        let [error] = &found.errors[..] else { panic!("{found:?}") };
        assert!(error.to_string().starts_with(expected), "{error}");
    }

    #[test]
    fn metrics_of_launches_and_of_the_workload_are_known() {
        let objectives = json!([{"metric": "itemsPerSecond", "goal": "Maximize"},
            {"metric": "peakMemoryBytes", "goal": "Minimize"}, {"metric": "physical_nrmse_darcy2d", "goal": "Minimize"}]);
        let mut search = json!({"name": "s", "trials": 2, "items": 10, "finalists": 1, "objectives": objectives,
            "parameters": [{"name": "batchPerGpu", "min": "2", "max": "8"}]});
        assert_eq!(check(&job(json!({"search": [search.clone()]}))), Found::default());
        search["objectives"][2]["metric"] = json!("physical_nrmse");
        let found = check(&job(json!({"search": [search]})));
        assert_eq!(found.errors[0].field, "spec.search[0].objectives[2].metric");
    }

    #[test]
    fn what_is_not_supported_in_a_phase_is_a_warning() {
        let phase = |name: &str| json!({"name": name, "settings": {"precision": "tf32"}});
        let found = check(&job(json!({"phases": [phase("t"), phase("u")]})));
        assert_eq!(found.errors, []);
        let [warning, second] = &found.notes[..] else { panic!("{found:?}") };
        assert!(second.starts_with("warning: spec.phases[1]: "), "{second}");
        let expected = "warning: spec.phases[0]: settings.precision: tf32 needs a GPU";
        assert!(
            warning.starts_with(expected) && warning.ends_with("; spec.phases[0] will be Unsupported"),
            "{warning}"
        );
    }

    #[rstest]
    #[case::fallback(json!({"fallbacks": [{"when": ["Unsupported"], "settings": {"precision": "fp32"}}]}),
        Some("spec.phases[0] will be replaced by its fallback for Unsupported"))]
    #[case::other_fallback(json!({"fallbacks": [{"when": ["OutOfMemory"], "settings": {"precision": "fp32"}}]}),
        Some("spec.phases[0] will be Unsupported"))]
    #[case::in_fallback(json!({"settings": {"batchPerGpu": 4},
        "fallbacks": [{"when": ["OutOfMemory"], "settings": {"precision": "tf32"}}]}),
        Some("spec.phases[0].fallbacks[0] cannot be used"))]
    #[case::pinned(json!({"pin": "Accepted"}), None)]
    fn what_becomes_of_a_phase_that_is_not_supported_is_said(#[case] changes: Value, #[case] warning: Option<&str>) {
        let mut phase = json!({"name": "t", "settings": {"precision": "tf32"}});
        phase.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let found = check(&job(json!({"phases": [phase]})));
        let (errors, warnings) = (usize::from(warning.is_none()), usize::from(warning.is_some()));
        assert_eq!((found.errors.len(), found.notes.len()), (errors, warnings), "{found:?}");
        assert!(warning.is_none_or(|warning| found.notes[0].ends_with(&format!("; {warning}"))), "{found:?}");
    }

    #[test]
    fn a_file_that_is_elsewhere_is_no_error() {
        let config = json!({"size": "tiny", "weights": "/nowhere/model"});
        let found = check(&job(json!({"workload": {"name": "slm", "config": config}})));
        assert_eq!(found.errors, []);
        let [note] = &found.notes[..] else { panic!("{found:?}") };
        assert!(note.starts_with("note: spec.workload.config.weights: /nowhere/model/"), "{note}");
    }

    #[test]
    fn a_command_and_another_image_are_not_held_to_this_trainer() {
        let workload = json!({"command": ["train"], "config": {"width": 3}, "monitor": {"training": "(?<step>\\d+)"}});
        let gates = json!({"validationMetrics": [{"name": "f1", "max": "1"}]});
        assert_eq!(check(&job(json!({"workload": workload, "gates": gates}))), Found::default());
        let warnings = check(&job(json!({"workload": {"name": "mine"}}))).of_another_image();
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with("warning: spec.workload.name: \"mine\" is not a workload"), "{warning}");
    }
}
