//! The evidence of each phase and of all of them together: verdict, pairs, loss of A against B, launches.

use super::chart;
use super::curves::{self, Curves};
use super::evidence::Evidence;
use super::measurement::Measurements;
use super::pairs::{Comparison, Pair};
use super::quality::quality;
use crate::numbers::{factor, interval, limit, short};
use crate::together::{TOGETHER, is_current};
use crate::verdict::{self, Tone};
use maud::{Markup, PreEscaped, html};
use pawl_api::spec::{Numerics, Phase};
use pawl_api::status::{BundleStatus, PhaseState, PhaseStatus};

const CHART: f64 = 476.0;
const SPEED: &str = "Speed of each pair: B, with this phase, over A, settings so far";
const SPEED_TOGETHER: &str = "Speed of each pair: B, with all accepted phases, over A, the baseline";
/// Identifies the card of all accepted phases together; those of phases begin with `phase-`.
pub const TOGETHER_ID: &str = "all-together";

/// A card for each phase, in order, and one for all of them together; nothing without phases.
pub fn cards(evidence: &Evidence, comparisons: &[Comparison<'_>], measurements: &Measurements<'_>) -> Option<Markup> {
    let phases = &evidence.status.phases;
    let bundle = evidence.status.bundle.as_ref();
    let all = comparisons.iter().find(|comparison| comparison.name == TOGETHER);
    let written = |phase: &PhaseStatus| evidence.job.spec.phases.iter().find(|written| written.name == phase.name);
    (!phases.is_empty()).then(|| {
        html! {
            @for (phase, comparison) in phases.iter().zip(comparisons) {
                (card(evidence, (comparison, measurements), phase, written(phase)))
            }
            @if let Some((bundle, all)) = bundle.zip(all) { (together(evidence, (all, measurements), bundle)) }
        }
    })
}

fn card(
    evidence: &Evidence,
    (comparison, measurements): (&Comparison<'_>, &Measurements<'_>),
    phase: &PhaseStatus,
    spec: Option<&Phase>,
) -> Markup {
    let losses = curves::of_phase(evidence, phase);
    let losses: Vec<Markup> = losses.iter().filter_map(Curves::figure).collect();
    let verdict = verdict::phrase(phase, evidence.status.stage);
    html! {
        article.card id={ "phase-" (phase.name) } {
            (heading(phase.state, &verdict, &phase.name))
            @if let Some(measurement) = measurements.get(phase.name.as_str()) { (measurement.line()) }
            (explained(&phase.message, &phase.reason))
            @if let Some(spec) = spec {
                (allowance(phase, spec))
                (patch(phase, spec))
                p.muted { (numerics(phase, spec)) (losses_apart(spec, &comparison.pairs).unwrap_or_default()) }
            }
            (measured(evidence, comparison, SPEED, losses))
        }
    }
}

/// The card of all accepted phases together.
fn together(
    evidence: &Evidence,
    (comparison, measurements): (&Comparison<'_>, &Measurements<'_>),
    bundle: &BundleStatus,
) -> Markup {
    let losses = curves::of_bundle(evidence, bundle);
    let losses: Vec<Markup> = losses.iter().filter_map(Curves::figure).collect();
    let verdict = verdict::word(bundle.state, evidence.status.stage);
    html! {
        article.card id=(TOGETHER_ID) {
            (heading(bundle.state, verdict, comparison.name))
            @if !is_current(bundle, &evidence.status) && evidence.status.phases.iter().any(is_accepted) {
                p.notice { "Measured with earlier settings: those in effect have not been measured together." }
            }
            @if let Some(measurement) = measurements.get(comparison.name) { (measurement.line()) }
            (explained(&bundle.message, &bundle.reason))
            (measured(evidence, comparison, SPEED_TOGETHER, losses))
        }
    }
}

fn is_accepted(phase: &PhaseStatus) -> bool {
    phase.state == PhaseState::Accepted
}

fn heading(state: PhaseState, verdict: &str, name: &str) -> Markup {
    let tone = verdict::tone(state);
    html! { h3 { span.badge.(tone.class()) { (tone.symbol()) " " (verdict) } " " (name) } }
}

/// The message, and then the reason, by which documentation is searched.
fn explained(message: &str, reason: &str) -> Markup {
    html! {
        @if !message.is_empty() || !reason.is_empty() {
            p { (message) " " span.muted { (reason) } }
        }
    }
}

/// What is said of an accepted phase that need not be faster: its speedup is no gain then.
fn allowance(phase: &PhaseStatus, spec: &Phase) -> Markup {
    let least = spec.min_speedup();
    let applies = least < 1.0 && phase.state == PhaseState::Accepted && phase.speedup.is_some();
    html! {
        @if applies { p { "It need not be faster: " (limit(least)) " of the speed before it is enough (minSpeedup)." } }
    }
}

/// Charts, pairs and quality of a comparison.
fn measured(evidence: &Evidence, comparison: &Comparison<'_>, title: &str, losses: Vec<Markup>) -> Markup {
    let spec = &evidence.job.spec;
    let pairs = &comparison.pairs;
    let speed = chart::ratios(pairs, comparison.speedup, comparison.needed, CHART).map(PreEscaped);
    let speed = speed.map(|figure| html! { div { h4 { (title) } (figure) } });
    let figures: Vec<Markup> = speed.into_iter().chain(losses).collect();
    html! {
        @if !figures.is_empty() { div.two { @for figure in &figures { (figure) } } }
        (disturbed(comparison))
        (not_counted(comparison))
        @if let Some(found) = comparison.quality { (quality(found, spec)) }
        @if !pairs.is_empty() { (numbers(pairs)) }
    }
}

/// The pairs that count although they were disturbed.
fn disturbed(comparison: &Comparison<'_>) -> Markup {
    let of_pair = |pair: &Pair| Some(format!("pair {}: {}", pair.number + 1, pair.disturbance()?));
    let disturbed: Vec<String> = comparison.counted().filter_map(of_pair).collect();
    html! {
        @if !disturbed.is_empty() { p { b { "Disturbed" } " (*), but counted: " (disturbed.join("; ")) "." } }
    }
}

/// The pairs that the speedup is without, with the reasons.
fn not_counted(comparison: &Comparison<'_>) -> Markup {
    let (pairs, half) = (&comparison.pairs, &comparison.half_pairs);
    let complete = pairs.iter().filter_map(|pair| Some((pair.number, pair.not_counted?.to_string())));
    let alone = half.iter().map(|pair| (pair.number, pair.why.text().to_owned()));
    let mut all: Vec<(u32, String)> = complete.chain(alone).collect();
    if all.is_empty() {
        return Markup::default();
    }
    all.sort_by_key(|(number, _)| *number);
    let drawn = if all.len() > half.len() { " (~, hollow)" } else { "" };
    let count = format!("{} of {} pairs", all.len(), pairs.len() + half.len());
    let why: Vec<String> = all.iter().map(|(number, why)| format!("pair {}: {why}", number + 1)).collect();
    html! { p { b { "Not counted" } (drawn) " " (count) ": " (why.join("; ")) "." } }
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
        }
    }
}

/// What the phase is declared to compute, and thus what is tested.
fn numerics(phase: &PhaseStatus, spec: &Phase) -> &'static str {
    match spec.numerics {
        Numerics::Equivalent if phase.judged_as_changed.is_empty() => {
            "declared to compute the same: training losses are compared, and quality is not tested unless they leave \
             that open"
        }
        Numerics::Equivalent => "declared to compute the same, which the training losses leave open: quality is tested",
        Numerics::Changed => "declared to change the numerics: quality is tested once it is fast enough",
    }
}

/// How far the training losses of a phase that is declared to compute the same are from those of its controls.
fn losses_apart(spec: &Phase, pairs: &[Pair]) -> Option<String> {
    if spec.numerics != Numerics::Equivalent {
        return None;
    }
    let differences = || pairs.iter().filter_map(|pair| pair.loss).map(|loss| loss * 100.0).filter(|it| it.is_finite());
    let (least, most) = (differences().reduce(f64::min)?, differences().reduce(f64::max)?);
    // Without a negative zero.
    let side = |value: f64| format!("{:+.2} %", (value * 100.0).round() / 100.0 + 0.0);
    let by = match (side(least), side(most)) {
        _ if least.abs().max(most.abs()) < 0.01 => "less than 0.01 %".to_owned(),
        (least, most) if least == most => most,
        (least, most) => format!("{least} to {most}"),
    };
    Some(format!(
        "; B's losses differ from A's by {by} (of each pair, the mean over the second half of what both recorded)"
    ))
}

/// A table of the phases that were not accepted or skipped, with the reasons; `None` without such phases.
pub fn rollbacks(evidence: &Evidence, measurements: &Measurements<'_>) -> Option<Markup> {
    let is_listed = |phase: &&PhaseStatus| {
        matches!(verdict::tone(phase.state), Tone::Bad | Tone::Unclear) || phase.state == PhaseState::Skipped
    };
    let listed: Vec<&PhaseStatus> = evidence.status.phases.iter().filter(is_listed).collect();
    let table = html! {
        table.cards.verdicts {
            thead { tr { th { "phase" } th { "state" } th.n { "speedup" } th { "why" } th { "reason" } } }
            tbody {
                @for phase in &listed {
                    tr {
                        td data-name="phase" { a href={ "#phase-" (phase.name) } { (phase.name) } }
                        td data-name="state" { (verdict::phrase(phase, evidence.status.stage)) }
                        td.n data-name="speedup" { (speedup(phase)) }
                        td data-name="why" {
                            (phase.message)
                            @if let Some(measurement) = measurements.get(phase.name.as_str()) { (measurement.line()) }
                        }
                        td data-name="reason" { (phase.reason) }
                    }
                }
            }
        }
    };
    (!listed.is_empty()).then_some(table)
}

/// The speedup of a phase and its interval, where they are known; a narrow page hides a cell that is empty.
fn speedup(phase: &PhaseStatus) -> String {
    let Some(speedup) = &phase.speedup else { return String::new() };
    let interval = interval(speedup).map(|interval| format!(" {interval}")).unwrap_or_default();
    factor(speedup.estimate.value()) + &interval
}
