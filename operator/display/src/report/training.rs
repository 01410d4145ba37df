//! The training: curves, validation before and after, the newest checkpoint.

use super::curves::{self, Curves};
use super::evidence::Evidence;
use crate::numbers::{bytes, percent_change, seconds, short};
use crate::trained;
use maud::{Markup, html};
use pawl_api::status::TrainingStatus;
use pawl_contract::details::Details;

/// The section on the training; `None` if the job has not trained.
pub fn section(evidence: &Evidence) -> Option<Markup> {
    let training = evidence.status.training.as_ref()?;
    let figures = curves::training(evidence);
    let metrics = training.measured.validation.as_ref().map(|validation| &validation.metrics);
    Some(html! {
        div.two {
            @for figure in figures.iter().filter_map(Curves::figure) { (figure) }
        }
        @if let Some(metrics) = metrics {
            table {
                thead { tr { th { "validation" } th.n { "before" } th.n { "now" } th.n { "change" } } }
                tbody {
                    @for (name, now) in metrics {
                        @let before = training.measured.first_metric(name).map(|before| before.value());
                        tr {
                            td { (name) }
                            td.n { (before.map(short).unwrap_or_default()) }
                            td.n { (short(now.value())) }
                            td.n { (before.and_then(|before| percent_change(before, now.value())).unwrap_or_default()) }
                        }
                    }
                }
            }
        }
        p { (facts(training).join(" · ")) }
        @for line in trained::lines(training, &evidence.job.spec.train, evidence.status.effective_settings.as_ref()) { p { (line) } }
        // Of the newest launch whose report is available.
        @if let Some(launch) = evidence.training().filter(|launch| !launch.details.is_empty()).last() {
            p { (details(&launch.details).join(" · ")) }
        }
    })
}

fn facts(training: &TrainingStatus) -> Vec<String> {
    let measured = &training.measured;
    let mut facts = vec![format!("{} steps, {} items", measured.steps, short(measured.items as f64))];
    if let Some(speed) = &measured.items_per_second {
        let expected = training.promised_items_per_second.as_ref();
        let expected = expected.map(|p| format!(" ({} expected)", short(p.value()))).unwrap_or_default();
        facts.push(format!("{} items/s{expected}", short(speed.value())));
    }
    if let Some(goodput) = &training.goodput {
        facts.push(format!("goodput {:.0} %", goodput.value() * 100.0));
    }
    facts.extend(measured.float8_overflow_share.as_ref().zip(measured.float8_underflow_share.as_ref()).map(
        |(overflow, underflow)| {
            let percent = |share: f64| short(share * 100.0);
            format!(
                "8-bit floats: {} % overflow, {} % underflow",
                percent(overflow.value()),
                percent(underflow.value())
            )
        },
    ));
    if training.restarts > 0 {
        facts.push(format!("{} restart{}", training.restarts, if training.restarts == 1 { "" } else { "s" }));
    }
    if let Some(checkpoint) = &training.last_checkpoint {
        facts.push(format!(
            "newest checkpoint {} at {} items",
            training.path(&checkpoint.name),
            short(checkpoint.items as f64)
        ));
    }
    facts
}

fn details(details: &Details) -> Vec<String> {
    let &Details { compile_seconds, epoch_seconds, gradient_norm, learning_rate, updates, skipped_updates, memory } =
        details;
    let mut facts = Vec::new();
    facts.extend(compile_seconds.map(|time| format!("compiled in {}", seconds(time))));
    facts.extend(epoch_seconds.map(|time| format!("newest epoch {}", seconds(time))));
    facts.extend(learning_rate.map(|rate| format!("learning rate {}", short(rate))));
    facts.extend(gradient_norm.map(|norm| format!("gradient norm {}", short(norm))));
    facts.extend(updates.map(|updates| format!("{updates} updates of the weights")));
    if skipped_updates > 0 {
        facts.push(format!("{skipped_updates} skipped update{}", if skipped_updates == 1 { "" } else { "s" }));
    }
    if let Some(memory) = memory {
        let kinds = memory.kinds().into_iter().filter(|(_, size)| *size > 0);
        let kinds: Vec<_> = kinds.map(|(kind, size)| format!("{kind} {}", bytes(size))).collect();
        facts.push(format!("planned memory: {}", kinds.join(", ")));
    }
    facts
}
