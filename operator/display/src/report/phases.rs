//! The evidence of each phase: verdict, pairs, loss of A against B, launches.

use super::chart;
use super::curves::{self, Curves};
use super::evidence::{Evidence, Pair, pairs};
use crate::numbers::{factor, interval, percent_change, short};
use crate::verdict::{self, Tone};
use maud::{Markup, PreEscaped, html};
use pawl_api::spec::{Numerics, Phase};
use pawl_api::status::PhaseStatus;

const CHART: f64 = 476.0;
const SPEED: &str = "Speed of each pair: B, with this phase, over A, settings so far";

/// A card for each phase, in order; nothing without phases.
pub fn cards(evidence: &Evidence) -> Option<Markup> {
    let phases = &evidence.status.phases;
    let written = |phase: &PhaseStatus| evidence.job.spec.phases.iter().find(|written| written.name == phase.name);
    (!phases.is_empty()).then(|| html! { @for phase in phases { (card(evidence, phase, written(phase))) } })
}

fn card(evidence: &Evidence, phase: &PhaseStatus, spec: Option<&Phase>) -> Markup {
    let tone = verdict::tone(phase.state);
    let pairs = pairs(phase, &evidence.job.spec);
    let threshold = spec.map_or(1.0, Phase::min_speedup);
    let speed = chart::ratios(&pairs, phase.speedup.as_ref(), threshold, CHART).map(PreEscaped);
    let speed = speed.map(|figure| html! { div { h4 { (SPEED) } (figure) } });
    let losses = curves::of_phase(evidence, phase);
    let figures: Vec<Markup> = speed.into_iter().chain(losses.iter().filter_map(Curves::figure)).collect();
    html! {
        article.card id={ "phase-" (phase.name) } {
            h3 { span.badge.(tone.class()) { (tone.symbol()) " " (verdict::phrase(phase, evidence.status.stage)) } " " (phase.name) }
            @if !phase.message.is_empty() || !phase.reason.is_empty() {
                p { b { (phase.reason) } " " (phase.message) }
            }
            @if let Some(spec) = spec { (patch(phase, spec)) }
            @if !figures.is_empty() { div.two { @for figure in &figures { (figure) } } }
            (disturbed(&pairs))
            (not_counted(&pairs))
            (quality(phase))
            @if !pairs.is_empty() { (numbers(&pairs)) }
        }
    }
}

/// The pairs that count although they were disturbed, and of how many that is not known.
fn disturbed(pairs: &[Pair]) -> Markup {
    let counted = || pairs.iter().filter(|pair| pair.not_counted.is_none());
    let of_pair = |pair: &Pair| Some(format!("pair {}: {}", pair.number + 1, pair.disturbance()?));
    let disturbed: Vec<String> = counted().filter_map(of_pair).collect();
    let unknown = counted().filter(|pair| !pair.observed && pair.disturbed.is_none()).count();
    let all = counted().count();
    let note = match unknown {
        0 if all == 0 || !disturbed.is_empty() => String::new(),
        0 => "No pair that counts was seen to be disturbed by other programs.".to_owned(),
        _ if unknown == all => "Whether other programs disturbed these pairs is not known (?).".to_owned(),
        _ => format!("Of {unknown} of the {all} pairs that count, it is not known whether they were disturbed (?)."),
    };
    html! {
        @if !disturbed.is_empty() { p { b { "Disturbed" } " (*), but counted: " (disturbed.join("; ")) "." } }
        @if !note.is_empty() { p.muted { (note) } }
    }
}

/// The pairs that the speedup is without, with the reasons.
fn not_counted(pairs: &[Pair]) -> Markup {
    let why = |pair: &Pair| Some(format!("pair {}: {}", pair.number + 1, pair.not_counted?));
    let all: Vec<String> = pairs.iter().filter_map(why).collect();
    if all.is_empty() {
        return Markup::default();
    }
    let count = format!("{} of {} pairs", all.len(), pairs.len());
    html! { p { b { "Not counted" } " (~, hollow) " (count) ": " (all.join("; ")) "." } }
}

fn numbers(pairs: &[Pair]) -> Markup {
    html! {
        details {
            summary { "Pairs in numbers" }
            table {
                thead {
                    tr {
                        th { "pair" } th.n { "seed" } th.n { "A, items/s" } th.n { "B, items/s" } th.n { "B over A" }
                        th { "in the verdict" }
                    }
                }
                tbody {
                    @for pair in pairs {
                        tr {
                            td { (pair.label()) }
                            td.n { (pair.seed) }
                            td.n { (short(pair.control)) }
                            td.n { (short(pair.candidate)) }
                            td.n { (format!("{:.3}×", pair.ratio())) }
                            td { (pair.notes()) }
                        }
                    }
                }
            }
        }
    }
}

/// The patch of the phase, including the fallbacks up to the effective one.
fn patch(phase: &PhaseStatus, spec: &Phase) -> Markup {
    let fallbacks = spec.fallbacks.iter().take(phase.effective_fallback() as usize).map(|fallback| &fallback.settings);
    html! {
        p.patch {
            @for (index, settings) in std::iter::once(&spec.settings).chain(fallbacks).enumerate() {
                @if index > 0 { " " span.muted { "then fallback " (index) ":" } " " }
                @for (name, value) in settings.flat() { code { (name) ": " (value) } " " }
            }
            span.muted {
                @match spec.numerics {
                    Numerics::Equivalent => "equivalent numerics",
                    Numerics::Changed => "changed numerics",
                }
            }
        }
    }
}

fn quality(phase: &PhaseStatus) -> Markup {
    let Some(quality) = &phase.quality else { return Markup::default() };
    html! {
        p {
            b { "Quality" } " at " (short(quality.items as f64)) " items, " (quality.seeds) " seed"
            @if quality.seeds != 1 { "s" }
            ": validation loss " span.num { (format!("{:+.5}", quality.loss_delta.value())) }
            @if let Some(upper) = &quality.loss_delta_upper {
                " (at most " span.num { (format!("{:+.5}", upper.value())) } ")"
            }
            @for (name, increase) in &quality.metrics {
                ", " (name) " "
                span.num { (percent_change(1.0, 1.0 + increase.value()).unwrap_or_default()) }
            }
            ", against the original baseline."
        }
    }
}

/// A table of the phases that were not accepted, with the reasons; `None` without such phases.
pub fn rollbacks(evidence: &Evidence) -> Option<Markup> {
    let reverted = |phase: &&PhaseStatus| matches!(verdict::tone(phase.state), Tone::Bad | Tone::Unclear);
    let reverted: Vec<&PhaseStatus> = evidence.status.phases.iter().filter(reverted).collect();
    let table = html! {
        table.cards.verdicts {
            thead { tr { th { "phase" } th { "state" } th { "reason" } th.n { "speedup" } th { "why" } } }
            tbody {
                @for phase in &reverted {
                    tr {
                        td data-name="phase" { a href={ "#phase-" (phase.name) } { (phase.name) } }
                        td data-name="state" { (verdict::phrase(phase, evidence.status.stage)) }
                        td data-name="reason" { (phase.reason) }
                        td.n data-name="speedup" { (speedup(phase)) }
                        td data-name="why" { (phase.message) }
                    }
                }
            }
        }
    };
    (!reverted.is_empty()).then_some(table)
}

/// The speedup of a phase and its interval, where they are known; a narrow page hides a cell that is empty.
fn speedup(phase: &PhaseStatus) -> String {
    let Some(speedup) = &phase.speedup else { return String::new() };
    let interval = interval(speedup).map(|interval| format!(" {interval}")).unwrap_or_default();
    factor(speedup.estimate.value()) + &interval
}
