//! A YAML or JSON document with the location of every key and value.

use crate::ManifestError;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, Location, Spanned};
use std::fmt;

/// A value and where it is.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The value.
    pub node: Node,
    /// Line and column, from 1.
    pub place: (u32, u32),
}

/// A value.
#[derive(Debug)]
pub(crate) enum Node {
    /// Null, a boolean or a number by the rules of YAML 1.1, which `kubectl` follows.
    Scalar(Value),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Tree>),
    /// A map in the order of the file.
    Map(Vec<Entry>),
}

/// One entry of a map.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its key.
    pub key: String,
    /// Where the key is.
    pub place: (u32, u32),
    /// Its value.
    pub value: Tree,
}

/// Reads one document.
pub(crate) fn read(text: &str) -> Result<Tree, ManifestError> {
    let mut documents = read_all(text)?.into_iter();
    match (documents.next(), documents.next()) {
        (Some(tree), None) => Ok(tree),
        (None, _) => Err(empty()),
        (Some(_), Some(second)) => Err(ManifestError {
            line: second.place.0,
            column: second.place.1,
            field: String::new(),
            message: "a second document begins here: keep one TrainingJob per file".to_owned(),
        }),
    }
}

/// Reads all documents; their locations are those in the whole text.
pub(crate) fn read_all(text: &str) -> Result<Vec<Tree>, ManifestError> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_multiple_with_options::<Tree>(text, options).map_err(|error| {
        let (line, column) = error.location().as_ref().map_or((0, 0), place);
        ManifestError { line, column, field: String::new(), message: unreadable(&error) }
    })
}

/// The error for a text without a document.
pub(crate) fn empty() -> ManifestError {
    ManifestError { line: 0, column: 0, field: String::new(), message: "is empty: write a TrainingJob".to_owned() }
}

/// What the parser refuses, with its remedy. Without the location, which is printed separately.
fn unreadable(error: &Error) -> String {
    let error = cause(error.without_snippet());
    match error {
        Error::Budget { breach, .. } => too_large(breach).to_owned(),
        Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => WRITTEN_OUT.to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "is an alias of a value that contains it: write the value here instead of the alias".to_owned()
        }
        Error::UnknownAnchor { .. } => {
            "is an alias without an anchor: define the anchor before it, or write the value here".to_owned()
        }
        Error::DuplicateMappingKey { .. } => format!("{}: remove one of them", message(error)),
        _ => match message(error) {
            // Of the scanner, which reports all its errors as texts.
            text if text.contains("recursion limit") => TOO_DEEP.to_owned(),
            text => format!("is not valid YAML: {text}"),
        },
    }
}

/// Why an alias cannot be read is within the error about the alias.
fn cause(error: &Error) -> &Error {
    match error {
        Error::AliasError { error, .. } => cause(error.without_snippet()),
        _ => error,
    }
}

const TOO_DEEP: &str = "is nested too deeply: write fewer levels";
const WRITTEN_OUT: &str = "is too large when its aliases are written out: write it without them, or split it";

/// A manifest that exceeds what the parser reads.
fn too_large(breach: &BudgetBreach) -> &'static str {
    match breach {
        BudgetBreach::Depth { .. } => TOO_DEEP,
        BudgetBreach::Documents { .. } => "contains too many documents: keep one TrainingJob per file",
        BudgetBreach::Aliases { .. }
        | BudgetBreach::Anchors { .. }
        | BudgetBreach::AliasAnchorRatio { .. }
        | BudgetBreach::MergeKeys { .. }
        | BudgetBreach::RecordedAnchorEvents { .. }
        | BudgetBreach::RecordedAnchorBytes { .. } => WRITTEN_OUT,
        _ => "has too many values, with those that aliases repeat: write fewer, or write it without aliases",
    }
}

/// The first line of the parser's message, without the location.
fn message(error: &Error) -> String {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let text = text.split(" at line ").next().unwrap_or(text);
    // The parser's own remedy is for programmers.
    let text = text.split(", set DuplicateKeyPolicy").next().unwrap_or(text);
    text.trim_end_matches([':', '.']).to_owned()
}

fn place(location: &Location) -> (u32, u32) {
    let narrow = |n| u32::try_from(n).unwrap_or(u32::MAX);
    (narrow(location.line()), narrow(location.column()))
}

impl Tree {
    /// The value without its locations.
    pub(crate) fn json(&self) -> Value {
        match &self.node {
            Node::Scalar(value) => value.clone(),
            Node::Text(text) => Value::String(text.clone()),
            Node::List(items) => items.iter().map(Self::json).collect(),
            Node::Map(entries) => {
                // A null is an absent field, as for the API server.
                let present = entries.iter().filter(|e| !matches!(e.value.node, Node::Scalar(Value::Null)));
                Value::Object(present.map(|e| (e.key.clone(), e.value.json())).collect::<Map<_, _>>())
            }
        }
    }

    /// The text of `key` of the outermost map.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        let Node::Map(entries) = &self.node else { return None };
        match &entries.iter().find(|entry| entry.key == key)?.value.node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Removes an entry of the outermost map.
    pub(crate) fn remove(&mut self, key: &str) {
        if let Node::Map(entries) = &mut self.node {
            entries.retain(|e| e.key != key);
        }
    }

    /// Line and column of `field`, such as `spec.phases[1].name`: those of its key (an element of a list: its own), or,
    /// when there is no such field, those of the innermost enclosing field.
    pub(crate) fn location(&self, field: &str) -> (u32, u32) {
        let mut here = self;
        let mut found = self.place;
        let mut rest = field;
        while !rest.is_empty() {
            let Some((place, value, after)) = here.step(rest) else { return found };
            (found, here, rest) = (place, value, after);
        }
        found
    }

    /// Resolves the first segment of `path`: location of its key, its value, and the rest of the path.
    fn step<'a, 'p>(&'a self, path: &'p str) -> Option<((u32, u32), &'a Self, &'p str)> {
        match &self.node {
            Node::Map(entries) => {
                // Keys may contain dots: take the longest match.
                let fits = |e: &&Entry| {
                    path.strip_prefix(e.key.as_str()).is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
                };
                let entry = entries.iter().filter(fits).max_by_key(|e| e.key.len())?;
                let rest = &path[entry.key.len()..];
                Some((entry.place, &entry.value, rest.strip_prefix('.').unwrap_or(rest)))
            }
            Node::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                let item = items.get(index.parse::<usize>().ok()?)?;
                Some((item.place, item, rest.strip_prefix('.').unwrap_or(rest)))
            }
            Node::Scalar(_) | Node::Text(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Node>::deserialize(deserializer)?;
        Ok(Self { node: spanned.value, place: place(&spanned.referenced) })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            entries.push(Entry { place: place(&key.referenced), key: key.value, value: map.next_value()? });
        }
        Ok(Node::Map(entries))
    }
}
