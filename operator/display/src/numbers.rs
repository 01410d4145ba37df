//! Formatting of numbers: three significant digits and a unit, consistently.

use pawl_api::quantity::Bytes;
use pawl_api::status::{CostStatus, Speedup};
use pawl_contract::decimal::Decimal;
use pawl_decision::{Outward, outward};
use std::ops::Range;

/// A ratio as a factor, such as `1.31×`; near 1 with a third decimal, if it is not 0.
///
/// ```
/// assert_eq!([1.314, 1.0042, 1.02].map(pawl_display::numbers::factor), ["1.31×", "1.004×", "1.02×"]);
/// ```
pub fn factor(value: f64) -> String {
    format!("{}×", ratio(value))
}

/// The same without the sign.
pub fn ratio(value: f64) -> String {
    let text = format!("{value:.*}", decimals_of_ratio(value));
    let short = text.strip_suffix('0').filter(|_| NEAR.contains(&value));
    short.map(str::to_owned).unwrap_or(text)
}

/// Decimals of a ratio and of its bounds: an estimate is not outside of its interval as both are shown.
fn decimals_of_ratio(value: f64) -> usize {
    match value {
        near if NEAR.contains(&near) => 3,
        small if small < 10.0 => 2,
        _ => 1,
    }
}

/// Ratios of which a change of less than one per cent matters.
const NEAR: Range<f64> = 0.9..1.1;

/// The confidence interval of a speedup, such as `[1.28, 1.36]`, with as many decimals as its estimate, rounded
/// outwards; a missing bound is 0 or ∞. `None` without bounds.
pub fn interval(speedup: &Speedup) -> Option<String> {
    let (lower, upper) = bounds(speedup);
    let above = upper.map_or_else(|| "∞".to_owned(), |upper| bound(upper, Outward::Up, speedup));
    (lower.is_some() || upper.is_some())
        .then(|| format!("[{}, {above}]", at_least(speedup).unwrap_or_else(|| "0".to_owned())))
}

/// The lower bound of a speedup, with as many decimals as its estimate, rounded down; `None` without one.
pub fn at_least(speedup: &Speedup) -> Option<String> {
    Some(bound(bounds(speedup).0?, Outward::Down, speedup))
}

fn bound(bound: f64, direction: Outward, speedup: &Speedup) -> String {
    outward(bound, direction, decimals_of_ratio(speedup.estimate.value()))
}

/// The lower and the upper bound of a speedup, ratios; `None` for one that says nothing.
pub fn bounds(speedup: &Speedup) -> (Option<f64>, Option<f64>) {
    let bound =
        |bound: &Option<Decimal>| bound.as_ref().map(Decimal::value).filter(|bound| Speedup::MEANT.contains(bound));
    (bound(&speedup.lower), bound(&speedup.upper))
}

/// A number with three significant digits and a decimal prefix, such as `12.3k`.
///
/// ```
/// assert_eq!(pawl_display::numbers::short(12_345.0), "12.3k");
/// ```
pub fn short(value: f64) -> String {
    let magnitude = value.abs();
    let (scaled, prefix) = match magnitude {
        m if m >= 999.5e9 => return format!("{value:.2e}"),
        m if m >= 999.5e6 => (value / 1e9, "G"),
        m if m >= 999.5e3 => (value / 1e6, "M"),
        m if m >= 9995.0 => (value / 1e3, "k"),
        m if m == 0.0 || m >= 0.001 => (value, ""),
        _ => return format!("{value:.2e}"),
    };
    let decimals = match scaled.abs() {
        m if m >= 99.95 || m == 0.0 => 0,
        m if m >= 9.995 => 1,
        m if m >= 0.9995 => 2,
        _ => 3 + usize::from(scaled.abs() < 0.0995) + usize::from(scaled.abs() < 0.00995),
    };
    let text = format!("{scaled:.decimals$}");
    format!("{}{prefix}", without_zeros(&text))
}

/// The relative change in percent with its sign, such as `-12.3 %`; `None` when there is none: from zero, or across it.
pub fn percent_change(from: f64, to: f64) -> Option<String> {
    let change = (to / from - 1.0) * 100.0;
    (change.is_finite() && change >= -100.0).then(|| format!("{change:+.1} %"))
}

/// A number with its sign and three significant digits, at most six decimals and no exponent; `0` if nothing is left.
///
/// ```
/// use pawl_display::numbers::signed;
///
/// assert_eq!([0.012883, -1.67e-6, -4e-8].map(signed), ["+0.0129", "-0.000002", "0"]);
/// assert_eq!([0.02, 300.0].map(signed), ["+0.02", "+300"]);
/// ```
pub fn signed(value: f64) -> String {
    let text = format!("{value:+.*}", decimals(value));
    let is_left = text.contains(['1', '2', '3', '4', '5', '6', '7', '8', '9']);
    if is_left { without_zeros(&text).to_owned() } else { "0".to_owned() }
}

/// A decimal number without zeros at the end.
fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// A limit as a manifest has it: at most six decimals, without zeros at the end.
///
/// ```
/// assert_eq!(pawl_display::numbers::limit(0.0125), "0.0125");
/// ```
pub fn limit(value: f64) -> String {
    let text = format!("{value:.6}");
    without_zeros(&text).to_owned()
}

/// Decimals for three significant digits, at most six.
fn decimals(value: f64) -> usize {
    (0..6).find(|decimals| value.abs() >= 10_f64.powi(2 - decimals)).unwrap_or(6) as usize
}

/// A number of bytes, such as `1.25 GiB`.
pub fn bytes(value: u64) -> String {
    let text = Bytes::display(value);
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    format!("{number} {unit}B")
}

/// The number of pairs behind a speedup, and how many of them were disturbed: `5`, `5 (3 disturbed)`.
pub fn pairs(speedup: &Speedup) -> String {
    match speedup.disturbed {
        0 => speedup.pairs.to_string(),
        disturbed => format!("{} ({disturbed} disturbed)", speedup.pairs),
    }
}

/// A duration in seconds, such as `1h 05m`, `3m 20s` or `4.2s`; a negative one as 0.
pub fn seconds(value: f64) -> String {
    let value = value.max(0.0);
    let whole = value.round() as u64;
    match whole {
        0..10 => format!("{value:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        _ => format!("{}h {:02}m", whole / 3600, whole % 3600 / 60),
    }
}

/// The savings of a job compared with training with the baseline: `1.20 USD saved (34 %)`, or only the percentage
/// without a price. They are not negative.
pub(crate) fn money(cost: &CostStatus) -> Option<String> {
    let percent = cost.saved_percent.as_ref().map(|percent| format!("{:.0} %", percent.value()));
    let money = cost.saved.as_ref().map(|saved| format!("{:.2} {} saved", saved.value(), cost.currency));
    match (money, percent) {
        (Some(money), Some(percent)) => Some(format!("{money} ({percent})")),
        (Some(money), None) => Some(money),
        (None, percent) => percent.map(|percent| format!("{percent} saved")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_unit() {
        let cases = [
            (0.0, "0"),
            (12_345.0, "12.3k"),
            (999.9, "1000"),
            (9_876.0, "9876"),
            (1.5e6, "1.5M"),
            (0.01234, "0.0123"),
            (0.5, "0.5"),
            (-3.21987, "-3.22"),
            (1e-5, "1.00e-5"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text, "{value}");
        }
        assert_eq!(bytes(1_342_177_280), "1.25 GiB");
        assert_eq!(bytes(12), "12 B");
        assert_eq!([seconds(4.21), seconds(200.0), seconds(3900.0)], ["4.2s", "3m 20s", "1h 05m"]);
    }

    #[test]
    fn an_estimate_is_within_its_interval_as_shown() {
        for (estimate, apart) in [(1.0043, 0.003), (1.07235, 0.0001), (1.314, 0.002), (10.03, 0.01), (1.1002, 0.0005)] {
            let side = |by: f64| (estimate + by).to_string().parse().ok();
            let speedup = Speedup {
                estimate: side(0.0).unwrap_or_default(),
                lower: side(-apart),
                upper: side(apart),
                pairs: 3,
                disturbed: 0,
            };
            let (shown, interval) = (ratio(estimate), interval(&speedup).unwrap_or_default());
            let (lower, upper) = interval.trim_matches(['[', ']']).split_once(", ").unwrap_or_default();
            let values = [lower, &shown, upper].map(|text| text.parse::<f64>().unwrap_or(f64::NAN));
            assert!(values.is_sorted() && values.iter().all(|it| it.is_finite()), "{shown} {interval}");
        }
    }

    #[test]
    fn an_interval_has_as_many_decimals_as_its_estimate() {
        let of = |estimate: &str, lower: &str, upper: &str| {
            let (lower, upper) = (lower.parse().ok(), upper.parse().ok());
            let speedup =
                Speedup { estimate: estimate.parse().unwrap_or_default(), lower, upper, pairs: 3, disturbed: 0 };
            (interval(&speedup).unwrap_or_default(), at_least(&speedup).unwrap_or_default())
        };
        assert_eq!(of("1.093", "1.0846", "1.1021"), ("[1.084, 1.103]".to_owned(), "1.084".to_owned()));
        assert_eq!(of("1.31", "1.052", "1.63"), ("[1.05, 1.63]".to_owned(), "1.05".to_owned()));
    }

    #[test]
    fn a_bound_that_says_nothing_is_an_open_end() {
        let of = |lower: &str, upper: &str| {
            let (lower, upper) = (lower.parse().ok(), upper.parse().ok());
            interval(&Speedup { estimate: "1.3".parse().unwrap_or_default(), lower, upper, pairs: 2, disturbed: 0 })
        };
        assert_eq!(of("1.28", "1.351").as_deref(), Some("[1.28, 1.36]"));
        assert_eq!(of("0.9", "4.5e12").as_deref(), Some("[0.90, ∞]"));
        assert_eq!(of("1.2e-30", "1.4e30"), None);
    }

    #[test]
    fn a_change_across_zero_has_no_percentage() {
        let changes = [(2.0, 1.0), (2.0, 0.0), (0.02, -0.13), (-1.0, -2.0), (0.0, 1.0)];
        let texts = changes.map(|(from, to)| percent_change(from, to));
        let expected = [Some("-50.0 %"), Some("-100.0 %"), None, Some("+100.0 %"), None];
        assert_eq!(texts, expected.map(|text| text.map(str::to_owned)));
    }

    #[test]
    fn savings_are_money_and_a_share() {
        let number = |text: &str| text.parse().ok();
        let cost = |saved: &str, percent: &str| CostStatus {
            saved: number(saved),
            saved_percent: number(percent),
            currency: "USD".to_owned(),
            ..CostStatus::default()
        };
        assert_eq!(money(&cost("1.2", "34.4")).unwrap(), "1.20 USD saved (34 %)");
        assert_eq!(money(&cost("", "12")).unwrap(), "12 % saved");
        assert_eq!(money(&cost("", "")), None);
    }
}
