//! `pawl manual`: what packages install beside the program.

use crate::args::Arguments;
use crate::exit;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Writes the completion scripts and the man pages.
pub fn manual(directory: &Path) -> ExitCode {
    match write(directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::with_error(exit::FAILED, &format!("{}: {error}", directory.display())),
    }
}

fn write(directory: &Path) -> io::Result<()> {
    let (completions, pages) = (directory.join("completions"), directory.join("man/man1"));
    std::fs::create_dir_all(&completions)?;
    std::fs::create_dir_all(&pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "pawl", &completions)?;
    }
    clap_mangen::generate_to(Arguments::command(), &pages)
}
