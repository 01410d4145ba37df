//! SVG drawing: escaped text, scales, ticks, and a canvas whose colours are defined by the page's style sheet.

use pawl_contract::report::unprintable;
use std::fmt::{self, Display, Write};

/// Escapes text for HTML and SVG, including attributes.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if unprintable(c) && c != '\n' && c != '\t' => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Maps values to positions, linearly or logarithmically.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    logarithmic: bool,
}

impl Scale {
    /// Maps values `from..to` linearly to positions `start..end`.
    pub fn linear(from: f64, to: f64, start: f64, end: f64) -> Self {
        let to = if to > from { to } else { from + from.abs().max(1.0) * 1e-3 };
        Self { from, to, start, end, logarithmic: false }
    }

    /// Maps values `from..to`, both positive, logarithmically to positions `start..end`.
    pub fn logarithmic(from: f64, to: f64, start: f64, end: f64) -> Self {
        Self { logarithmic: true, ..Self::linear(from, to, start, end) }
    }

    /// Position of `value`, clamped to the range.
    pub fn at(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        let share = if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + share * (self.end - self.start)
    }

    /// About `count` round values for labels.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        if self.logarithmic && self.to / self.from > 4.0 {
            return self.decade_ticks(count);
        }
        let raw = (self.to - self.from) / count.max(1) as f64;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|&s| s >= raw * 0.999);
        let step = step.unwrap_or(raw);
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).map(|k| k as f64 * step).collect()
    }

    fn decade_ticks(&self, count: usize) -> Vec<f64> {
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        let ticks = |marks: &[f64]| -> Vec<f64> {
            let all = (first..=last).flat_map(|power| marks.iter().map(move |mark| mark * 10f64.powi(power)));
            all.filter(|&tick| tick >= self.from * 0.999 && tick <= self.to * 1.001).collect()
        };
        let fine = ticks(&[1.0, 2.0, 5.0]);
        if fine.len() <= count * 2 { fine } else { ticks(&[1.0]) }
    }
}

/// The first `limit` characters, with an ellipsis when something is cut off.
pub fn clipped(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    text.chars().take(limit - 1).chain(['…']).collect()
}

/// Horizontal alignment of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The position is the start of the text.
    Start,
    /// The position is the middle of the text.
    Middle,
    /// The position is the end of the text.
    End,
}

/// Builder of an SVG picture. Classes refer to the page's style sheet; positions are in pixels at full width.
#[derive(Debug)]
pub struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

impl Canvas {
    /// An empty picture.
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    fn push(&mut self, element: fmt::Arguments<'_>) {
        self.body.write_fmt(element).expect("writing to a string does not fail");
    }

    /// A straight line.
    pub fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// A bar between two positions, at least a pixel wide, with a tooltip.
    pub fn bar(&mut self, class: &str, x: (f64, f64), y: f64, height: f64, tooltip: &str) {
        let (left, right) = (x.0.min(x.1), x.0.max(x.1).max(x.0.min(x.1) + 1.0));
        self.push(format_args!(
            r#"<rect class="{class}" x="{left:.1}" y="{y:.1}" width="{:.1}" height="{height:.1}" rx="2"><title>{}</title></rect>"#,
            right - left,
            Escaped(tooltip)
        ));
    }

    /// A dot with a tooltip.
    pub fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, tooltip: &str) {
        let (x, y) = at;
        self.push(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{}</title></circle>"#,
            Escaped(tooltip)
        ));
    }

    /// A diamond with a tooltip.
    pub fn diamond(&mut self, class: &str, at: (f64, f64), radius: f64, tooltip: &str) {
        let (x, y) = at;
        self.push(format_args!(
            r#"<path class="{class}" d="M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}Z"><title>{}</title></path>"#,
            x - radius,
            y - radius,
            x + radius,
            y + radius,
            Escaped(tooltip)
        ));
    }

    /// An axis from `top` to `bottom`, which a script finds by its name.
    pub fn axis(&mut self, name: &str, x: f64, (top, bottom): (f64, f64)) {
        let name = Escaped(name);
        self.push(format_args!(
            r#"<line class="one" data-axis="{name}" x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{bottom:.1}"/>"#
        ));
    }

    /// A line through points, with a tooltip.
    pub fn path(&mut self, class: &str, points: &[(f64, f64)], tooltip: &str) {
        self.line_through(class, "", points, tooltip);
    }

    /// The line of a trial, which a script finds by its number.
    pub fn trial(&mut self, class: &str, number: u32, points: &[(f64, f64)], tooltip: &str) {
        self.line_through(class, &format!(r#" data-trial="{number}""#), points, tooltip);
    }

    /// `more`: further attributes, which are written as they are.
    fn line_through(&mut self, class: &str, more: &str, points: &[(f64, f64)], tooltip: &str) {
        let mut line = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            write!(line, "{command}{x:.1} {y:.1}").expect("writing to a string does not fail");
        }
        self.push(format_args!(
            r#"<path class="{class}"{more} d="{line}" fill="none"><title>{}</title></path>"#,
            Escaped(tooltip)
        ));
    }

    /// Text; its baseline is at `y`.
    pub fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y) = at;
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.push(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            Escaped(text)
        ));
    }

    /// A symbol with a tooltip; its baseline is at `y`.
    pub fn symbol(&mut self, class: &str, at: (f64, f64), symbol: &str, tooltip: &str) {
        self.push(format_args!("<g><title>{}</title>", Escaped(tooltip)));
        self.text(class, at, Anchor::Start, symbol);
        self.push(format_args!("</g>"));
    }

    /// The picture as an HTML element, with `label` as its description for screen readers.
    pub fn finish(self, label: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            r#"<div class="figure"><svg role="img" aria-label="{}" viewBox="0 0 {width} {height}" style="min-width:{:.0}px;max-width:{width}px">{body}</svg></div>"#,
            Escaped(label),
            width * 0.62
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn escaped_text_cannot_leave_its_place(text in ".*") {
            let safe = Escaped(&text).to_string();
            prop_assert!(!safe.contains(['<', '>', '"', '\'']));
        }

        #[test]
        fn ticks_lie_on_the_axis(from in 1e-3..1e3f64, ratio in 1.01..1e4f64, logarithmic: bool) {
            let to = from * ratio;
            let scale = if logarithmic { Scale::logarithmic(from, to, 0.0, 100.0) } else { Scale::linear(from, to, 0.0, 100.0) };
            let ticks = scale.ticks(6);
            prop_assert!(ticks.len() <= 13, "{ticks:?}");
            for tick in ticks {
                prop_assert!((-0.2..=100.2).contains(&scale.at(tick)));
            }
        }
    }
}
