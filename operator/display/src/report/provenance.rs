//! What was measured with: machine, versions and source.

use super::evidence::Evidence;
use crate::provenance::{data, facts, mixed, parts, warning};
use maud::{Markup, html};

/// A table of what is known, and a warning where attempts that measured differ; `None` when nothing is known.
pub fn section(evidence: &Evidence) -> Option<Markup> {
    let facts = facts(&evidence.measured_with);
    let table = html! {
        @if let Some(warning) = warning(&evidence.measured_with) { p.notice { (warning) } }
        @if let Some(parts) = parts(&evidence.measured_with, evidence.status.training.as_ref()) {
            p.notice { "The model was trained in " (parts) "." }
        }
        @if let Some(mixed) = mixed(&evidence.measured_with) { p.notice { (mixed) } }
        @let pods = evidence.job.spec.trainer.replicas;
        @if pods > 1 {
            p.muted {
                "The table is that of pod 0 of " (pods) ". Others are named where they are known to differ in GPU, CPU "
                "or driver."
            }
        }
        table {
            tbody {
                @for fact in &facts {
                    tr {
                        th scope="row" { (fact.name) }
                        td { @for text in fact.texts() { div { (text) } } }
                    }
                }
                @if data(&evidence.measured_with).is_none() {
                    tr { th scope="row" { "data" } td { "not known" } }
                }
            }
        }
    };
    (!facts.is_empty()).then_some(table)
}
