//! Files of each version of the contract, which all later versions of Pawl must read.

use pawl_contract::live::Attempt;
use pawl_contract::plan::AttemptPlan;
use pawl_contract::report::Report;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

const PLAN: &str = include_str!("fixtures/contract-1/plan.json");
const REPORT: &str = include_str!("fixtures/contract-1/report.json");
const ATTEMPT: &str = include_str!("fixtures/contract-1/attempt.json");

/// Every field of `old` is in `new`, with its value; empty texts may be left out.
fn contains(new: &Value, old: &Value, path: &str) {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            for (name, value) in old.iter().filter(|(_, value)| *value != "") {
                let kept = new.get(name).unwrap_or_else(|| panic!("{path}.{name} was dropped"));
                contains(kept, value, &format!("{path}.{name}"));
            }
        }
        (Value::Array(new), Value::Array(old)) => {
            assert_eq!(new.len(), old.len(), "{path}");
            new.iter().zip(old).for_each(|(new, old)| contains(new, old, path));
        }
        (Value::Number(new), Value::Number(old)) => assert_eq!(new.as_f64(), old.as_f64(), "{path}"),
        (new, old) => assert_eq!(new, old, "{path}"),
    }
}

fn is_read<T: DeserializeOwned + Serialize>(text: &str) {
    let old: Value = serde_json::from_str(text).expect("the fixture is JSON");
    let read: T = serde_json::from_value(old.clone()).expect("this version reads the fixture");
    contains(&serde_json::to_value(read).expect("it can be written"), &old, "");
}

#[test]
fn files_of_contract_1_are_read_without_loss() {
    is_read::<AttemptPlan>(PLAN);
    is_read::<Report>(REPORT);
    is_read::<Attempt>(ATTEMPT);
}

#[test]
fn fields_that_a_later_version_adds_are_ignored() {
    fn extended(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // Settings and `resumeFrom` are what a user wrote: there, an unknown field is an error.
                let known = |name: &str| matches!(name, "settings" | "resumeFrom" | "config" | "metrics");
                fields.iter_mut().filter(|(name, _)| !known(name)).for_each(|(_, value)| extended(value));
                fields.insert("fieldOfALaterVersion".to_owned(), serde_json::json!({"nested": [1]}));
            }
            Value::Array(items) => items.iter_mut().for_each(extended),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    fn is_read_as_before<T: DeserializeOwned + PartialEq + std::fmt::Debug>(text: &str) {
        let mut later: Value = serde_json::from_str(text).unwrap();
        extended(&mut later);
        let read: T = serde_json::from_value(later).unwrap();
        assert_eq!(read, serde_json::from_str(text).unwrap());
    }
    is_read_as_before::<AttemptPlan>(PLAN);
    is_read_as_before::<Report>(REPORT);
    is_read_as_before::<Attempt>(ATTEMPT);
}
