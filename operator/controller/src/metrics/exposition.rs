//! Prometheus' text format, written family by family.

use std::fmt::Write;

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
}

/// Writer of the text format.
#[derive(Default)]
pub(super) struct Exposition {
    text: String,
    name: &'static str,
}

impl Exposition {
    /// Starts a family; its series follow.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self.name = name;
    }

    /// Goes on with a family that began in an earlier text.
    pub(super) fn resume(&mut self, name: &'static str) {
        self.name = name;
    }

    /// A series of the family.
    pub(super) fn series(&mut self, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(self.name);
        let mut separator = '{';
        for (name, value) in labels {
            let _ = write!(self.text, "{separator}{name}=\"");
            escape(value, &mut self.text);
            self.text.push('"');
            separator = ',';
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// Bytes written so far.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    /// The text written so far.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

fn escape(value: &str, out: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}
