//! The difference between two settings, by dotted name.

use pawl_contract::settings::Settings;

/// A setting in the baseline and in the effective settings; `None` is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Dotted name.
    pub name: String,
    /// In the baseline.
    pub baseline: Option<String>,
    /// In the effective settings.
    pub effective: Option<String>,
}

impl Difference {
    /// Whether the values differ.
    pub fn changed(&self) -> bool {
        self.baseline != self.effective
    }
}

/// All settings that are set in either, by name.
pub fn differences(baseline: &Settings, effective: &Settings) -> Vec<Difference> {
    let (before, after) = (baseline.flat(), effective.flat());
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let difference = |name: &String| Difference {
        name: name.clone(),
        baseline: before.get(name).cloned(),
        effective: after.get(name).cloned(),
    };
    names.into_iter().map(difference).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_settings_differ_by_dotted_name() {
        let parse = |text| serde_json::from_str::<Settings>(text).unwrap();
        let before = parse(r#"{"batchPerGpu": 8, "nccl": {"NCCL_A": "1"}}"#);
        let after = parse(r#"{"batchPerGpu": 8, "nccl": {"NCCL_A": "2"}, "compile": "Graph"}"#);
        let changed: Vec<_> = differences(&before, &after).into_iter().filter(Difference::changed).collect();
        let names: Vec<&str> = changed.iter().map(|difference| difference.name.as_str()).collect();
        assert_eq!(names, ["compile", "nccl.NCCL_A"]);
        assert_eq!(changed[0].baseline, None);
        assert_eq!(changed[1].effective.as_deref(), Some("2"));
    }
}
