//! Patterns over the output of a script: lines become steps, losses and validation metrics.

use crate::plan::LOSS;
use crate::script::{Monitor, MonitorSource};
use regex::{Captures, Regex, RegexBuilder};
use std::collections::BTreeMap;
use std::fmt;

/// Maximum length of a line in bytes; only the beginning of a longer one is matched.
pub const MAX_LINE: usize = 4096;
/// Maximum size of a compiled pattern in bytes.
const MAX_PATTERN: usize = 1 << 20;
/// Groups that give the position of a line rather than a metric.
const POSITIONS: [&str; 2] = ["step", "items"];
/// Group of the epoch in whose count the steps of a line are.
const EPOCH: &str = "epoch";

/// What a line of the output reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// Progress of the training.
    Training {
        /// Optimizer steps so far. A line without steps and items is about those of the line before.
        step: Option<u64>,
        /// Items of all ranks so far.
        items: Option<u64>,
        /// Epoch in which the steps or items are counted, when the line reports it.
        epoch: Option<u64>,
        /// Training loss; may be NaN or infinite.
        loss: Option<f64>,
    },
    /// The result of an evaluation.
    Validation {
        /// Optimizer steps so far, when the line reports them.
        step: Option<u64>,
        /// Items of all ranks so far, when the line reports them.
        items: Option<u64>,
        /// Metrics by name, `loss` among them; may be NaN or infinite.
        metrics: BTreeMap<String, f64>,
    },
}

/// Error: a pattern of a [`Monitor`] cannot be used. Displayed as `field: value message: remedy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// The field of the monitor: `training` or `validation`.
    pub field: &'static str,
    /// The pattern; empty when it is missing.
    pub value: String,
    /// The problem.
    pub message: String,
    /// How to correct it.
    pub remedy: String,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.value.is_empty() { "" } else { " " };
        write!(f, "{}: {}{space}{}: {}", self.field, self.value, self.message, self.remedy)
    }
}

impl std::error::Error for PatternError {}

/// The compiled patterns of a monitor.
///
/// ```
/// use pawl_contract::log::{Patterns, Reading};
/// use pawl_contract::script::Monitor;
///
/// let training = Some(r"step (?<step>[\d,]+): loss (?<loss>[\d.]+)".to_owned());
/// let patterns = Patterns::new(&Monitor { training, ..Monitor::default() })?;
/// let reading = patterns.read("step 1,200: loss 0.25, 3 it/s");
/// assert_eq!(reading, Some(Reading::Training { step: Some(1200), items: None, epoch: None, loss: Some(0.25) }));
/// # Ok::<(), pawl_contract::log::PatternError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Patterns {
    training: Option<Regex>,
    validation: Option<Regex>,
}

impl Patterns {
    /// Compiles the patterns of `monitor`.
    ///
    /// # Errors
    /// [`PatternError`]: a pattern is missing, is not a regular expression, or lacks a group.
    pub fn new(monitor: &Monitor) -> Result<Self, PatternError> {
        let training = monitor.training.as_deref().map(training).transpose()?;
        match (monitor.source, &monitor.training) {
            (MonitorSource::Log, None) => {
                return Err(PatternError {
                    field: "training",
                    value: String::new(),
                    message: "is missing".to_owned(),
                    remedy: "add a pattern such as 'step (?<step>\\d+).*loss (?<loss>\\S+)', or set source to Kubeflow"
                        .to_owned(),
                });
            }
            (MonitorSource::Kubeflow, Some(value)) => {
                let message = "is not used with source: Kubeflow".to_owned();
                return Err(error("training", value, message, "remove it, or set source to Log"));
            }
            _ => {}
        }
        let validation = monitor.validation.as_deref().map(validation).transpose()?;
        Ok(Self { training, validation })
    }

    /// Whether lines of training may report a loss.
    pub fn has_losses(&self) -> bool {
        self.training.as_ref().is_some_and(|pattern| pattern.capture_names().flatten().any(|name| name == LOSS))
    }

    /// What `line` reports, if anything. A line that matches both patterns is one of validation.
    pub fn read(&self, line: &str) -> Option<Reading> {
        let line = crate::report::truncated(line, MAX_LINE);
        if let Some(found) = self.validation.as_ref().and_then(|pattern| pattern.captures(line)) {
            let names = self.validation.iter().flat_map(|pattern| pattern.capture_names().flatten());
            let metrics = names.filter(|name| !POSITIONS.contains(name));
            let metrics: BTreeMap<_, _> =
                metrics.filter_map(|name| Some((name.to_owned(), number(&found, name)?))).collect();
            let reading = Reading::Validation { step: count(&found, "step"), items: count(&found, "items"), metrics };
            return Some(reading);
        }
        let found = self.training.as_ref()?.captures(line)?;
        let (step, items) = (count(&found, "step"), count(&found, "items"));
        // Also one with the part that is done, such as 1.25.
        let epoch = number(&found, EPOCH).filter(|epoch| *epoch >= 0.0).map(|epoch| epoch as u64);
        let loss = number(&found, LOSS);
        // Groups of an alternative that did not match are absent: a progress bar and a loss may be lines of their own.
        (step.is_some() || items.is_some() || loss.is_some()).then_some(Reading::Training { step, items, epoch, loss })
    }
}

fn training(text: &str) -> Result<Regex, PatternError> {
    let pattern = compiled("training", text)?;
    let groups: Vec<_> = pattern.capture_names().flatten().collect();
    if let Some(other) = groups.iter().find(|name| !POSITIONS.contains(name) && ![LOSS, EPOCH].contains(name)) {
        let message = format!("has a group `{other}`, which has no meaning");
        return Err(error(
            "training",
            text,
            message,
            "use the groups step, items, epoch and loss; metrics belong in validation",
        ));
    }
    if !groups.iter().any(|name| POSITIONS.contains(name)) {
        let message = "has neither a group `step` nor a group `items`".to_owned();
        return Err(error("training", text, message, "name the number of steps, such as step (?<step>\\d+)"));
    }
    Ok(pattern)
}

fn validation(text: &str) -> Result<Regex, PatternError> {
    let pattern = compiled("validation", text)?;
    if !pattern.capture_names().flatten().any(|name| name == LOSS) {
        let message = "has no group `loss`".to_owned();
        return Err(error("validation", text, message, "name the validation loss, such as eval_loss (?<loss>\\S+)"));
    }
    Ok(pattern)
}

fn compiled(field: &'static str, text: &str) -> Result<Regex, PatternError> {
    RegexBuilder::new(text).size_limit(MAX_PATTERN).build().map_err(|cause| {
        // The last line is the cause; those before show the position.
        let cause = cause.to_string();
        let cause = cause.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
        let message = format!("is not a regular expression ({cause})");
        error(
            field,
            text,
            message,
            "use the syntax of the Rust crate regex: groups are (?<name>...), there is no look-around",
        )
    })
}

fn error(field: &'static str, value: &str, message: String, remedy: &str) -> PatternError {
    PatternError { field, value: serde_json::Value::from(value).to_string(), message, remedy: remedy.to_owned() }
}

fn text<'a>(found: &Captures<'a>, name: &str) -> Option<&'a str> {
    // A greedy \S+ takes the punctuation after a number with it.
    let surplus = |c: char| matches!(c, ',' | ';' | ':' | ')' | ']' | '}' | '\'' | '"' | '%');
    found.name(name).map(|group| group.as_str().trim().trim_end_matches(surplus).trim_start_matches(['\'', '"']))
}

fn count(found: &Captures<'_>, name: &str) -> Option<u64> {
    text(found, name)?.replace([',', '_'], "").parse().ok()
}

fn number(found: &Captures<'_>, name: &str) -> Option<f64> {
    text(found, name)?.replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor(training: &str, validation: Option<&str>) -> Monitor {
        let (training, validation) = (Some(training.to_owned()), validation.map(str::to_owned));
        Monitor { source: MonitorSource::Log, training, validation }
    }

    #[test]
    fn lines_of_well_known_programs_are_read() {
        let bar_and_loss = r"(?<step>\d+)/\d+ \[|'loss': '?(?<loss>[^,']+)";
        let nano = r"iter (?<step>\d+): loss (?<loss>\S+)";
        for (pattern, line, step, loss) in [
            (bar_and_loss, "{'loss': '2.3', 'grad_norm': '1.0', 'epoch': 0.1}", None, Some(2.3)),
            (bar_and_loss, " 12%|#2        | 12/100 [00:01<00:10,  8.0it/s]", Some(12), None),
            (nano, "iter 10: loss 4.2, time 12.3ms, mfu 3.1%", Some(10), Some(4.2)),
            (r"step (?<step>\d+) loss (?<loss>\S+)", "step 3 loss -1.5e-3;", Some(3), Some(-1.5e-3)),
        ] {
            let found = Patterns::new(&monitor(pattern, None)).unwrap().read(line);
            assert_eq!(found, Some(Reading::Training { step, items: None, epoch: None, loss }), "{line}");
        }
        let patterns = Patterns::new(&monitor(r"step (?<step>\d+) loss (?<loss>\S+)", None)).unwrap();
        assert!(
            matches!(patterns.read("step 4 loss nan"), Some(Reading::Training { loss: Some(l), .. }) if l.is_nan())
        );
        assert_eq!(patterns.read("epoch 4"), None);
    }

    #[test]
    fn the_epoch_of_a_step_may_be_read_with_it() {
        let pattern = r"Epoch: \[(?<epoch>[\d.]+)\]\[ *(?<step>\d+)/\d+\]( Loss (?<loss>\S+))?";
        let patterns = Patterns::new(&monitor(pattern, None)).unwrap();
        assert!(patterns.has_losses());
        for (line, epoch) in [("Epoch: [3][ 10/50] Loss 0.5", Some(3)), ("Epoch: [1.25][ 10/50] Loss 0.5", Some(1))] {
            let expected = Reading::Training { step: Some(10), items: None, epoch, loss: Some(0.5) };
            assert_eq!(patterns.read(line), Some(expected), "{line}");
        }
        assert!(!Patterns::new(&monitor(r"(?<epoch>\d+) (?<step>\d+)", None)).unwrap().has_losses());
    }

    #[test]
    fn a_line_of_validation_is_not_one_of_training() {
        let validation = r"step (?<step>\d+) val_loss (?<loss>\S+) accuracy (?<accuracy>\S+)";
        let patterns = Patterns::new(&monitor(r"step (?<step>\d+)", Some(validation))).unwrap();
        let metrics = BTreeMap::from([("loss".to_owned(), 0.5), ("accuracy".to_owned(), 91.0)]);
        let found = patterns.read("step 10 val_loss 0.5 accuracy 91%");
        assert_eq!(found, Some(Reading::Validation { step: Some(10), items: None, metrics }));
    }

    #[test]
    fn patterns_without_the_needed_groups_are_refused_with_a_remedy() {
        for (training, validation, field, part) in [
            (r"loss (?<loss>\S+)", None, "training", "neither a group `step`"),
            (r"(?<step>\d+) (?<accuracy>\S+)", None, "training", "`accuracy`"),
            (r"step (?<step>\d+", None, "training", "unclosed group"),
            (r"(?<step>\d+)", Some(r"acc (?<accuracy>\S+)"), "validation", "no group `loss`"),
            (r"(?<step>(\d{100}){100}){1}", None, "training", "size limit"),
        ] {
            let error = Patterns::new(&monitor(training, validation)).unwrap_err();
            assert!(error.field == field && error.message.contains(part) && !error.remedy.is_empty(), "{error}");
        }
        assert_eq!(Patterns::new(&Monitor::default()).unwrap_err().message, "is missing");
    }

    #[test]
    fn only_the_beginning_of_a_long_line_is_matched() {
        let patterns = Patterns::new(&monitor(r"step (?<step>\d+)", None)).unwrap();
        assert_eq!(patterns.read(&format!("{}step 1", "x".repeat(MAX_LINE))), None);
        assert!(patterns.read(&format!("step 1{}", "é".repeat(MAX_LINE))).is_some());
    }
}
