//! Ranges of the numbers that are written as strings, which JSON Schema cannot compare.
//!
//! The table is used twice: [`crate::rules`] generates a CEL rule from each line for the API server, and
//! [`crate::validate()`] checks manifests.

use std::fmt::Write;

/// How a bounded string is parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NumberFormat {
    /// A decimal number.
    Decimal,
    /// A duration; the limits are in seconds.
    Time,
}

/// A field and the range of its number.
pub(crate) struct Bound {
    /// Path of the object, `[]` for every element: `spec.phases[]`.
    pub at: &'static str,
    /// The field in it.
    pub field: &'static str,
    /// How it is parsed.
    pub format: NumberFormat,
    /// Lower limit, and whether it is inclusive.
    low: (f64, bool),
    /// Upper limit, if any, and whether it is inclusive.
    high: Option<(f64, bool)>,
    /// The remedy: an example of a valid value.
    pub remedy: &'static str,
}

impl Bound {
    /// Whether `value` lies in the range.
    pub(crate) fn admits(&self, value: f64) -> bool {
        let over = if self.low.1 { value >= self.low.0 } else { value > self.low.0 };
        over && self.high.is_none_or(|(high, closed)| if closed { value <= high } else { value < high })
    }

    /// The range in words: `above 0 and below 50`.
    pub(crate) fn words(&self) -> String {
        let mut text = format!("{} {}", if self.low.1 { "at least" } else { "above" }, self.show(self.low.0));
        if let Some((high, closed)) = self.high {
            let _ = write!(text, " and {} {}", if closed { "at most" } else { "below" }, self.show(high));
        }
        text
    }

    /// The range as a CEL expression over `self`; an absent field passes.
    pub(crate) fn cel(&self) -> String {
        let field = self.field;
        let number = |value: f64| match self.format {
            NumberFormat::Decimal => format!("{value:?}"),
            NumberFormat::Time => format!("duration('{}')", self.show(value)),
        };
        let read = match self.format {
            NumberFormat::Decimal => format!("double(self.{field})"),
            NumberFormat::Time => format!("duration(self.{field})"),
        };
        let mut text = format!("{read} {} {}", if self.low.1 { ">=" } else { ">" }, number(self.low.0));
        if let Some((high, closed)) = self.high {
            let _ = write!(text, " && {read} {} {}", if closed { "<=" } else { "<" }, number(high));
        }
        format!("!has(self.{field}) || ({text})")
    }

    fn show(&self, value: f64) -> String {
        match self.format {
            NumberFormat::Decimal => format!("{value}"),
            NumberFormat::Time if value >= 3600.0 => format!("{}h", value / 3600.0),
            NumberFormat::Time => format!("{value}s"),
        }
    }
}

const fn above(at: &'static str, field: &'static str, low: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, low: (low, false), high: None, remedy }
}

const fn at_least(at: &'static str, field: &'static str, low: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, low: (low, true), high: None, remedy }
}

const fn share(at: &'static str, field: &'static str, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, low: (0.0, true), high: Some((1.0, true)), remedy }
}

/// From `low` seconds to ten years.
const fn time(at: &'static str, field: &'static str, low: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Time, low: (low, true), high: Some((87_600.0 * 3600.0, true)), remedy }
}

const RATIO: &str = "write a ratio such as \"1.02\"";
const SHARE: &str = "write a share of 1 such as \"0.75\"";
const PART: &str = "write a share such as \"0.03\" for 3 %";
const PRICE: &str = "write a price such as \"1.89\"";
const TIME: &str = "write a time such as \"10m\"";

/// The bounds, except those of settings.
#[rustfmt::skip]
const OF_THE_SPEC: [Bound; 28] = [
    above("spec.phases[]", "expectedSpeedup", 0.0, RATIO),
    above("spec.phases[]", "minSpeedup", 0.0, RATIO),
    Bound { at: "spec.analysis", field: "alphaPercent", format: NumberFormat::Decimal, low: (0.0, false), high: Some((50.0, false)),
            remedy: "write percent such as \"5\"" },
    above("spec.gates", "overallSpeedup", 0.0, RATIO),
    at_least("spec.gates", "validationLossDelta", 0.0, "write a loss such as \"0.001\""),
    above("spec.gates", "validationLossWithin", 0.0, PART),
    above("spec.gates", "trainingLossWithin", 0.0, PART),
    at_least("spec.gates", "gpuMemoryIncrease", 0.0, PART),
    above("spec.gates", "minItemsPerSecond", 0.0, "write items per second such as \"1200\""),
    above("spec.gates", "maxEpochSeconds", 0.0, "write seconds such as \"90\""),
    share("spec.gates", "minGpuUtilization", SHARE),
    share("spec.gates", "maxOffloadOverhead", SHARE),
    at_least("spec.gates.validationMetrics[]", "maxRelativeRegression", 0.0, PART),
    at_least("spec.gates.validationMetrics[]", "maxRelativeDifference", 0.0, PART),
    at_least("spec.gates.validationMetrics[]", "maxRegression", 0.0, "write a difference such as \"0.001\""),
    at_least("spec.train.earlyStopping", "minDelta", 0.0, "write a loss such as \"0.0001\", or \"0\""),
    Bound { at: "spec.train.guard", field: "throughputTolerance", format: NumberFormat::Decimal, low: (0.0, false), high: Some((1.0, false)),
            remedy: "write a share such as \"0.2\"" },
    time("spec.train.checkpoint", "every", 1.0, TIME),
    at_least("spec.cost", "gpuHour", 0.0, PRICE),
    at_least("spec.cost", "machineHour", 0.0, PRICE),
    above("spec.search[].budget", "gpuHours", 0.0, "write hours such as \"8\""),
    above("spec.search[].budget", "cost", 0.0, PRICE),
    time("spec.search[].budget", "wallTime", 1.0, TIME),
    time("spec.lifecycle", "activeDeadline", 1.0, TIME),
    time("spec.lifecycle", "schedulingTimeout", 1.0, TIME),
    time("spec.lifecycle", "hangTimeout", 1.0, TIME),
    time("spec.lifecycle", "checkpointGrace", 1.0, TIME),
    time("spec.lifecycle", "ttlAfterFinished", 0.0, TIME),
];

/// Where settings are.
pub(crate) const SETTINGS: [&str; 3] =
    ["spec.settings", "spec.phases[].settings", "spec.phases[].fallbacks[].settings"];

fn of_settings(at: &'static str) -> [Bound; 4] {
    [
        above(at, "gradientClip", 0.0, "write a norm such as \"1.0\", or leave it out for no clipping"),
        above(at, "learningRate", 0.0, "write a rate such as \"1.4e-3\""),
        at_least(at, "weightDecay", 0.0, "write a decay such as \"0.03\", or \"0\" for none"),
        Bound {
            at,
            field: "ema",
            format: NumberFormat::Decimal,
            low: (0.0, true),
            high: Some((1.0, false)),
            remedy: "write a decay such as \"0.999\"",
        },
    ]
}

/// All bounds.
pub(crate) fn all() -> impl Iterator<Item = Bound> {
    OF_THE_SPEC.into_iter().chain(SETTINGS.into_iter().flat_map(of_settings))
}
