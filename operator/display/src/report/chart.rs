//! Line charts over items seen, and the dots of pairs.

use super::pairs::Pair;
use super::svg::{Anchor, Canvas, Scale};
use crate::numbers::{factor, short};
use pawl_api::status::Speedup;

/// A line of a chart.
pub struct Series {
    /// Its class in the style sheet: `a`, `b`, `train`, `valid`, or `c0` to `c11` for those of several jobs.
    pub class: &'static str,
    /// Its name in the tooltip.
    pub name: String,
    /// (items, value), in order of items.
    pub points: Vec<(f64, f64)>,
    /// Whether to draw a dot at each point.
    pub dots: bool,
}

/// Draws lines over items seen; `None` without data.
pub fn lines(series: &[Series], width: f64, height: f64, unit: &str, label: &str) -> Option<String> {
    let points = || series.iter().flat_map(|line| &line.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
    };
    if series.iter().all(|line| line.points.len() < 2) {
        return None;
    }
    let (first, last) = range(&mut points().map(|&(x, _)| x));
    let (low, high) = range(&mut points().map(|&(_, y)| y));
    if !(low.is_finite() && first.is_finite()) {
        return None;
    }
    let (left, right, top, bottom) = (64.0, width - 22.0, 14.0, height - 42.0);
    let x_scale = Scale::linear(first.min(0.0), last, left, right);
    let y_scale = if low > 0.0 && high / low > 8.0 {
        Scale::logarithmic(low / 1.1, high * 1.1, bottom, top)
    } else {
        let margin = (high - low).max(high.abs() * 1e-3) * 0.06;
        Scale::linear(low - margin, high + margin, bottom, top)
    };
    let mut canvas = Canvas::new(width, height);
    for tick in y_scale.ticks(5) {
        let y = y_scale.at(tick);
        canvas.line("grid", (left, y), (right, y));
        canvas.text("tick", (left - 8.0, y + 4.0), Anchor::End, &short(tick));
    }
    for tick in x_scale.ticks(if width > 600.0 { 8 } else { 4 }) {
        let x = x_scale.at(tick);
        canvas.line("grid", (x, bottom), (x, bottom + 4.0));
        canvas.text("tick", (x, bottom + 18.0), Anchor::Middle, &short(tick));
    }
    canvas.text("axis", ((left + right) / 2.0, height - 6.0), Anchor::Middle, &format!("items seen ({unit})"));
    for line in series {
        let finite = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let places: Vec<(f64, f64)> = finite.clone().map(|&(x, y)| (x_scale.at(x), y_scale.at(y))).collect();
        if places.len() > 1 {
            canvas.path(&format!("series {}", line.class), &places, &line.name);
        }
        if line.dots || places.len() == 1 {
            for (&place, &(items, value)) in places.iter().zip(finite) {
                let tooltip = format!("{}: {} at {} items", line.name, short(value), short(items));
                canvas.dot(&format!("point {}", line.class), place, 3.0, &tooltip);
            }
        }
    }
    Some(canvas.finish(label))
}

/// Draws each pair's ratio as a dot over the interval and the threshold, if there is one, hollow if the pair does not
/// count; `None` without pairs.
pub fn ratios(pairs: &[Pair], speedup: Option<&Speedup>, threshold: Option<f64>, width: f64) -> Option<String> {
    if pairs.is_empty() {
        return None;
    }
    let bounds = speedup.map_or((None, None), crate::numbers::bounds);
    let values = pairs.iter().map(Pair::ratio).chain([1.0]).chain(threshold).chain(bounds.0).chain(bounds.1);
    let usable = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = usable.fold((1.0f64, 1.0f64), |(low, high), v| (low.min(v), high.max(v)));
    let margin = ((high / low).powf(0.06)).max(1.004);
    let (left, right, top, row) = (64.0, width - 22.0, 26.0, 20.0);
    let bottom = top + row * pairs.len() as f64;
    let scale = Scale::logarithmic(low / margin, high * margin, left, right);
    let mut canvas = Canvas::new(width, bottom + 42.0);
    if let (Some(lower), Some(upper)) = bounds {
        let tooltip = format!("interval of the speedup: {lower:.3} to {upper:.3}");
        canvas.bar("band", (scale.at(lower), scale.at(upper)), top - 6.0, bottom - top + 6.0, &tooltip);
    }
    for tick in scale.ticks(5) {
        let x = scale.at(tick);
        canvas.line("grid", (x, top - 6.0), (x, bottom));
        canvas.text("tick", (x, bottom + 16.0), Anchor::Middle, &fine_factor(tick, high / low));
    }
    canvas.text("axis", ((left + right) / 2.0, bottom + 36.0), Anchor::Middle, "speed of B over A");
    canvas.line("one", (scale.at(1.0), top - 6.0), (scale.at(1.0), bottom));
    if let Some(threshold) = threshold {
        let (x, label) = (scale.at(threshold), format!("needs {}", fine_factor(threshold, 1.0)));
        canvas.line("gate", (x, top - 6.0), (x, bottom));
        canvas.text("gatelabel", (x.clamp(left + 34.0, right - 34.0), top - 12.0), Anchor::Middle, &label);
    }
    if let Some(speedup) = speedup {
        let x = scale.at(speedup.estimate.value());
        canvas.line("estimate", (x, top - 6.0), (x, bottom));
    }
    for (index, pair) in pairs.iter().enumerate() {
        draw_pair(&mut canvas, &scale, pair, (left, top + row * (index as f64 + 0.5) - 3.0));
    }
    Some(canvas.finish("Speed ratio of each pair of launches"))
}

/// The label of a pair at the left edge, and its dot.
fn draw_pair(canvas: &mut Canvas, scale: &Scale, pair: &Pair, (left, y): (f64, f64)) {
    canvas.text("tick", (left - 10.0, y + 4.0), Anchor::End, &format!("pair {}", pair.label()));
    let tooltip = format!(
        "pair {}, seed {}: A {}, B {} items/s: {:.3}×; {}",
        pair.number + 1,
        pair.seed,
        short(pair.control),
        short(pair.candidate),
        pair.ratio(),
        pair.notes()
    );
    let class = if pair.not_counted.is_some() { "point left" } else { "point b" };
    canvas.dot(class, (scale.at(pair.ratio()), y), 4.5, &tooltip);
}

/// A factor with as many digits as the axis requires.
fn fine_factor(value: f64, ratio: f64) -> String {
    if ratio > 1.06 || (value * 100.0 - (value * 100.0).round()).abs() < 1e-6 {
        factor(value)
    } else {
        format!("{value:.3}×")
    }
}
