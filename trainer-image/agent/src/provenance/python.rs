//! The versions of the libraries of a script in Python, as its interpreter says them. No library is imported.

use super::Inquiry;
use super::scripts::words;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Prints the versions that are known without an import.
const PROGRAM: &str = r#"
import importlib.metadata, json, platform
names = """
torch transformers accelerate lightning pytorch-lightning pawl-launch numpy datasets tokenizers safetensors peft trl
deepspeed triton flash-attn xformers bitsandbytes torchvision torchao timm jax tensorflow
"""
found = {"python": platform.python_version()}
for name in names.split():
    try:
        found[name] = importlib.metadata.version(name)
    except Exception:
        pass
print(json.dumps(found))
"#;
/// Programs that choose another interpreter than the one that is found here, or another machine.
const CHOOSING: [&str; 9] = ["activate", "conda", "mamba", "uv", "poetry", "docker", "podman", "srun", "ssh"];
/// Words of a command that are looked at.
const MAX_WORDS: usize = 64;
/// Longest first line of a program that is read, bytes.
const MAX_LINE: u64 = 256;

/// The versions by name; none for a command in which no interpreter is found, or of which it is not known which one
/// runs.
pub(super) fn libraries(command: &[String], inquiry: &Inquiry) -> BTreeMap<String, String> {
    let variable = |name: &str| inquiry.variable(name);
    let path = variable("PATH").unwrap_or_default();
    let words = words(command, &variable);
    if words.iter().any(|word| chooses(word)) {
        return BTreeMap::new();
    }
    let interpreter = words.iter().take(MAX_WORDS).find_map(|word| interpreter(word, &path));
    let said = interpreter.and_then(|interpreter| {
        let mut command = inquiry.program(interpreter);
        command.args(["-c", PROGRAM]);
        inquiry.ask(command)
    });
    said.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Whether a word of a command is one of [`CHOOSING`], with its folder or without.
fn chooses(word: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| CHOOSING.iter().any(|known| name == *known))
}

/// The interpreter that a word of a command names: by itself, or as a program such as `torchrun`, whose first line
/// names it. `path` is the `PATH`.
fn interpreter(word: &str, path: &str) -> Option<PathBuf> {
    let program = located(word, path)?;
    if is_python(&program) {
        return Some(program);
    }
    let mut line = Vec::new();
    File::open(&program).ok()?.take(MAX_LINE).read_to_end(&mut line).ok()?;
    let line = String::from_utf8_lossy(&line);
    let named = line.lines().next()?.strip_prefix("#!")?.split_whitespace().map(Path::new);
    // Not the words after it, as in `#!/usr/bin/env python3 -u`.
    named.take(2).find(|named| is_python(named)).and_then(|named| located(named.to_str()?, path))
}

/// The file of a program.
fn located(word: &str, path: &str) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| path.is_absolute() && path.is_file();
    if word.contains('/') {
        return Some(PathBuf::from(word)).filter(is_file);
    }
    let plain = !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-+".contains(c));
    plain.then(|| path.split(':').map(|folder| Path::new(folder).join(word)).find(is_file)).flatten()
}

fn is_python(program: &Path) -> bool {
    let name = program.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let version = name.strip_prefix("python");
    version.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_choose_an_interpreter_are_known_by_their_names() {
        for word in ["conda", "/opt/conda/bin/activate", ".venv/bin/activate", "uv"] {
            assert!(chooses(word), "{word}");
        }
        for word in ["/opt/conda/bin/python", "--uv", "", "/", "uvicorn"] {
            assert!(!chooses(word), "{word}");
        }
    }

    #[test]
    fn an_interpreter_is_named_by_itself_or_by_the_first_line_of_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let python = file("python3.12", "");
        file("torchrun", &format!("#!{}\nimport sys\n", python.display()));
        file("accelerate", "#!/usr/bin/env python3.12 -u\n");
        file("train", "\u{7f}ELF\n");
        let path = format!("/none:{}", folder.path().display());
        for word in ["python3.12", "torchrun", "accelerate", python.to_str().unwrap()] {
            assert_eq!(interpreter(word, &path).as_ref(), Some(&python), "{word}");
        }
        for word in ["train", "python", "--lr=1", "", "..", "python-config", "train.py"] {
            assert_eq!(interpreter(word, &path), None, "{word}");
        }
    }
}
