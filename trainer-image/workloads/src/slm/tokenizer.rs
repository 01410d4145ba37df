//! Tokenizer files in Hugging Face's layout: `tokenizer.json`, and the end of a document as `tokenizer_config.json`
//! beside it names it.

use crate::store::StoreError;
use crate::workload::WorkloadError;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Display;
use std::path::{Path, PathBuf};

const FILE: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
/// Common end-of-document tokens, for tokenizers whose configuration names none.
const ENDS: [&str; 3] = ["<|end_of_text|>", "<|endoftext|>", "</s>"];

/// Text to ids.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    end: u32,
    fingerprint: [u8; 32],
}

impl Tokenizer {
    /// The tokenizer file in a directory, if there is one.
    pub fn beside(directory: &Path) -> Option<PathBuf> {
        Some(directory.join(FILE)).filter(|path| path.exists())
    }

    /// Reads the file at `path` for a model of `vocabulary` tokens.
    ///
    /// # Errors
    /// When it cannot be read, has more tokens than the model, or none that ends a document.
    pub fn open(path: &Path, vocabulary: usize) -> Result<Self, WorkloadError> {
        let wrong = |problem: &str| {
            WorkloadError::config("data.tokenizer", &Value::String(path.display().to_string()), problem)
        };
        let bytes = std::fs::read(path).map_err(|error| {
            let problem = format!("cannot be read: {error}; name a {FILE}, or a directory that contains one");
            WorkloadError::file("data.tokenizer", path, problem)
        })?;
        let invalid =
            |error: &dyn Display| wrong(&format!("is not a valid Hugging Face tokenizer: {error}; copy it again"));
        // As JSON first: the library panics at a syntax error in some of its parts.
        let json: Value = serde_json::from_slice(&bytes).map_err(|error| invalid(&error))?;
        if let Some(problem) = broken_merge(&json["model"]) {
            return Err(invalid(&problem));
        }
        let mut inner: tokenizers::Tokenizer = serde_json::from_value(json).map_err(|error| invalid(&error))?;
        // Many files contain what their model was last used with: documents would be cut, or padded.
        inner.with_truncation(None).map_err(|error| invalid(&error))?;
        inner.with_padding(None);
        let largest = inner.get_vocab(true).into_values().max().unwrap_or(0) as usize;
        if largest >= vocabulary {
            return Err(wrong(&format!(
                "has token {largest}, which is not below workload.config.architecture.vocabulary ({vocabulary}): use the tokenizer of \
                 this model"
            )));
        }
        let named = end_of_document(&path.with_file_name(CONFIG));
        let candidates = named.as_deref().into_iter().chain(ENDS);
        let end = candidates.into_iter().find_map(|token| inner.token_to_id(token)).ok_or_else(|| {
            wrong(&format!("has no token that ends a document: name it as eos_token in {CONFIG} beside it"))
        })?;
        Ok(Self { inner, path: path.to_owned(), end, fingerprint: Sha256::digest(&bytes).into() })
    }

    /// Ids of a document, without special tokens.
    ///
    /// # Errors
    /// When the tokenizer has no token for a part of it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, StoreError> {
        let encoding = self.inner.encode_fast(text, false);
        let encoding = encoding.map_err(|error| StoreError::Source(format!("{}: {error}", self.path.display())))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The id between documents.
    pub fn end_of_document(&self) -> u32 {
        self.end
    }

    /// Hash of everything that the ids depend on.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

/// `eos_token` of a configuration, which is a string or an object with a `content`.
fn end_of_document(path: &Path) -> Option<String> {
    let config: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let token = &config["eos_token"];
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

/// What is wrong with a merge of a byte-pair model: the library panics at a second token that lacks the prefix which
/// the model cuts off, and at a product that is longer than all tokens.
fn broken_merge(model: &Value) -> Option<String> {
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    let vocabulary = model["vocab"].as_object()?;
    model["merges"].as_array()?.iter().find_map(|merge| {
        let (first, second) = match merge {
            // The first line of a file of merges.
            Value::String(pair) if pair.starts_with("#version") => return None,
            Value::String(pair) => pair.split_once(' ')?,
            pair => (pair[0].as_str()?, pair[1].as_str()?),
        };
        let Some(rest) = second.strip_prefix(prefix) else {
            return Some(format!("merge {merge} does not continue a word, as model.continuing_subword_prefix asks"));
        };
        let is_known = vocabulary.contains_key(&format!("{first}{rest}"));
        (!is_known).then(|| format!("merge {merge} makes a token that is not in model.vocab"))
    })
}
