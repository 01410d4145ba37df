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
            NumberFormat::Decimal if value != 0.0 && !(1e-4..1e7).contains(&value) => format!("{value:e}"),
            NumberFormat::Decimal => format!("{value}"),
            NumberFormat::Time if value >= 3600.0 => format!("{}h", value / 3600.0),
            NumberFormat::Time => format!("{value}s"),
        }
    }
}

/// Above 0.
const fn positive(at: &'static str, field: &'static str, high: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, low: (0.0, false), high: Some((high, true)), remedy }
}

/// 0 or more.
const fn up_to(at: &'static str, field: &'static str, high: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, low: (0.0, true), high: Some((high, true)), remedy }
}

const fn share(at: &'static str, field: &'static str, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, low: (0.0, true), high: Some((1.0, true)), remedy }
}

/// From `low` seconds to ten years.
const fn time(at: &'static str, field: &'static str, low: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Time, low: (low, true), high: Some((87_600.0 * 3600.0, true)), remedy }
}

/// Largest values: beyond them, a number is a slip of the pen, and arithmetic with it overflows.
const SPEEDUP: f64 = 1000.0;
const LOSS: f64 = 1e30;
const PARTS: f64 = 1e6;
const SPEED: f64 = 1e15;
const SECONDS: f64 = 1e9;
const HOURS: f64 = 1e9;
const MONEY: f64 = 1e12;
const DECAY: f64 = 1000.0;

const RATIO: &str = "write a ratio such as \"1.02\"";
const SHARE: &str = "write a share of 1 such as \"0.75\"";
const PART: &str = "write a share such as \"0.03\" for 3 %";
const PRICE: &str = "write a price such as \"1.89\"";
const TIME: &str = "write a time such as \"10m\"";

/// The bounds, except those of settings.
#[rustfmt::skip]
const OF_THE_SPEC: [Bound; 28] = [
    positive("spec.phases[]", "expectedSpeedup", SPEEDUP, RATIO),
    positive("spec.phases[]", "minSpeedup", SPEEDUP, RATIO),
    Bound { at: "spec.analysis", field: "alphaPercent", format: NumberFormat::Decimal, low: (0.0, false), high: Some((50.0, false)),
            remedy: "write percent such as \"5\"" },
    positive("spec.gates", "overallSpeedup", SPEEDUP, RATIO),
    up_to("spec.gates", "validationLossDelta", LOSS, "write a loss such as \"0.001\""),
    positive("spec.gates", "validationLossWithin", PARTS, PART),
    positive("spec.gates", "trainingLossWithin", PARTS, PART),
    up_to("spec.gates", "gpuMemoryIncrease", PARTS, PART),
    positive("spec.gates", "minItemsPerSecond", SPEED, "write items per second such as \"1200\""),
    positive("spec.gates", "maxEpochSeconds", SECONDS, "write seconds such as \"90\""),
    share("spec.gates", "minGpuUtilization", SHARE),
    share("spec.gates", "maxOffloadOverhead", SHARE),
    up_to("spec.gates.validationMetrics[]", "maxRelativeRegression", PARTS, PART),
    up_to("spec.gates.validationMetrics[]", "maxRelativeDifference", PARTS, PART),
    up_to("spec.gates.validationMetrics[]", "maxRegression", LOSS, "write a difference such as \"0.001\""),
    up_to("spec.train.earlyStopping", "minDelta", LOSS, "write a loss such as \"0.0001\", or \"0\""),
    Bound { at: "spec.train.guard", field: "throughputTolerance", format: NumberFormat::Decimal, low: (0.0, false), high: Some((1.0, false)),
            remedy: "write a share such as \"0.2\"" },
    time("spec.train.checkpoint", "every", 1.0, TIME),
    up_to("spec.cost", "gpuHour", MONEY, PRICE),
    up_to("spec.cost", "machineHour", MONEY, PRICE),
    positive("spec.search[].budget", "gpuHours", HOURS, "write hours such as \"8\""),
    positive("spec.search[].budget", "cost", MONEY, PRICE),
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
        positive(at, "gradientClip", LOSS, "write a norm such as \"1.0\", or leave it out for no clipping"),
        Bound {
            at,
            field: "learningRate",
            format: NumberFormat::Decimal,
            // A smaller one is 0 in the arithmetic of GPUs.
            low: (1e-30, true),
            high: Some((1e30, true)),
            remedy: "write a rate such as \"1.4e-3\"",
        },
        up_to(at, "weightDecay", DECAY, "write a decay such as \"0.03\", or \"0\" for none"),
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

/// The bound of a setting, by its name.
pub(crate) fn of_setting(name: &str) -> Option<Bound> {
    of_settings(SETTINGS[0]).into_iter().find(|bound| bound.field == name)
}

/// All bounds.
pub(crate) fn all() -> impl Iterator<Item = Bound> {
    OF_THE_SPEC.into_iter().chain(SETTINGS.into_iter().flat_map(of_settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever may be written as a decimal number, `1e99` and `1e-99` included.
    #[test]
    fn every_number_is_bounded_on_both_sides() {
        for bound in all() {
            let (low, high) = (bound.low.0, bound.high.map(|(high, _)| high));
            assert!(low >= 0.0 && high.is_some_and(|high| high > low && high <= 1e30), "{}.{}", bound.at, bound.field);
            assert!(
                !bound.admits(1e99) && !bound.admits(-1e-99) && !bound.admits(f64::NAN),
                "{}.{}",
                bound.at,
                bound.field
            );
        }
    }

    #[test]
    fn a_range_is_shown_as_it_is_written() {
        let of = |field: &str| all().find(|bound| bound.field == field).unwrap().words();
        assert_eq!(of("learningRate"), "at least 1e-30 and at most 1e30");
        assert_eq!(of("minSpeedup"), "above 0 and at most 1000");
        assert_eq!(of("every"), "at least 1s and at most 87600h");
    }
}
