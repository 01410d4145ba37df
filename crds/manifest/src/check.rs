//! Validates a document against the schema; finds all unknown fields, wrong types and out-of-range values, not only the
//! first.

use crate::tree::{Node, Tree};
use pawl_api::Problem;
use pawl_api::duration::{NotASpan, Span};
use pawl_api::quantity::{Bytes, NotBytes};
use pawl_contract::decimal::{Decimal, NotADecimal};
use pawl_contract::problem::nearest;
use serde_json::Value;

/// Numbers from here on are no integers of 64 bits.
const WHOLE: f64 = 9.2e18;

/// What a further container of a pod has to be: another one would keep the pod running after the trainer has ended.
const SIDECAR: &str = "write a sidecar into initContainers, with restartPolicy: Always: it ends after the trainer";

/// Common mistakes: the name as written, and the name that was meant.
const MEANT: [(&str, &str); 8] = [
    ("on", "when"),
    ("True", "when"),
    ("true", "when"),
    ("optimiserKernel", "optimizerKernel"),
    ("bs", "batchPerGpu"),
    ("batchSize", "batchPerGpu"),
    ("batch_size", "batchPerGpu"),
    ("lr", "learningRate"),
];

/// All violations of `schema`, the schema of a whole manifest, in `tree`.
pub(crate) fn check(tree: &Tree, schema: &Value) -> Vec<Problem> {
    let mut checker = Checker { problems: Vec::new() };
    checker.value(tree, schema, String::new());
    checker.problems
}

struct Checker {
    problems: Vec<Problem>,
}

impl Checker {
    fn refuse(&mut self, path: &str, value: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) {
        self.problems.push(Problem::new(path, value, message, remedy));
    }

    fn value(&mut self, tree: &Tree, schema: &Value, path: String) {
        let kind = schema["type"].as_str();
        match (&tree.node, kind) {
            // A null is an absent field.
            (Node::Scalar(Value::Null), _) if !path.is_empty() && !path.ends_with(']') => {}
            (Node::Map(_), Some("object")) => self.object(tree, schema, path),
            (Node::List(items), Some("array")) => self.list(items, schema, path),
            (Node::Text(text), Some("string")) => self.text(text, schema, &path),
            (Node::Scalar(number), Some("string"))
                if schema["x-kubernetes-int-or-string"] == true && number.is_number() => {}
            (Node::Scalar(Value::Bool(_)), Some("boolean")) => {}
            (Node::Scalar(Value::Number(number)), Some("integer")) => self.integer(number, schema, &path),
            (Node::Scalar(Value::Number(_)), Some("number")) => {}
            (_, None) => {}
            (_, Some(kind)) => self.wrong_type(tree, kind, schema, &path),
        }
    }

    fn object(&mut self, tree: &Tree, schema: &Value, path: String) {
        let Node::Map(entries) = &tree.node else { return };
        let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let count = entries.len() as u64;
        if schema["minProperties"].as_u64().is_some_and(|least| count < least) {
            self.refuse(&path, "{}", "is empty", "name at least one field, or remove it");
        }
        if let Some(most) = schema["maxProperties"].as_u64().filter(|most| count > *most) {
            self.refuse(&path, count.to_string(), format!("entries exceed the limit of {most}"), "remove some");
        }
        let Some(properties) = schema["properties"].as_object() else {
            if schema["additionalProperties"].is_object() {
                for entry in entries {
                    self.value(&entry.value, &schema["additionalProperties"], at(&entry.key));
                }
            }
            return;
        };
        for entry in entries {
            match properties.get(&entry.key) {
                Some(property) => self.value(&entry.value, property, at(&entry.key)),
                None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                None => {
                    let names = properties.keys().map(String::as_str);
                    let own = format!("a setting of your own is written as settings.workload.{}", entry.key);
                    let is_setting = path.ends_with("settings") && properties.contains_key("workload");
                    let otherwise = if is_setting { own.as_str() } else { "remove it" };
                    let remedy = if path.ends_with("podTemplate") && entry.key == "containers" {
                        SIDECAR.to_owned()
                    } else {
                        suggestion(&entry.key, names, otherwise)
                    };
                    self.refuse(&at(&entry.key), "", "is not a field", remedy);
                }
            }
        }
        let present = |name: &str| {
            let entry = entries.iter().find(|e| e.key == name);
            entry.is_some_and(|e| !matches!(e.value.node, Node::Scalar(Value::Null)))
        };
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !present(name) {
                let about = properties[name]["enum"][0].as_str().map(|only| format!("add `{name}: {only}`"));
                self.refuse(&at(name), "", "is missing", about.unwrap_or_else(|| "add it".to_owned()));
            }
        }
    }

    fn list(&mut self, items: &[Tree], schema: &Value, path: String) {
        let count = items.len() as u64;
        if let Some(least) = schema["minItems"].as_u64().filter(|least| count < *least) {
            self.refuse(&path, "", format!("has {count} entries, less than {least}"), "add one");
        }
        if let Some(most) = schema["maxItems"].as_u64().filter(|most| count > *most) {
            self.refuse(&path, "", format!("has {count} entries, more than {most}"), "remove some");
        }
        for (i, item) in items.iter().enumerate() {
            self.value(item, &schema["items"], format!("{path}[{i}]"));
        }
        let identity = |item: &Tree| match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => Some(("", item.json())),
            Some("map") => {
                let key = schema["x-kubernetes-list-map-keys"][0].as_str()?;
                Some((key, item.json().get(key)?.clone()))
            }
            _ => None,
        };
        let known: Vec<_> = items.iter().map(identity).collect();
        for (i, this) in known.iter().enumerate() {
            let Some((key, value)) = this else { continue };
            if let Some(first) = known[..i].iter().position(|other| other == this) {
                let dot = if key.is_empty() { "" } else { "." };
                self.refuse(
                    &format!("{path}[{i}]{dot}{key}"),
                    value.to_string(),
                    format!("is already in {path}[{first}]"),
                    if key.is_empty() { "remove one of them" } else { "choose a unique name" },
                );
            }
        }
    }

    fn text(&mut self, text: &str, schema: &Value, path: &str) {
        let quoted = Value::from(text).to_string();
        if let Some(values) = schema["enum"].as_array() {
            let names: Vec<_> = values.iter().filter_map(Value::as_str).collect();
            if names.contains(&text) {
                return;
            }
            let message = match names.as_slice() {
                [only] => return self.refuse(path, quoted, format!("is not {only}"), format!("write {only}")),
                names => format!("is not one of {}", names.join(", ")),
            };
            let remedy = suggestion(text, names.into_iter(), "write one of them");
            return self.refuse(path, quoted, message, remedy);
        }
        let length = text.chars().count() as u64;
        if schema["minLength"].as_u64().is_some_and(|least| length < least) {
            return self.refuse(path, quoted, "is empty", "set a value, or omit the field");
        }
        if let Some(most) = schema["maxLength"].as_u64().filter(|most| length > *most) {
            let start: String = text.chars().take(20).collect();
            return self.refuse(
                path,
                format!("\"{start}...\""),
                format!("has {length} characters"),
                format!("use at most {most}"),
            );
        }
        let wrong = match schema["pattern"].as_str() {
            Some(Decimal::PATTERN) => text.parse::<Decimal>().err().map(|e: NotADecimal| e.to_string()),
            Some(Span::PATTERN) => text.parse::<Span>().err().map(|e: NotASpan| e.to_string()),
            Some(Bytes::PATTERN) => text.parse::<Bytes>().err().map(|e: NotBytes| e.to_string()),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.refuse(path, "", wrong, "");
        }
    }

    fn integer(&mut self, number: &serde_json::Number, schema: &Value, path: &str) {
        let Some(value) = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from)) else {
            let whole = number.as_f64().filter(|value| value.fract() == 0.0);
            return match whole {
                Some(value) if value.abs() < WHOLE => {
                    let remedy = format!("write it with digits alone: {value:.0}");
                    self.refuse(path, number.to_string(), "is not written as an integer", remedy);
                }
                Some(_) => self.refuse(path, number.to_string(), "is too large for an integer", "write a smaller one"),
                None => self.refuse(path, number.to_string(), "is not an integer", "round it"),
            };
        };
        let bound = |key: &str| schema[key].as_i64().or_else(|| schema[key].as_f64().map(|f| f as i64)).map(i128::from);
        match (bound("minimum"), bound("maximum")) {
            (Some(least), _) if value < least => {
                self.refuse(path, number.to_string(), "is too small", format!("write at least {least}"));
            }
            (_, Some(most)) if value > most => {
                self.refuse(path, number.to_string(), "is too large", format!("write at most {most}"));
            }
            _ => {}
        }
    }

    fn wrong_type(&mut self, tree: &Tree, kind: &str, schema: &Value, path: &str) {
        let (shown, is) = match &tree.node {
            Node::Scalar(Value::Null) => ("null".to_owned(), "is null"),
            Node::Scalar(Value::Bool(value)) => (value.to_string(), "is a boolean"),
            Node::Scalar(value) => (value.to_string(), "is a number"),
            Node::Text(text) => (Value::from(text.as_str()).to_string(), "is text"),
            Node::List(_) => (String::new(), "is a list"),
            Node::Map(_) => (String::new(), "is a map"),
        };
        let remedy = match (&tree.node, kind) {
            // YAML 1.1 reads yes, no, on and off as booleans, and so does kubectl.
            (Node::Scalar(Value::Bool(_)), "string") if schema["enum"].is_null() => {
                "write text, in quotes where YAML reads it as a boolean".to_owned()
            }
            (Node::Scalar(Value::Number(number)), "string") if schema["pattern"].is_string() => {
                match schema["pattern"].as_str() {
                    Some(Span::PATTERN) => format!("write a time with its unit, such as \"{number}s\""),
                    _ => format!("write it in quotes: \"{number}\""),
                }
            }
            (Node::Scalar(Value::Number(number)), "string") => format!("write text, such as \"{number}\""),
            (Node::Text(text), "integer") if text.parse::<i64>().is_ok() => format!("write it without quotes: {text}"),
            (Node::Text(text), "boolean") if text == "true" || text == "false" => {
                format!("write it without quotes: {text}")
            }
            (_, "string") => match schema["enum"].as_array() {
                Some(values) => {
                    format!("write one of {}", values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
                }
                None => "write text".to_owned(),
            },
            (_, "integer") => "write an integer".to_owned(),
            (_, "number") => "write a number".to_owned(),
            (_, "boolean") => "write true or false".to_owned(),
            (_, "array") => match schema["items"]["required"][0].as_str() {
                Some(field) => format!("write a list, such as [{{{field}: ...}}]"),
                None => "write a list".to_owned(),
            },
            _ => "write a map of fields".to_owned(),
        };
        self.refuse(path, shown, is, remedy);
    }
}

/// `did you mean x?` when one of `names` is similar to `wrong`, else `otherwise`.
pub(crate) fn suggestion<'a>(wrong: &str, names: impl Iterator<Item = &'a str> + Clone, otherwise: &str) -> String {
    if let Some((_, meant)) = MEANT.iter().find(|(from, to)| *from == wrong && names.clone().any(|n| n == *to)) {
        return format!("did you mean {meant}?");
    }
    nearest(wrong, names).map_or_else(|| otherwise.to_owned(), |meant| format!("did you mean {meant}?"))
}
