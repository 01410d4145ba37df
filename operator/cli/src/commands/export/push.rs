//! Uploads an exported model by the program of Hugging Face that the user has.

use super::ExportError;
use crate::args::export::ExportArgs;
use crate::exit;
use pawl_display::shell::line;
use pawl_local::evidence::displayed;
use std::io;
use std::process::{Command, Stdio};

/// Programs that upload, the one that replaces the other first.
const PROGRAMS: [&str; 2] = ["hf", "huggingface-cli"];

/// What uploads a model.
pub struct Upload {
    words: Vec<String>,
    directory: String,
}

impl Upload {
    /// The upload of the output directory to `model`, OWNER/NAME.
    ///
    /// # Errors
    /// [`ExportError::Input`] when there is no program for it.
    pub fn new(model: &str, arguments: &ExportArgs) -> Result<Self, ExportError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |program: &&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
        let program = PROGRAMS.into_iter().find(is_there).ok_or_else(|| {
            let problem = format!(
                "--push {model}: neither {} nor {} is in the PATH: install one, for example with `pip install \
                 huggingface_hub`, or leave out --push",
                PROGRAMS[0], PROGRAMS[1]
            );
            ExportError::Input(problem)
        })?;
        let directory = displayed(&arguments.to);
        let mut words = vec![program.to_owned(), "upload".to_owned(), model.to_owned(), directory.clone()];
        words.extend(arguments.private.then(|| "--private".to_owned()));
        Ok(Self { words, directory })
    }

    /// Prints the command and runs it. What it prints goes to standard error.
    ///
    /// # Errors
    /// [`ExportError::Upload`] when it cannot be started, or fails.
    pub fn run(self) -> Result<(), ExportError> {
        let command = line(&self.words);
        exit::say(&command);
        let ended =
            Command::new(&self.words[0]).args(&self.words[1..]).stdin(Stdio::null()).stdout(io::stderr()).status();
        let problem = match ended {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        Err(ExportError::Upload { command, problem, directory: self.directory })
    }
}
