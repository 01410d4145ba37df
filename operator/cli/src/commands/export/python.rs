//! Checkpoints of the Python package, as it checks them itself before it reads one.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// The manifest of a checkpoint.
const FILE: &str = "pawl.json";
/// The newest format that is known.
const FORMAT: u64 = 1;
/// Bytes of the longest manifest.
const LONGEST: u64 = 64 << 20;
/// Bytes of a file that are hashed at a time.
const PIECE: usize = 1 << 20;

/// Fields of a JSON object, as they are in its text.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Compares the files in `directory` with the manifest there. Checkpoints of other programs have none.
///
/// # Errors
/// Says what differs.
pub fn verify(directory: &Path) -> Result<(), String> {
    let Some(text) = read(&directory.join(FILE)).map_err(|error| format!("{FILE}: {error}"))? else { return Ok(()) };
    let corrupt = |error: serde_json::Error| format!("{FILE} is corrupt: {error}");
    // Limits how deep it is nested.
    serde_json::from_str::<Value>(&text).map_err(corrupt)?;
    let mut fields: Fields<'_> = serde_json::from_str(&text).map_err(corrupt)?;
    let sealed: Option<String> = field(&fields, "sha256")?;
    fields.remove("sha256");
    if let Some(hash) = sealed
        && hash != seal(&fields).map_err(corrupt)?
    {
        return Err("it is corrupt: its manifest does not match its hash".to_owned());
    }
    let missing = |name: &str| format!("{FILE} is corrupt: it has no {name}");
    let format: u64 = field(&fields, "format")?.ok_or_else(|| missing("format"))?;
    if format > FORMAT {
        return Err(format!("{FILE} has format {format}, and this version reads up to {FORMAT}: install a newer one"));
    }
    let files: BTreeMap<String, u64> = field(&fields, "files")?.ok_or_else(|| missing("files"))?;
    // Those of earlier versions have none.
    let hashes: BTreeMap<String, String> = field(&fields, "hashes")?.unwrap_or_default();
    // Before anything is read: a file may have grown to any size.
    for (name, expected) in &files {
        let found = fs::metadata(inside(directory, name)?).map_err(|error| format!("{name}: {error}"))?.len();
        if found != *expected {
            return Err(format!("it is corrupt: {name} has {found} bytes, not {expected}"));
        }
        if !hashes.is_empty() && !hashes.contains_key(name) {
            return Err(format!("it is corrupt: its manifest has no hash of {name}"));
        }
    }
    for (name, expected) in &hashes {
        let found = hash(&inside(directory, name)?).map_err(|error| format!("{name}: {error}"))?;
        if found != *expected {
            return Err(format!("it is corrupt: {name} does not match its hash"));
        }
    }
    Ok(())
}

/// The text of the manifest, if there is one.
fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("has more than {LONGEST} bytes")));
    }
    Ok(Some(text))
}

fn field<T: DeserializeOwned>(fields: &Fields<'_>, name: &str) -> Result<Option<T>, String> {
    let value = fields.get(name).map(|value| serde_json::from_str(value.get())).transpose();
    value.map_err(|error| format!("{FILE} is corrupt: {name}: {error}"))
}

/// The path of the file `name` of a checkpoint.
fn inside(directory: &Path, name: &str) -> Result<PathBuf, String> {
    let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    (is_inside && !name.is_empty())
        .then(|| directory.join(name))
        .ok_or_else(|| format!("it is corrupt: {FILE} names {name:?}, which is no path inside of the checkpoint"))
}

/// The hash of a manifest: of its compact JSON with sorted keys, as Python writes it.
fn seal(fields: &Fields<'_>) -> serde_json::Result<String> {
    let mut text = String::new();
    object(fields, &mut text)?;
    Ok(hexadecimal(&Sha256::digest(text)))
}

fn object(fields: &Fields<'_>, to: &mut String) -> serde_json::Result<()> {
    to.push('{');
    for (index, (name, value)) in fields.iter().enumerate() {
        if index > 0 {
            to.push(',');
        }
        to.push_str(&ascii(&serde_json::to_string(name)?));
        to.push(':');
        compact(value, to)?;
    }
    to.push('}');
    Ok(())
}

/// Numbers and strings remain as they are in the text: Python wrote them.
fn compact(value: &RawValue, to: &mut String) -> serde_json::Result<()> {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'{') => object(&serde_json::from_str(text)?, to)?,
        Some(b'[') => {
            to.push('[');
            for (index, item) in serde_json::from_str::<Vec<&RawValue>>(text)?.into_iter().enumerate() {
                if index > 0 {
                    to.push(',');
                }
                compact(item, to)?;
            }
            to.push(']');
        }
        _ => to.push_str(text),
    }
    Ok(())
}

/// A string of JSON with all but ASCII escaped.
fn ascii(text: &str) -> String {
    let escaped = text.encode_utf16().map(|unit| match u8::try_from(unit) {
        Ok(byte @ b' '..=b'~') => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    });
    escaped.collect()
}

/// SHA-256 of a file, in hexadecimal.
fn hash(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut piece) = (File::open(path)?, Sha256::new(), vec![0; PIECE]);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok(hexadecimal(&digest.finalize()));
        }
        digest.update(&piece[..read]);
    }
}

fn hexadecimal(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manifest_is_sealed_as_python_seals_it() {
        // By `hashes.seal`; the generator of NumPy has such numbers.
        let text = r#"{"format": 1, "step": 3, "files": {"w/\u00e9\u007f": 1, "a": 2}, "state": {"rng":
            1267650600228229401496703205376, "x": [1e-05, 1.0, 1e+16, -0.5, null, true], "deep": {"b": [], "a": {}}},
            "hashes": {}}"#;
        let fields: Fields<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(seal(&fields).unwrap(), "2edb0aa0450f490e443821c7aaf5c6cf7d6f99d58dc18a0f048851e7cf1a9a3d");
    }

    #[test]
    fn what_differs_from_the_manifest_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        assert_eq!(verify(place), Ok(()), "no manifest");
        fs::write(place.join("weights"), "last").unwrap();
        let hash = hash(&place.join("weights")).unwrap();
        for (manifest, expected) in [
            (json!({"format": 1, "files": {"weights": 4}, "hashes": {"weights": hash}}), None),
            (json!({"format": 1, "files": {"weights": 4}}), None),
            (json!({"format": 1}), Some("has no files")),
            (json!({"format": 2}), Some("format 2")),
            (json!({"format": 1, "files": {"weights": 5}}), Some("weights has 4 bytes, not 5")),
            (json!({"format": 1, "files": {"weights": 4, "none": 4}}), Some("none: No such file")),
            (json!({"format": 1, "files": {"weights": 4}, "hashes": {"other": hash}}), Some("no hash of weights")),
            (json!({"format": 1, "files": {"../weights": 4}}), Some("\"../weights\", which is no path inside")),
            (json!({"format": 1, "files": {}, "hashes": {"/etc/passwd": hash}}), Some("\"/etc/passwd\"")),
            (
                json!({"format": 1, "files": {"weights": 4}, "hashes": {"weights": "00"}}),
                Some("does not match its hash"),
            ),
            (json!({"format": 1, "files": {}, "sha256": hash}), Some("manifest does not match its hash")),
        ] {
            fs::write(place.join(FILE), manifest.to_string()).unwrap();
            match (verify(place), expected) {
                (Ok(()), None) => {}
                (Err(found), Some(expected)) => assert!(found.contains(expected), "{expected}: {found}"),
                (found, expected) => panic!("{manifest}: {found:?}, not {expected:?}"),
            }
        }
        let sparse = File::create(place.join(FILE)).unwrap();
        sparse.set_len(LONGEST + 1).unwrap();
        assert!(verify(place).unwrap_err().contains("has more than 67108864 bytes"));
    }
}
