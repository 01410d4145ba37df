//! Reads reports with numbers that JSON does not have: `NaN` and `Infinity`, as Python's `json` writes them.

use pawl_contract::exit::Outcome;
use pawl_contract::report::Report;
use serde_json::Value;

/// The literals, the longest first.
const LITERALS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// The report in `content`, without its numbers that are not finite; `None` when it is unreadable for another reason.
/// If one of them is a loss, the outcome is `NonFinite`.
pub(crate) fn read(content: &[u8]) -> Option<Report> {
    let text = replaced(std::str::from_utf8(content).ok()?)?;
    let mut whole: Value = serde_json::from_str(&text).ok()?;
    let mut lost = Vec::new();
    prune(&mut whole, "", &mut lost);
    let mut report: Report = serde_json::from_value(whole).ok()?;
    let of_loss = |path: &&String| {
        ["loss", "losses.loss", "validation.metrics.loss", "firstValidation.metrics.loss"].contains(&path.as_str())
    };
    if let Some(path) = lost.iter().find(of_loss).filter(|_| report.outcome == Outcome::Done) {
        report.outcome = Outcome::NonFinite;
        report.message = format!("{path} is not a finite number");
    }
    Some(report)
}

/// `text` with `null` for each of the literals outside of strings; `None` when it has none.
fn replaced(text: &str) -> Option<String> {
    let (mut out, mut rest, mut any) = (String::with_capacity(text.len()), text, false);
    let (mut quoted, mut escaped) = (false, false);
    while let Some(c) = rest.chars().next() {
        if !quoted && let Some(literal) = LITERALS.iter().find(|literal| rest.starts_with(**literal)) {
            out.push_str("null");
            rest = &rest[literal.len()..];
            any = true;
            continue;
        }
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    any.then_some(out)
}

/// Removes what is `null`: members of objects with names of their own, and whole elements of lists and whole spreads,
/// which have no meaning without one of their numbers. Returns whether `value` is to be removed; `lost`: the paths of
/// what was removed.
fn prune(value: &mut Value, path: &str, lost: &mut Vec<String>) -> bool {
    match value {
        Value::Null => {
            lost.push(path.to_owned());
            true
        }
        Value::Array(elements) => {
            let mut kept = Vec::new();
            for mut element in std::mem::take(elements) {
                let before = lost.len();
                if !prune(&mut element, path, lost) && lost.len() == before {
                    kept.push(element);
                }
            }
            *elements = kept;
            false
        }
        Value::Object(members) => {
            let mut kept = serde_json::Map::new();
            let before = lost.len();
            for (name, mut member) in std::mem::take(members) {
                let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                if !prune(&mut member, &inner, lost) {
                    kept.insert(name, member);
                }
            }
            *members = kept;
            path == "stepSeconds" && lost.len() > before
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(numbers: &str) -> Option<Report> {
        let text = format!(
            r#"{{"contract": 1, "launch": "NaN", "kind": "Quality", "rank": 0, "outcome": "Done", {numbers}}}"#
        );
        read(text.as_bytes())
    }

    #[test]
    fn a_loss_that_is_not_a_number_is_non_finite_and_other_numbers_are_absent() {
        for loss in [
            r#""loss": NaN, "validation": {"items": 8, "metrics": {"loss": NaN}}"#,
            r#""loss": 0.5, "validation": {"items": 8, "metrics": {"loss": Infinity, "acc": 0.5}}"#,
            r#""losses": [{"items": 1, "loss": 1.0}, {"items": 2, "loss": -Infinity}]"#,
        ] {
            let report = report(loss).unwrap();
            assert_eq!(report.outcome, Outcome::NonFinite, "{loss}");
            assert!(report.message.contains("loss is not a finite number"), "{}", report.message);
            assert_eq!(report.launch, "NaN", "texts stay as they are");
        }
        let metric = report(
            r#""validation": {"items": 8, "metrics": {"loss": 0.5, "auc": NaN}}, "itemsPerSecond": NaN,
               "stepSeconds": {"p10": 0.1, "median": 0.2, "p90": NaN}, "message": "a \"NaN\" \\", "steps": 3"#,
        );
        let metric = metric.unwrap();
        assert_eq!((metric.outcome, metric.measured.steps), (Outcome::Done, 3));
        assert_eq!((metric.measured.items_per_second, metric.measured.step_seconds), (None, None));
        assert_eq!(metric.measured.metric("loss"), Some(&0.5));
        assert_eq!(metric.message, "a \"NaN\" \\");
        assert_eq!(report(r#""steps": "three""#), None);
        assert_eq!(report(r#""loss": NaN, "steps": "three""#), None);
    }
}
