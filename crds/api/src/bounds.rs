//! Ranges of the numbers that are written as strings, which JSON Schema cannot compare.
//!
//! The table is used twice: [`crate::rules`] generates a CEL rule from each line for the API server, and
//! [`crate::validate()`] checks manifests.

use pawl_contract::settings::{Kind, Range, Settings};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::RangeBounds;

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
    /// The range, with both ends.
    range: Range,
    /// The remedy: an example of a valid value.
    pub remedy: &'static str,
}

impl Bound {
    /// Whether `value` lies in the range.
    pub(crate) fn admits(&self, value: f64) -> bool {
        self.range.contains(&value)
    }

    /// The range in words: `above 0 and below 50`.
    pub(crate) fn words(&self) -> String {
        self.ends(
            ["at least", "above"],
            ["at most", "below"],
            |word, end| format!("{word} {}", self.show(end)),
            " and ",
        )
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
        let text = self.ends([">=", ">"], ["<=", "<"], |sign, end| format!("{read} {sign} {}", number(end)), " && ");
        format!("!has(self.{field}) || ({text})")
    }

    /// Both ends, each with its word: of an inclusive end, or of an exclusive one.
    fn ends(&self, low: [&str; 2], high: [&str; 2], each: impl Fn(&str, f64) -> String, between: &str) -> String {
        let end = |[inclusive, exclusive]: [&str; 2], end| match end {
            Included(end) => Some(each(inclusive, end)),
            Excluded(end) => Some(each(exclusive, end)),
            Unbounded => None,
        };
        [end(low, self.range.0), end(high, self.range.1)].into_iter().flatten().collect::<Vec<_>>().join(between)
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
    Bound { at, field, format: NumberFormat::Decimal, range: (Excluded(0.0), Included(high)), remedy }
}

/// 0 or more.
const fn up_to(at: &'static str, field: &'static str, high: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, range: (Included(0.0), Included(high)), remedy }
}

const fn share(at: &'static str, field: &'static str, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Decimal, range: (Included(0.0), Included(1.0)), remedy }
}

/// From `low` seconds to ten years.
const fn time(at: &'static str, field: &'static str, low: f64, remedy: &'static str) -> Bound {
    Bound { at, field, format: NumberFormat::Time, range: (Included(low), Included(87_600.0 * 3600.0)), remedy }
}

/// Largest values: beyond them, a number is a slip of the pen, and arithmetic with it overflows.
const SPEEDUP: f64 = 1000.0;
const LOSS: f64 = 1e30;
const PARTS: f64 = 1e6;
const SPEED: f64 = 1e15;
const SECONDS: f64 = 1e9;
const HOURS: f64 = 1e9;
const MONEY: f64 = 1e12;

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
    Bound { at: "spec.analysis", field: "alphaPercent", format: NumberFormat::Decimal, range: (Excluded(0.0), Excluded(50.0)),
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
    Bound { at: "spec.train.guard", field: "throughputTolerance", format: NumberFormat::Decimal, range: (Excluded(0.0), Excluded(1.0)),
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

/// The bounds of the settings at `at`, whose table has them.
fn of_settings(at: &'static str) -> impl Iterator<Item = Bound> {
    Settings::table().iter().filter(|row| row.kind == Kind::Decimal).filter_map(move |row| {
        let (field, format) = (row.name.as_str(), NumberFormat::Decimal);
        Some(Bound { at, field, format, range: row.range?, remedy: row.remedy? })
    })
}

/// The bound of a setting, by its name.
pub(crate) fn of_setting(name: &str) -> Option<Bound> {
    of_settings(SETTINGS[0]).find(|bound| bound.field == name)
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
            let (Included(low) | Excluded(low), Included(high) | Excluded(high)) = bound.range else {
                panic!("{}.{}: not bounded", bound.at, bound.field);
            };
            assert!(low >= 0.0 && high > low && high <= 1e30, "{}.{}", bound.at, bound.field);
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
