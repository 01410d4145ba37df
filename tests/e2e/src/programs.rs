//! The programs and files that tests use: as the workspace was built.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The repository: from `PAWL_REPOSITORY`, or else where the tests were built.
pub fn repository() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = std::env::var_os("PAWL_REPOSITORY").map_or_else(built, PathBuf::from);
    path.canonicalize().expect("the repository is there")
}

/// A program of this workspace: from the folder `PAWL_PROGRAMS`, or else beside the test's own `deps` folder.
///
/// # Panics
/// When it was not built.
pub fn built(name: &str) -> PathBuf {
    let beside = || std::env::current_exe().ok()?.ancestors().nth(2).map(Path::to_owned);
    let folder = std::env::var_os("PAWL_PROGRAMS").map(PathBuf::from).or_else(beside).expect("a test has a path");
    let program = folder.join(name);
    assert!(program.exists(), "{}: build it first, as tests/run does", program.display());
    program
}

/// Runs a program to its end and gives its standard output.
///
/// # Panics
/// When it fails: with its standard error.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("programs write text")
}

/// Runs a program to its end.
pub fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// kubectl of the cluster, as its administrator.
pub fn kubectl(arguments: &[&str]) -> Command {
    let mut command = Command::new("kubectl");
    command.arg("--request-timeout=30s").args(arguments);
    command
}
