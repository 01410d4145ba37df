//! The configuration with which the operator would run a job: that of its Deployment, or else the chart's defaults.

use super::configuration::chart_defaults;
use super::finding::Finding;
use super::operators::Operators;
use pawl_api::{Policy, Problem, TrainingJob};
use pawl_controller::Config;
use pawl_controller::objects::DefaultStorage;

/// The configuration, and where it is from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The configuration.
    pub config: Config,
    /// The Deployment `namespace/name` that has it; `None`: the defaults of the chart.
    pub source: Option<String>,
}

impl Settings {
    /// Those of the operator of the namespace.
    pub fn of(namespace: &str, operators: &Operators) -> Self {
        let operator = operators.of(namespace).and_then(|one| Some((one, one.config.as_ref().ok()?)));
        match operator {
            Some((operator, config)) => Self { config: config.clone(), source: Some(operator.name.clone()) },
            None => Self { config: chart_defaults(namespace), source: None },
        }
    }

    /// Says which ones are used.
    pub fn note(&self) -> Finding {
        let Config { images, storage, .. } = &self.config;
        let claim = &storage.claim;
        let stored = match &storage.default {
            DefaultStorage::Claim => format!(
                "claims of {} of {}",
                claim.size,
                claim
                    .class
                    .as_ref()
                    .map_or("the default StorageClass".to_owned(), |class| format!("StorageClass {class}"))
            ),
            other => format!("storage {other}"),
        };
        let source = match &self.source {
            Some(name) => format!("those of Deployment {name}"),
            None => {
                "the chart's defaults, as the Deployment of the operator is not known; yours may be others".to_owned()
            }
        };
        Finding::note("Settings of the operator", format!("{source}: trainer image {}, {stored}", images.trainer))
    }

    /// References of the pod template that the operator's policy does not allow.
    pub fn policy(&self, job: &TrainingJob) -> Vec<Finding> {
        let object = "Policy of the operator";
        match &self.source {
            Some(_) => {
                let problems = self.config.policy.problems(job).into_iter();
                let split = |Problem { field, value, message, remedy }| {
                    Finding::problem(object, Problem::new(field, value, message, "").to_string(), remedy)
                };
                problems.map(split).collect()
            }
            None => {
                let problems = Policy::default().problems(job).into_iter();
                let asks =
                    |problem: Problem| Finding::unknown(object, format!("is not known, and by default: {problem}"));
                problems.map(asks).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::kubectl::preflight::finding::CheckResult;
    use serde_json::json;

    #[test]
    fn what_the_policy_does_not_allow_is_a_problem_only_if_it_is_known() {
        let job = json!({"metadata": {"name": "toy"}, "spec": {"workload": {"name": "ups"},
                         "trainer": {"podTemplate": {"runtimeClassName": "nvidia"}}}});
        let job: TrainingJob = serde_json::from_value(job).unwrap();
        let mut settings = Settings { config: chart_defaults("pawl-system"), source: None };
        assert_eq!(settings.policy(&job)[0].result, CheckResult::Unknown);
        assert!(settings.note().message.starts_with("the chart's defaults"), "{:?}", settings.note());
        settings.source = Some("pawl-system/pawl-operator".to_owned());
        let found = settings.policy(&job).remove(0);
        assert_eq!(found.result, CheckResult::Problem);
        assert!(found.remedy.as_ref().unwrap().contains("policy.allowedRuntimeClasses"), "{found:?}");
        settings.config.policy.allowed_runtime_classes.push("nvidia".to_owned());
        assert_eq!(settings.policy(&job), []);
    }
}
