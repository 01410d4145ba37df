//! Comparison of predicted and measured memory.

use super::evidence::Evidence;
use super::svg::{Anchor, Canvas, Scale};
use crate::numbers::bytes;
use pawl_contract::decimal::Decimal;
use pawl_contract::measured::Measured;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 760.0;
const ROW: f64 = 38.0;
const TOP: f64 = 26.0;

struct Row<'a> {
    label: &'a str,
    predicted: Option<u64>,
    measured: Option<u64>,
}

impl<'a> Row<'a> {
    fn new(label: &'a str, measured: &Measured<Decimal>) -> Self {
        Self { label, predicted: measured.predicted_memory_bytes, measured: measured.peak_memory_bytes }
    }
}

/// Draws the predicted and the measured memory of the baseline, each phase and all together; `None` without data.
pub fn draw(evidence: &Evidence) -> Option<String> {
    let status = &evidence.status;
    let baseline = status.baseline.iter().map(|baseline| Row::new("baseline", &baseline.measured));
    let phases = status.phases.iter().map(|phase| Row::new(&phase.name, &phase.measured));
    let bundle = status.bundle.iter().map(|bundle| Row::new("all together", &bundle.measured));
    let known = |row: &Row<'_>| row.predicted.is_some() || row.measured.is_some();
    let rows: Vec<Row<'_>> = baseline.chain(phases).chain(bundle).filter(known).collect();
    let gate = evidence.job.spec.gates.gpu_memory.as_ref().map(|gate| gate.get());
    let most = rows.iter().flat_map(|row| [row.predicted, row.measured]).flatten().max()?;
    // A gate far above all bars would make them invisible: it is then only mentioned in the text.
    let near_gate = gate.filter(|&gate| gate < most.saturating_mul(4));

    let unit = unit(most);
    let highest = most.max(near_gate.unwrap_or(0)) as f64 / unit.1 * 1.06;
    let scale = Scale::linear(0.0, highest, LEFT, RIGHT);
    let bottom = TOP + ROW * rows.len() as f64;
    let mut canvas = Canvas::new(WIDTH, bottom + 44.0);
    for tick in scale.ticks(6) {
        let x = scale.at(tick);
        canvas.line("grid", (x, TOP - 4.0), (x, bottom));
        canvas.text("tick", (x, bottom + 16.0), Anchor::Middle, &crate::numbers::short(tick));
    }
    let axis = match gate.filter(|_| near_gate.is_none()) {
        Some(gate) => format!("memory of the largest rank ({}); the gate is {}", unit.0, bytes(gate)),
        None => format!("memory of the largest rank ({})", unit.0),
    };
    canvas.text("axis", ((LEFT + RIGHT) / 2.0, bottom + 36.0), Anchor::Middle, &axis);
    if let Some(gate) = near_gate {
        let x = scale.at(gate as f64 / unit.1);
        canvas.line("gate", (x, TOP - 4.0), (x, bottom));
        canvas.text("gatelabel", (x, TOP - 10.0), Anchor::Middle, &format!("gate {}", bytes(gate)));
    }
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        canvas.text("label", (LEFT - 14.0, top + ROW / 2.0 + 4.5), Anchor::End, row.label);
        let bars = [("predicted", row.predicted, 7.0), ("measured", row.measured, 20.0)];
        for (class, value, offset) in bars {
            if let Some(value) = value {
                let tooltip = format!("{}, {class}: {}", row.label, bytes(value));
                let class = format!("memory {class}");
                canvas.bar(&class, (scale.at(0.0), scale.at(value as f64 / unit.1)), top + offset, 11.0, &tooltip);
            }
        }
        let text = match (row.predicted, row.measured) {
            (Some(predicted), Some(measured)) => {
                let off = (predicted as f64 / measured as f64 - 1.0) * 100.0;
                format!("{} → {} ({off:+.1} %)", bytes(predicted), bytes(measured))
            }
            (Some(predicted), None) => format!("{} predicted", bytes(predicted)),
            (None, Some(measured)) => format!("{} measured", bytes(measured)),
            (None, None) => String::new(),
        };
        canvas.text("number", (RIGHT + 16.0, top + ROW / 2.0 + 4.5), Anchor::Start, &text);
    }
    let legend = r#"<p class="legend"><span class="key predicted"></span>predicted before the launch <span class="key measured"></span>measured peak</p>"#;
    Some(canvas.finish("Memory predicted and measured") + legend)
}

/// The largest unit that does not exceed `most`, and its size in bytes.
fn unit(most: u64) -> (&'static str, f64) {
    match most {
        0..1_048_576 => ("KiB", 1024.0),
        1_048_576..1_073_741_824 => ("MiB", 1_048_576.0),
        _ => ("GiB", 1_073_741_824.0),
    }
}
