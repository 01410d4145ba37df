//! The waterfall chart: the speedup of each phase with its confidence interval, multiplied up to the total speedup.

use super::evidence::Evidence;
use super::measurement::{Measurement, Measurements};
use super::svg::{Anchor, Canvas, Scale, clipped};
use crate::numbers::{bounds, factor, interval};
use crate::together::{TOGETHER, is_current, together_word};
use crate::verdict::{self, Tone};
use pawl_api::TrainingJobStatus;
use pawl_api::spec::Phase;
use pawl_api::status::{PhaseState, PhaseStatus, Speedup, Stage};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 620.0;
/// Where the marks of the measurements begin, after the longest number, and the verdicts after them.
const MEASUREMENT: f64 = RIGHT + 162.0;
const VERDICT: f64 = MEASUREMENT + 18.0;
const ROW: f64 = 34.0;
const TOP: f64 = 34.0;

/// One line of the waterfall.
struct Row<'a> {
    label: &'a str,
    /// Speedup over the baseline at which its bar starts.
    from: f64,
    speedup: Option<&'a Speedup>,
    expected: Option<f64>,
    tone: Tone,
    verdict: String,
    /// How good its measurement is, if it has a speedup.
    measurement: Option<&'a Measurement>,
    /// Whether the bars of later rows start at its end.
    accepted: bool,
}

impl Row<'_> {
    fn values(&self) -> impl Iterator<Item = f64> + '_ {
        let (lower, upper) = self.speedup.map_or((None, None), bounds);
        let estimate = self.speedup.map(|speedup| speedup.estimate.value());
        let relative = [estimate, lower, upper, self.expected].into_iter().flatten();
        relative.map(move |value| self.from * value).filter(|value| value.is_finite() && *value > 0.0)
    }
}

/// The product of the estimates of all accepted phases.
pub fn product(phases: &[PhaseStatus]) -> f64 {
    let accepted = phases.iter().filter(|phase| phase.state == PhaseState::Accepted);
    accepted.filter_map(|phase| phase.speedup.as_ref()).map(|speedup| speedup.estimate.value()).product()
}

/// Of several accepted phases, the one with the largest estimate, and this.
pub fn most(phases: &[PhaseStatus]) -> Option<(&str, f64)> {
    let accepted = phases.iter().filter(|phase| phase.state == PhaseState::Accepted);
    let gains = accepted.filter_map(|phase| Some((phase.name.as_str(), phase.speedup.as_ref()?.estimate.value())));
    let gains: Vec<(&str, f64)> = gains.collect();
    let most = gains.iter().copied().max_by(|(_, one), (_, other)| one.total_cmp(other));
    most.filter(|_| gains.len() > 1)
}

/// The product of several accepted phases, if it is outside of the interval that was measured of all of them together,
/// and this speedup; `None` while that is being measured.
pub fn apart(status: &TrainingJobStatus) -> Option<(f64, &Speedup)> {
    let accepted = || status.phases.iter().filter(|phase| phase.state == PhaseState::Accepted);
    let bundle = status.bundle.as_ref().filter(|bundle| bundle.state.is_final() && is_current(bundle, status));
    let together = bundle.filter(|_| accepted().count() > 1).and_then(|bundle| bundle.speedup.as_ref())?;
    let product = product(&status.phases);
    let (lower, upper) = bounds(together);
    let is_inside = (lower?..=upper?).contains(&product);
    (!is_inside && accepted().all(|phase| phase.speedup.is_some())).then_some((product, together))
}

/// Draws the waterfall, with how good the measurement of each comparison is; `None` when the job has no phases.
pub fn draw(evidence: &Evidence, measurements: &Measurements<'_>) -> Option<String> {
    let spec = &evidence.job.spec;
    let status = &evidence.status;
    if status.phases.is_empty() {
        return None;
    }
    let rows = rows(&spec.phases, &status.phases, measurements, status.stage);
    let bundle = status.bundle.as_ref().and_then(|bundle| Some((bundle, bundle.speedup.as_ref()?)));
    let together = bundle.map(|(bundle, speedup)| Row {
        label: TOGETHER,
        from: 1.0,
        speedup: Some(speedup),
        expected: None,
        tone: Tone::Total,
        verdict: together_word(bundle, status).to_owned(),
        measurement: measurements.get(TOGETHER),
        accepted: true,
    });
    let gate = spec.gates.overall_speedup.as_ref().map(|gate| gate.value());
    let all: Vec<&Row> = rows.iter().chain(&together).collect();

    let values = all.iter().flat_map(|row| row.values()).chain(gate).chain([1.0]);
    let (low, high) = values.fold((1.0f64, 1.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let scale = Scale::logarithmic((low / 1.04).max(0.05), (high * 1.06).max(1.1), LEFT, RIGHT);
    let bottom = TOP + ROW * all.len() as f64;
    let mut canvas = Canvas::new(WIDTH, bottom + 44.0);

    for tick in scale.ticks(6) {
        let x = scale.at(tick);
        canvas.line("grid", (x, TOP - 6.0), (x, bottom));
        canvas.text("tick", (x, bottom + 16.0), Anchor::Middle, &factor(tick));
    }
    canvas.text(
        "axis",
        ((LEFT + RIGHT) / 2.0, bottom + 36.0),
        Anchor::Middle,
        "speedup over the baseline (items/s, logarithmic)",
    );
    canvas.line("one", (scale.at(1.0), TOP - 6.0), (scale.at(1.0), bottom));
    if let Some(gate) = gate {
        let x = scale.at(gate);
        canvas.line("gate", (x, TOP - 6.0), (x, bottom));
        canvas.text("gatelabel", (x, TOP - 12.0), Anchor::Middle, &format!("gate {}", factor(gate)));
    }
    for (index, row) in all.iter().enumerate() {
        draw_row(&mut canvas, &scale, row, TOP + ROW * index as f64, index + 1 < all.len());
    }
    Some(canvas.finish("Waterfall of speedups by phase"))
}

fn rows<'a>(
    specs: &[Phase],
    phases: &'a [PhaseStatus],
    measurements: &'a Measurements<'_>,
    stage: Stage,
) -> Vec<Row<'a>> {
    let mut reached = 1.0;
    let mut rows = Vec::new();
    for phase in phases {
        let spec = specs.iter().find(|spec| spec.name == phase.name);
        let accepted = phase.state == PhaseState::Accepted;
        rows.push(Row {
            label: &phase.name,
            from: reached,
            speedup: phase.speedup.as_ref(),
            expected: spec.and_then(|spec| spec.expected_speedup.as_ref()).map(|expected| expected.value()),
            tone: verdict::tone(phase.state),
            verdict: verdict::phrase(phase, stage),
            measurement: measurements.get(phase.name.as_str()),
            accepted,
        });
        if let (true, Some(speedup)) = (accepted, &phase.speedup) {
            reached *= speedup.estimate.value();
        }
    }
    rows
}

fn draw_row(canvas: &mut Canvas, scale: &Scale, row: &Row<'_>, top: f64, more: bool) {
    let middle = top + ROW / 2.0;
    let class = row.tone.class();
    canvas.text("label", (LEFT - 14.0, middle + 4.5), Anchor::End, &clipped(row.label, 24));
    let mut end = row.from;
    if let Some(speedup) = row.speedup {
        let estimate = speedup.estimate.value();
        let tooltip = format!("{}: {} {}", row.label, factor(estimate), interval(speedup).unwrap_or_default());
        let bar = if row.accepted { format!("bar {class}") } else { format!("bar ghost {class}") };
        canvas.bar(&bar, (scale.at(row.from), scale.at(row.from * estimate)), top + 8.0, ROW - 16.0, &tooltip);
        if let (Some(lower), Some(upper)) = bounds(speedup) {
            let (left, right) = (scale.at(row.from * lower), scale.at(row.from * upper));
            canvas.line("whisker", (left, middle), (right, middle));
            for x in [left, right] {
                canvas.line("whisker", (x, middle - 5.0), (x, middle + 5.0));
            }
        }
        let text = format!("{} {}", factor(estimate), interval(speedup).unwrap_or_default());
        canvas.text("number", (RIGHT + 16.0, middle + 4.5), Anchor::Start, &text);
        if row.accepted {
            end = row.from * estimate;
        }
    } else {
        canvas.diamond(&format!("mark {class}"), (scale.at(row.from), middle), 5.0, row.label);
    }
    if let Some(expected) = row.expected {
        let tooltip = format!("{}: {} was expected", row.label, factor(expected));
        canvas.diamond("expected", (scale.at(row.from * expected), middle), 5.0, &tooltip);
    }
    if let Some(measurement) = row.measurement {
        let class = format!("level {}", measurement.level.class());
        canvas.symbol(&class, (MEASUREMENT, middle + 4.5), measurement.level.symbol(), &measurement.text());
    }
    let verdict = format!("{} {}", row.tone.symbol(), row.verdict);
    canvas.text(&format!("verdict {class}"), (VERDICT, middle + 4.5), Anchor::Start, &clipped(&verdict, 26));
    if more && row.tone != Tone::Total {
        canvas.line("step", (scale.at(end), top + ROW - 8.0), (scale.at(end), top + ROW + 8.0));
    }
}
