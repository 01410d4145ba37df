//! The quality of a comparison, in words.

use crate::numbers::{limit, short, signed};
use maud::{Markup, html};
use pawl_api::spec::{Gates, MetricGate, TrainingJobSpec};
use pawl_api::status::QualityStatus;
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::Better;
use pawl_decision::{DEFAULT_RELATIVE_MARGIN, quality_confidence};

/// Difference of the validation from that of the original baseline, with what the gates allow.
pub fn quality(quality: &QualityStatus, spec: &TrainingJobSpec) -> Markup {
    html! {
        p {
            b { "Quality" } " at " (short(quality.items as f64)) " items, "
            @if quality.seeds != 1 { (quality.seeds) " seeds, " }
            "against the baseline (its quality launches may run with accepted phases of equal losses, which learn the same \
             sooner): validation loss "
            span.num { (signed(quality.loss_delta.value())) }
            @if let Some(upper) = &quality.loss_delta_upper {
                ", at most " span.num { (signed(upper.value())) } " with " (confidence(spec)) " confidence"
            }
            @if let Some(allowed) = of_loss(&spec.gates) { " (" (allowed) ")" }
            @for (name, increase) in &quality.metrics {
                ", " (name) " " span.num { (signed(increase.value() * 100.0)) " %" }
                @if quality.seeds > 1 { " on average" }
                @if let Some(gate) = spec.gates.validation_metrics.iter().find(|gate| gate.name == *name) {
                    " (" (of_metric(gate)) ")"
                }
            }
            @if quality.seeds == 1 { "; one seed: no interval" }
            @else if !quality.metrics.is_empty() { "; what decides on a metric is the interval of the seeds" }
            @if let Some(reach) = &spec.gates.training_loss_within {
                "; the training loss, too: allowed: " (percent(reach)) " % in either direction (trainingLossWithin)"
            }
            "."
        }
    }
}

/// The confidence of a bound, one-sided. Which of several looks it is from is not in the status.
fn confidence(spec: &TrainingJobSpec) -> String {
    let confidence = quality_confidence(spec);
    let least = limit(confidence.start() * 100.0);
    if confidence.start() < confidence.end() { format!("at least {least} %") } else { format!("{least} %") }
}

/// What the gates allow the validation loss.
fn of_loss(gates: &Gates) -> Option<String> {
    let absolute = gates.validation_loss_delta.as_ref().map(|it| limit(it.value()));
    let relative = gates.validation_loss_within.as_ref();
    let relative = relative.map(|it| format!("{} % of the baseline's in either direction", percent(it)));
    // The core adds this gate where no gate on a validation metric is set.
    let default = || format!("{} % more, by default", limit(DEFAULT_RELATIVE_MARGIN * 100.0));
    let default = (!gates.has_quality()).then(default);
    let all: Vec<String> = absolute.into_iter().chain(relative).chain(default).collect();
    (!all.is_empty()).then(|| format!("allowed: {}", all.join(", and ")))
}

/// What a gate allows its metric: changes relative to the baseline, in its unit, and values.
fn of_metric(gate: &MetricGate) -> String {
    let worse = match gate.better {
        Better::Smaller => "more",
        Better::Larger => "less",
    };
    let relative = gate.max_relative_regression.as_ref().map(|it| format!("{} % {worse}", percent(it)));
    let both = gate.max_relative_difference.as_ref().map(|it| format!("{} % in either direction", percent(it)));
    let absolute = gate.max_regression.as_ref().map(|it| format!("{} {worse}, absolute", limit(it.value())));
    let least = gate.min.as_ref().map(|it| format!("a value of at least {}", limit(it.value())));
    let most = gate.max.as_ref().map(|it| format!("a value of at most {}", limit(it.value())));
    let all: Vec<String> = [relative, both, absolute, least, most].into_iter().flatten().collect();
    format!("allowed: {}", all.join(", and "))
}

fn percent(share: &Decimal) -> String {
    limit(share.value() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The sentence for three seeds, or for one, with these gates and this analysis.
    fn of(seeds: u32, gates: Value, analysis: Value) -> String {
        let spec = json!({"workload": {"name": "ups"}, "seeds": [1, 2, 3], "gates": gates, "analysis": analysis});
        let upper = if seeds > 1 { json!("0.002") } else { Value::Null };
        let found = json!({"lossDelta": "0.001", "lossDeltaUpper": upper, "seeds": seeds, "items": 9});
        let (found, spec) = (serde_json::from_value(found).unwrap(), serde_json::from_value(spec).unwrap());
        quality(&found, &spec).into_string().replace("<span class=\"num\">", "").replace("</span>", "")
    }

    #[test]
    fn what_applies_without_a_gate_on_a_validation_metric_is_named() {
        let none = of(3, json!({}), json!({}));
        assert!(none.contains("confidence (allowed: 1 % more, by default)."), "{none}");
        let training = of(3, json!({"trainingLossWithin": "0.02"}), json!({}));
        let expected = "(allowed: 1 % more, by default); the training loss, too: allowed: 2 % in either direction \
                        (trainingLossWithin).";
        assert!(training.contains(expected), "{training}");
        let gated = of(3, json!({"validationLossDelta": "0.01"}), json!({}));
        assert!(gated.contains("(allowed: 0.01).") && !gated.contains("default"), "{gated}");
    }

    #[test]
    fn one_seed_has_no_interval() {
        let one = of(1, json!({}), json!({}));
        assert!(one.contains("9 items, against") && one.ends_with("by default); one seed: no interval.</p>"), "{one}");
        let several = of(3, json!({}), json!({}));
        assert!(several.contains("9 items, 3 seeds, against") && !several.contains("one seed"), "{several}");
    }

    #[test]
    fn the_confidence_is_that_of_the_looks() {
        let of = |looks: u32| of(3, json!({}), json!({"alphaPercent": "5", "qualityLooks": looks}));
        assert!(of(1).contains("with 95 % confidence"), "{}", of(1));
        // Two looks have an equal part of the error each, and of three the last one has the most.
        assert!(of(2).contains("with 97.5 % confidence"), "{}", of(2));
        assert!(of(3).contains("with at least 97.5 % confidence"), "{}", of(3));
    }
}
