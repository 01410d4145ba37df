//! Settings of a launch. One that the program never reads would be measured without effect: it is Unsupported.

use crate::error::{Error, Result};
use pawl_contract::env;
use pawl_contract::settings::Settings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// The settings of a plan, and which of them the program has read.
#[derive(Debug)]
pub(crate) struct Reader {
    given: Map<String, Value>,
    read: RefCell<BTreeSet<String>>,
}

impl Reader {
    /// The settings of a plan; those whose names are in `consumed`, separated by commas, count as read.
    pub fn new(settings: &Settings, consumed: &str) -> Result<Self> {
        let mut given = Map::new();
        if let Value::Object(all) =
            serde_json::to_value(settings).map_err(|e| Error::invalid(format!("settings: {e}")))?
        {
            for (name, value) in all {
                match (name.as_str(), value) {
                    // The agent sets these variables.
                    ("nccl", _) => {}
                    ("workload", Value::Object(workload)) => {
                        given.extend(workload.into_iter().map(|(key, value)| (format!("workload.{key}"), value)));
                    }
                    (_, value) => drop(given.insert(name, value)),
                }
            }
        }
        let read = consumed.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Ok(Self { given, read: RefCell::new(read) })
    }

    /// The settings of a plan, without those that placeholders of the command have consumed.
    pub fn from_env(settings: &Settings) -> Result<Self> {
        Self::new(settings, &std::env::var(env::CONSUMED).unwrap_or_default())
    }

    /// The value of a setting, which counts as read; `None` when the plan does not set it.
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        if !name.starts_with("workload.") && !Settings::names().any(|known| known == name) {
            let known: Vec<&str> = Settings::names().collect();
            return Err(Error::invalid(format!(
                "{name}: is not a setting: choose workload.NAME or one of {}",
                known.join(", ")
            )));
        }
        self.read.borrow_mut().insert(name.to_owned());
        let Some(value) = self.given.get(name) else { return Ok(None) };
        // Decimal numbers are strings in a plan.
        let number = value.as_str().and_then(|text| serde_json::from_str::<T>(text).ok());
        match serde_json::from_value(value.clone()) {
            Ok(value) => Ok(Some(value)),
            Err(error) => number.map(Some).ok_or_else(|| {
                Error::unsupported(format!("settings.{name}: {value} is not supported by this program: {error}"))
            }),
        }
    }

    /// Refuses a plan with settings that were not read.
    pub fn require_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let unread: Vec<String> =
            self.given.keys().filter(|name| !read.contains(*name)).map(|name| format!("settings.{name}")).collect();
        if unread.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{}: not used by this program, so it would have no effect: read it by run.setting() before the first step, or \
             remove it from the manifest",
            unread.join(", ")
        )))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use pawl_contract::settings::{Compile, Precision};

    fn reader(json: &str, consumed: &str) -> Reader {
        Reader::new(&serde_json::from_str(json).unwrap(), consumed).unwrap()
    }

    #[test]
    fn values_have_the_types_that_the_program_names() {
        let all = r#"{"batchPerGpu": 8, "learningRate": "1e-3", "compile": "Fuse", "workload": {"width": 64, "act": "gelu"}}"#;
        let reader = reader(all, "");
        assert_eq!(reader.get::<u32>("batchPerGpu").unwrap(), Some(8));
        assert_eq!(reader.get::<f64>("learningRate").unwrap(), Some(1e-3));
        assert_eq!(reader.get::<Compile>("compile").unwrap(), Some(Compile::Fuse));
        assert_eq!(reader.get::<usize>("workload.width").unwrap(), Some(64));
        assert_eq!(reader.get::<Precision>("precision").unwrap(), None);
        let message = reader.require_read().unwrap_err().to_string();
        assert!(message.starts_with("settings.workload.act: not used"), "{message}");
        assert_eq!(reader.get::<String>("workload.act").unwrap().as_deref(), Some("gelu"));
        reader.require_read().unwrap();
    }

    #[test]
    fn what_cannot_have_an_effect_is_refused() {
        let reader = reader(r#"{"attention": "Flash", "deterministic": true}"#, "deterministic");
        let message = reader.require_read().unwrap_err().to_string();
        assert!(message.contains("settings.attention") && !message.contains("deterministic"), "{message}");
        let message = reader.get::<u32>("attention").unwrap_err().to_string();
        assert!(message.starts_with("settings.attention: \"Flash\" is not supported"), "{message}");
        let message = reader.get::<u32>("atention").unwrap_err().to_string();
        assert!(message.starts_with("atention: is not a setting"), "{message}");
    }
}
