//! The speedup of each phase as a table: for a narrow window, in which the waterfall has no place, and for those who
//! cannot see it.

use super::measurement::{Measurement, Measurements};
use crate::numbers::{factor, interval, pairs};
use crate::together::{TOGETHER, together_word};
use crate::verdict::{self, Tone, tone};
use maud::{Markup, html};
use pawl_api::TrainingJobStatus;
use pawl_api::status::Speedup;

/// A row for each phase, and one for all of them together, with how good the measurement of each is.
pub fn table(status: &TrainingJobStatus, measurements: &Measurements<'_>) -> Markup {
    let phases = status.phases.iter().map(|phase| {
        let verdict = format!("{} {}", tone(phase.state).symbol(), verdict::phrase(phase, status.stage));
        (phase.name.as_str(), phase.speedup.as_ref(), verdict)
    });
    let together = status.bundle.as_ref().and_then(|bundle| {
        let verdict = format!("{} {}", Tone::Total.symbol(), together_word(bundle, status));
        Some((TOGETHER, Some(bundle.speedup.as_ref()?), verdict))
    });
    let rows = phases.chain(together);
    html! {
        table.cards {
            thead { tr { th { "phase" } th.n { "speedup" } th.n { "interval" } th.n { "pairs" } th { "verdict" } th { "measurement" } } }
            tbody { @for (name, speedup, verdict) in rows { (row(name, speedup, &verdict, measurements.get(name))) } }
        }
    }
}

fn row(name: &str, speedup: Option<&Speedup>, verdict: &str, measurement: Option<&Measurement>) -> Markup {
    html! {
        tr {
            th scope="row" { (name) }
            td.n data-name="speedup" { (speedup.map(|it| factor(it.estimate.value())).unwrap_or_default()) }
            td.n data-name="interval" { (speedup.and_then(interval).unwrap_or_default()) }
            td.n data-name="pairs" { (speedup.map(pairs).unwrap_or_default()) }
            td data-name="verdict" { (verdict) }
            td data-name="measurement" { @if let Some(measurement) = measurement { (measurement.mark()) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_bar_is_a_row() {
        let speedup = json!({"estimate": "1.5", "lower": "1.4", "upper": "1.6", "pairs": 3});
        let phases = json!([{"name": "<a>", "state": "Accepted", "speedup": speedup}, {"name": "b"}]);
        let bundle = json!({"inputHash": "x", "state": "Accepted", "reason": "", "message": "", "speedup": speedup});
        let status = json!({"stage": "Complete", "phases": phases, "bundle": bundle});
        let text = table(&serde_json::from_value(status).unwrap(), &Measurements::new()).into_string();
        for part in [
            r#"<th scope="row">&lt;a&gt;</th><td class="n" data-name="speedup">1.50×</td>"#,
            r#"<td class="n" data-name="interval">[1.40, 1.60]</td>"#,
            r#"<td data-name="verdict">✓ accepted</td>"#,
            r#"<td class="n" data-name="interval"></td><td class="n" data-name="pairs"></td>"#,
            "Σ measured together",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
