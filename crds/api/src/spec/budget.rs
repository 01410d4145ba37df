//! What judging may cost.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// How much longer judging and training together may take than the training with the baseline.
///
/// Written as an integer, or as `Unlimited`. [`crate::validate()`] reports a percentage that is out of range.
///
/// ```
/// use pawl_api::spec::JudgingBudget;
///
/// let read = |text| serde_json::from_str::<JudgingBudget>(text);
/// assert_eq!(read("25")?, JudgingBudget::Percent(25));
/// assert_eq!(read(r#""Unlimited""#)?, JudgingBudget::Unlimited);
/// assert!(read(r#""25""#).is_err());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgingBudget {
    /// In percent of the time of the training with the baseline, 1 to 1000.
    Percent(u32),
    /// Everything is measured, whatever it takes.
    Unlimited,
}

impl JudgingBudget {
    /// The percentage of a job that gives no budget.
    pub const DEFAULT_PERCENT: u32 = 10;
    /// Smallest percentage.
    pub(crate) const LEAST: u32 = 1;
    /// Largest percentage.
    pub(crate) const MOST: u32 = 1000;
    /// How a budget without limit is written.
    const UNLIMITED: &'static str = "Unlimited";
    /// What to write instead of a value that is none.
    pub(crate) const REMEDY: &'static str = "write an integer such as 10, or Unlimited";

    /// The limit in percent; `None` without one.
    pub fn percent(self) -> Option<u32> {
        match self {
            Self::Percent(percent) => Some(percent),
            Self::Unlimited => None,
        }
    }
}

/// The budget of a job that gives none.
impl Default for JudgingBudget {
    fn default() -> Self {
        Self::Percent(Self::DEFAULT_PERCENT)
    }
}

impl Serialize for JudgingBudget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Percent(percent) => serializer.serialize_u32(*percent),
            Self::Unlimited => serializer.serialize_str(Self::UNLIMITED),
        }
    }
}

impl<'de> Deserialize<'de> for JudgingBudget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerOrText)
    }
}

struct IntegerOrText;

impl Visitor<'_> for IntegerOrText {
    type Value = JudgingBudget;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer such as 10, or Unlimited")
    }

    fn visit_u64<E: Error>(self, percent: u64) -> Result<JudgingBudget, E> {
        u32::try_from(percent).map(JudgingBudget::Percent).map_err(|_| out_of_range(percent))
    }

    fn visit_i64<E: Error>(self, percent: i64) -> Result<JudgingBudget, E> {
        u32::try_from(percent).map(JudgingBudget::Percent).map_err(|_| out_of_range(percent))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<JudgingBudget, E> {
        if text == JudgingBudget::UNLIMITED {
            return Ok(JudgingBudget::Unlimited);
        }
        Err(E::custom(match text.parse::<u32>() {
            Ok(percent) => format!("{text:?} is text: write it without quotes: {percent}"),
            Err(_) => format!("{text:?} is neither a percentage nor Unlimited: {}", JudgingBudget::REMEDY),
        }))
    }
}

fn out_of_range<E: Error>(percent: impl fmt::Display) -> E {
    let (least, most) = (JudgingBudget::LEAST, JudgingBudget::MOST);
    E::custom(format!("{percent} is not from {least} to {most}: {}", JudgingBudget::REMEDY))
}

impl JsonSchema for JudgingBudget {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "JudgingBudget".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A rule has the range: what JSON Schema says of such a value holds for numbers and texts at once.
        json_schema!({"x-kubernetes-int-or-string": true})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(value: Value) -> Result<JudgingBudget, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }

    #[test]
    fn an_integer_and_unlimited_are_written_as_they_were_read() {
        for (written, budget, percent) in [
            (json!(1), JudgingBudget::Percent(1), Some(1)),
            (json!(1000), JudgingBudget::Percent(1000), Some(1000)),
            (json!("Unlimited"), JudgingBudget::Unlimited, None),
        ] {
            assert_eq!(read(written.clone()), Ok(budget));
            assert_eq!((json!(budget), budget.percent()), (written, percent));
        }
    }

    #[test]
    fn another_value_is_named_with_its_remedy() {
        assert_eq!(read(json!("25")), Err("\"25\" is text: write it without quotes: 25".to_owned()));
        for (written, expected) in [
            (json!("unlimited"), "\"unlimited\" is neither a percentage nor Unlimited"),
            (json!("25%"), "\"25%\" is neither a percentage nor Unlimited"),
            (json!(-1), "-1 is not from 1 to 1000"),
            (json!(1_u64 << 32), "4294967296 is not from 1 to 1000"),
        ] {
            assert_eq!(read(written), Err(format!("{expected}: write an integer such as 10, or Unlimited")));
        }
        for written in [json!(2.5), json!(true), json!([10]), json!({"percent": 10})] {
            let error = read(written).expect_err("it is neither");
            assert!(error.contains("expected an integer such as 10, or Unlimited"), "{error}");
        }
    }
}
