//! The quality of a comparison, in words.

use crate::numbers::{limit, short, signed};
use maud::{Markup, html};
use pawl_api::spec::{Analysis, Gates, MetricGate, TrainingJobSpec};
use pawl_api::status::QualityStatus;
use pawl_contract::decimal::Decimal;
use pawl_contract::plan::Better;

/// Difference of the validation from that of the original baseline, with what the gates allow.
pub fn quality(quality: &QualityStatus, spec: &TrainingJobSpec) -> Markup {
    html! {
        p {
            b { "Quality" } " at " (short(quality.items as f64)) " items, " (quality.seeds) " seed"
            @if quality.seeds != 1 { "s" }
            ", against the original baseline: validation loss "
            span.num { (signed(quality.loss_delta.value())) }
            @if let Some(upper) = &quality.loss_delta_upper {
                ", at most " span.num { (signed(upper.value())) } " with " (confidence(&spec.analysis)) " confidence"
            }
            @if let Some(allowed) = of_loss(&spec.gates) { " (" (allowed) ")" }
            @for (name, increase) in &quality.metrics {
                ", " (name) " " span.num { (signed(increase.value() * 100.0)) " %" }
                @if let Some(gate) = spec.gates.validation_metrics.iter().find(|gate| gate.name == *name) {
                    " (" (of_metric(gate)) ")"
                }
            }
            "."
        }
    }
}

/// The confidence of a bound, one-sided. With several looks, the last one has half of the error of a verdict, and each
/// one before it at most that.
fn confidence(analysis: &Analysis) -> String {
    let error = analysis.alpha_percent.value().clamp(1e-4, 50.0);
    let is_in_parts = analysis.quality_looks > 1 && analysis.quality_epochs.is_none();
    if is_in_parts {
        format!("at least {} %", limit(100.0 - error / 2.0))
    } else {
        format!("{} %", limit(100.0 - error))
    }
}

/// What the gates allow the validation loss.
fn of_loss(gates: &Gates) -> Option<String> {
    let absolute = gates.validation_loss_delta.as_ref().map(|it| limit(it.value()));
    let relative = gates.validation_loss_within.as_ref();
    let relative = relative.map(|it| format!("{} % of the baseline's in either direction", percent(it)));
    let all: Vec<String> = absolute.into_iter().chain(relative).collect();
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
