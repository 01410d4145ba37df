//! The CEL rules of a schema, compiled once.

use cel::{Context, Program, Value as Cel};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The rules of a schema and of all schemas in it.
#[derive(Default)]
pub struct Rules {
    rules: Vec<(String, Program)>,
    properties: BTreeMap<String, Rules>,
    items: Option<Box<Rules>>,
}

impl Rules {
    /// Compiles the rules in `schema`, except those about changes of an object.
    pub fn compile(schema: &Value) -> Self {
        let texts = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        let texts = texts.filter_map(|rule| rule["rule"].as_str()).filter(|text| !text.contains("oldSelf"));
        let compile = |text: &str| Program::compile(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let properties = schema["properties"].as_object().into_iter().flatten();
        let properties = properties.map(|(name, inner)| (name.clone(), Self::compile(inner)));
        Self {
            rules: texts.map(|text| (text.to_owned(), compile(text))).collect(),
            properties: properties.filter(|(_, inner)| !inner.is_empty()).collect(),
            items: schema.get("items").map(Self::compile).filter(|inner| !inner.is_empty()).map(Box::new),
        }
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.properties.is_empty() && self.items.is_none()
    }

    /// The first rule that refuses `value`, if any; one that cannot be evaluated refuses, as in the API server.
    pub fn refuse(&self, value: &Value) -> Option<String> {
        if !self.rules.is_empty() {
            let own = cel(value);
            for (text, program) in &self.rules {
                let mut context = Context::default();
                context.add_variable_from_value("self", own.clone());
                if !matches!(program.execute(&context), Ok(Cel::Bool(true))) {
                    return Some(text.clone());
                }
            }
        }
        let inner = self.properties.iter().find_map(|(name, rules)| rules.refuse(value.get(name)?));
        inner.or_else(|| {
            let items = self.items.as_ref()?;
            value.as_array()?.iter().find_map(|item| items.refuse(item))
        })
    }
}

fn cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(boolean) => Cel::Bool(*boolean),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Cel::Float(number.as_f64().unwrap_or_default()), Cel::Int)
        }
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(cel).collect())),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), cel(value))).collect::<HashMap<_, _>>().into()
        }
    }
}
