//! The table of phases.
//!
//! Laid out here and not by comfy-table, which fits a table to a terminal by wrapping the text of every cell: at 40
//! columns a reason becomes 15 lines of 4 letters, and at 80 columns a phase takes 4 lines. Here a phase is one line,
//! cut at its end; on a narrow terminal its reason is a second line.

use crate::numbers::{bytes, factor, interval, pairs, signed};
use crate::plain::plain;
use crate::together::is_current;
use crate::verdict::{self, Tone};
use console::{Style as Paint, measure_text_width, pad_str, truncate_str};
use pawl_api::TrainingJobStatus;
use pawl_api::status::{PhaseStatus, QualityStatus, Speedup, Stage};
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;

/// Minimum width of the last column.
const LEAST: usize = 24;

/// One row: its tone and its cells.
type Row = (Tone, [String; 8]);

const HEAD: [&str; 8] = ["PHASE", "STATE", "SPEEDUP", "INTERVAL", "PAIRS", "QUALITY", "MEMORY", "WHY"];
const RIGHT_ALIGNED: [bool; 8] = [false, false, true, false, true, true, true, false];

/// Renders the table of the phases and of all of them together; empty without phases. Lines are truncated to `width`
/// columns if given; `colours`: whether to use ANSI colours.
pub fn render(status: &TrainingJobStatus, width: Option<usize>, colours: bool) -> String {
    if status.phases.is_empty() {
        return String::new();
    }
    let status = &plain(status);
    let mut rows: Vec<Row> = status.phases.iter().map(|phase| phase_row(phase, status.stage)).collect();
    if let Some(bundle) = &status.bundle {
        let cells = [
            if is_current(bundle, status) { "all together" } else { "all together, earlier" }.to_owned(),
            format!("{} {}", verdict::tone(bundle.state).symbol(), verdict::word(bundle.state, status.stage)),
            speedup(bundle.speedup.as_ref()),
            bundle.speedup.as_ref().and_then(interval).unwrap_or_default(),
            bundle.speedup.as_ref().map(pairs).unwrap_or_default(),
            quality(bundle.quality.as_ref()),
            memory(&bundle.measured),
            why(&bundle.reason, &bundle.message),
        ];
        rows.push((verdict::tone(bundle.state), cells));
    }
    lay_out(&rows, width, colours)
}

fn phase_row(phase: &PhaseStatus, stage: Stage) -> Row {
    let tone = verdict::tone(phase.state);
    let cells = [
        phase.name.clone(),
        format!("{} {}", tone.symbol(), verdict::phrase(phase, stage)),
        speedup(phase.speedup.as_ref()),
        phase.speedup.as_ref().and_then(interval).unwrap_or_default(),
        phase.speedup.as_ref().map(pairs).unwrap_or_default(),
        quality(phase.quality.as_ref()),
        memory(&phase.measured),
        why(&phase.reason, &phase.message),
    ];
    (tone, cells)
}

fn speedup(speedup: Option<&Speedup>) -> String {
    speedup.map(|speedup| factor(speedup.estimate.value())).unwrap_or_default()
}

fn quality(quality: Option<&QualityStatus>) -> String {
    quality.map(|quality| format!("loss {}", signed(quality.loss_delta.value()))).unwrap_or_default()
}

/// The measured peak memory; before any launch the prediction, marked as such.
fn memory(measured: &Measured<Decimal>) -> String {
    match (measured.peak_memory_bytes, measured.predicted_memory_bytes) {
        (Some(peak), _) => bytes(peak),
        (None, Some(predicted)) => format!("predicted {}", bytes(predicted)),
        (None, None) => String::new(),
    }
}

fn why(reason: &str, message: &str) -> String {
    match (reason.is_empty(), message.is_empty()) {
        (false, false) => format!("{reason}: {message}"),
        _ => format!("{reason}{message}"),
    }
}

fn lay_out(rows: &[Row], width: Option<usize>, colours: bool) -> String {
    let used: Vec<usize> = (0..HEAD.len())
        .filter(|&column| column == HEAD.len() - 1 || rows.iter().any(|(_, cells)| !cells[column].is_empty()))
        .collect();
    let widths: Vec<usize> = used
        .iter()
        .map(|&column| {
            let cells = rows.iter().map(|(_, cells)| measure_text_width(&cells[column]));
            cells.chain([HEAD[column].len()]).max().unwrap_or(0)
        })
        .collect();
    let before_last: usize = widths[..widths.len() - 1].iter().map(|width| width + 2).sum();
    // On a narrow terminal the reason is printed on a separate line.
    let own_line = width.is_some_and(|width| width < before_last + LEAST);
    let mut text = String::new();
    let mut push = |cells: &[&str], tone: Option<Tone>| {
        let mut line = String::new();
        let last = used.len() - 1;
        for (place, (&column, &width)) in used.iter().zip(&widths).enumerate() {
            if place == last {
                break;
            }
            let align = if RIGHT_ALIGNED[column] { console::Alignment::Right } else { console::Alignment::Left };
            let cell = pad_str(cells[column], width, align, None);
            let paint = match (tone, column) {
                (None, _) => Paint::new().bold(),
                (Some(tone), 1) => tone_paint(tone),
                _ => Paint::new(),
            };
            line.push_str(&paint.force_styling(colours).apply_to(cell).to_string());
            line.push_str("  ");
        }
        let reason = cells[used[last]];
        let mut lines = Vec::new();
        if own_line {
            lines.push(line.trim_end().to_owned());
            if tone.is_some() && !reason.is_empty() {
                lines.push(format!("  {reason}"));
            }
        } else {
            lines.push(format!("{line}{reason}").trim_end().to_owned());
        }
        for line in lines {
            match width {
                Some(width) => text.push_str(&truncate_str(&line, width.max(1), "…")),
                None => text.push_str(&line),
            }
            text.push('\n');
        }
    };
    push(&HEAD, None);
    for (tone, cells) in rows {
        push(&cells.each_ref().map(String::as_str), Some(*tone));
    }
    text
}

fn tone_paint(tone: Tone) -> Paint {
    match tone {
        Tone::Good => Paint::new().green(),
        Tone::Bad => Paint::new().red(),
        Tone::Unclear => Paint::new().yellow(),
        Tone::Idle => Paint::new().dim(),
        Tone::Total => Paint::new().bold(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pawl_api::status::{BundleStatus, PhaseState};

    fn status() -> TrainingJobStatus {
        let phase = |name: &str, state, message: &str| PhaseStatus {
            name: name.to_owned(),
            state,
            reason: "SpeedAboveThreshold".to_owned(),
            message: message.to_owned(),
            speedup: Some(Speedup {
                estimate: "1.31".parse().unwrap(),
                lower: Some("1.28".parse().unwrap()),
                upper: Some("1.35".parse().unwrap()),
                pairs: 3,
                disturbed: 0,
            }),
            ..PhaseStatus::default()
        };
        TrainingJobStatus {
            phases: vec![
                phase("compile", PhaseState::Accepted, "lower bound 1.28 is at least 1.02"),
                phase("a-much-longer-name", PhaseState::RolledBack, "è troppo lento, ovvero non abbastanza veloce"),
            ],
            ..TrainingJobStatus::default()
        }
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in [20, 40, 80, 100, 120, 200] {
            let text = render(&status(), Some(width), true);
            let widest = text.lines().map(measure_text_width).max().unwrap();
            assert!(widest <= width, "{width}: {widest}\n{text}");
        }
    }

    #[test]
    fn a_job_that_has_failed_measures_nothing() {
        let mut status = status();
        status.phases[1].state = PhaseState::Measuring;
        status.bundle = Some(BundleStatus { state: PhaseState::Measuring, ..BundleStatus::default() });
        for (stage, words) in [(Stage::Optimizing, "being measured"), (Stage::Failed, "not finished")] {
            status.stage = stage;
            let text = render(&status, None, false);
            assert_eq!(text.matches(words).count(), 2, "{text}");
        }
    }

    #[test]
    fn disturbed_pairs_are_counted_beside_the_others() {
        let mut status = status();
        status.phases[0].speedup.as_mut().unwrap().disturbed = 2;
        let text = render(&status, None, false);
        let lines: Vec<bool> = text.lines().map(|line| line.contains("  3 (2 disturbed)  ")).collect();
        assert_eq!(lines, [false, true, false], "{text}");
    }

    #[test]
    fn a_prediction_is_never_shown_as_a_measurement() {
        let mut status = status();
        status.phases[0].measured = Measured {
            peak_memory_bytes: Some(11 << 30),
            predicted_memory_bytes: Some(12 << 30),
            ..Measured::default()
        };
        status.phases[1].measured = Measured { predicted_memory_bytes: Some(13 << 30), ..Measured::default() };
        let text = render(&status, None, false);
        let memory: Vec<bool> = text.lines().map(|line| line.contains("predicted")).collect();
        assert_eq!(memory, [false, false, true], "{text}");
        assert!(
            text.contains("  11.00 GiB  ") && text.contains("  predicted 13.00 GiB  ") && !text.contains("12.00"),
            "{text}"
        );
    }

    #[test]
    fn a_pipe_gets_everything_and_no_escapes() {
        let text = render(&status(), None, false);
        assert!(text.contains("lower bound 1.28 is at least 1.02") && text.contains("non abbastanza veloce"));
        assert!(text.contains("1.31×") && text.contains("[1.28, 1.35]") && !text.contains('\u{1b}'), "{text}");
        assert!(!text.contains("QUALITY"), "empty columns are left out:\n{text}");
    }
}
