//! The configuration files of a script that uses Hydra: their keys are its options, `key=value`.

use super::declared::{Declared, Takes};
use super::words::Style;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Configurations that include one another, at most.
const DEPTH: usize = 8;
/// The value of a key that has to be given.
const REQUIRED: &str = "???";

/// The arguments of `@hydra.main`.
#[derive(Debug, Default, Deserialize)]
pub struct Main {
    /// The directory, relative to that of the script.
    path: Option<String>,
    /// The configuration, without `.yaml`.
    name: Option<String>,
}

impl Main {
    /// The keys of its configuration, in their order, with the groups that are chosen on this command line.
    pub fn keys(&self, script: &Path, given: &[String]) -> Vec<Declared> {
        let option = |names: &[&str]| {
            given.iter().enumerate().find_map(|(index, word)| {
                let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
                names.contains(&name).then(|| value.or_else(|| given.get(index + 1).map(String::as_str)))?
            })
        };
        let directory = option(&["--config-path", "-cp"]).or(self.path.as_deref()).unwrap_or(".");
        let Some(name) = option(&["--config-name", "-cn"]).or(self.name.as_deref()) else { return Vec::new() };
        let directory = script.parent().unwrap_or(Path::new(".")).join(directory);
        let read = |path: &Path| serde_saphyr::from_str(&std::fs::read_to_string(path).ok()?).ok();
        let mut keys = Keys { directory, given, read: &read, found: BTreeMap::new() };
        keys.add(Path::new(name), "", DEPTH);
        keys.found.into_iter().map(|(name, value)| declared(name, &value)).collect()
    }
}

fn declared(name: String, value: &Value) -> Declared {
    Declared {
        names: vec![name],
        takes: if value.is_boolean() { Takes::Boolean } else { Takes::Value },
        required: value == REQUIRED,
        default: if value == REQUIRED { Value::Null } else { value.clone() },
        style: Style::Key,
        ..Declared::default()
    }
}

struct Keys<'a> {
    directory: PathBuf,
    given: &'a [String],
    read: &'a dyn Fn(&Path) -> Option<Value>,
    found: BTreeMap<String, Value>,
}

impl Keys<'_> {
    /// Adds those of a file, below a key; its own values replace those of the files that it includes.
    fn add(&mut self, file: &Path, below: &str, depth: usize) {
        let name = file.to_string_lossy();
        let path = self.directory.join(format!("{}.yaml", name.trim_end_matches(".yaml")));
        let Some(Value::Object(mut content)) = (self.read)(&path).filter(|_| depth > 0) else { return };
        let included = content.remove("defaults");
        for entry in included.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let group = file.parent().unwrap_or(Path::new(""));
            match entry {
                Value::String(name) if name != "_self_" => self.add(&group.join(name), below, depth - 1),
                Value::Object(choice) => {
                    for (chosen, option) in choice {
                        let chosen = chosen.trim_start_matches("optional ");
                        let start = format!("{chosen}=");
                        let given = self.given.iter().find_map(|word| word.strip_prefix(&start));
                        let Some(option) = given.or(option.as_str()).filter(|_| !chosen.contains(' ')) else {
                            continue;
                        };
                        let key = [below, &chosen.replace('/', ".")].join(if below.is_empty() { "" } else { "." });
                        self.add(&group.join(chosen).join(option), &key, depth - 1);
                    }
                }
                _ => {}
            }
        }
        self.flatten(below, Value::Object(content));
    }

    fn flatten(&mut self, key: &str, value: Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let key = if key.is_empty() { name } else { format!("{key}.{name}") };
                    self.flatten(&key, value);
                }
            }
            Value::Array(_) => {}
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                self.found.insert(key.to_owned(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_groups_are_below_their_name_and_choices_of_the_command_line_count() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join("conf").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            "config.yaml",
            "defaults:\n  - data: small\n  - override hydra/launcher: joblib\n  - _self_\nseed: 1\nout: ???\n",
        );
        write("data/small.yaml", "batch_size: 32\nworkers: 0\n");
        write("data/large.yaml", "batch_size: 256\nsplits: [train]\nloader: {pin: true}\n");
        let main = Main { path: Some("conf".to_owned()), name: Some("config".to_owned()) };
        let keys = |given: &[&str]| -> Vec<(String, Value, bool)> {
            let given: Vec<String> = given.iter().map(|&word| word.to_owned()).collect();
            let keys = main.keys(&directory.path().join("train.py"), &given);
            keys.into_iter().map(|key| (key.names[0].clone(), key.default, key.required)).collect()
        };
        let of = |name: &str, value: Value| (name.to_owned(), value, false);
        let out = ("out".to_owned(), Value::Null, true);
        let small = [of("data.batch_size", 32.into()), of("data.workers", 0.into()), out.clone(), of("seed", 1.into())];
        assert_eq!(keys(&[]), small);
        let large = [of("data.batch_size", 256.into()), of("data.loader.pin", true.into()), out, of("seed", 1.into())];
        assert_eq!(keys(&["data=large", "seed=3"]), large);
        assert_eq!(keys(&["--config-name", "absent"]), []);
    }
}
