//! The program under its name as a plugin of kubectl, and a kubeconfig for it.

use crate::api::Api;
use serde_json::json;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A directory with links to the program, and a kubeconfig whose namespace is `team`.
pub struct Program {
    directory: TempDir,
}

/// What a command printed, and how it ended.
pub struct Printed {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Printed {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Program {
    pub fn new(api: &Api) -> Self {
        Self::at(api.address)
    }

    pub fn at(address: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["kubectl-pawl", "kubectl_complete-pawl"] {
            symlink(env!("CARGO_BIN_EXE_pawl"), directory.path().join(name)).unwrap();
        }
        let context = |name: &str, namespace: &str| json!({"name": name, "context": {"cluster": "test", "user": "test", "namespace": namespace}});
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [context("test", "team"), context("other", "elsewhere")],
        });
        std::fs::write(directory.path().join("kubeconfig"), kubeconfig.to_string()).unwrap();
        Self { directory }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Runs one of the links, or `pawl` itself.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Printed {
        self.command(program, arguments).output().unwrap().into()
    }

    /// The same, not started yet.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let path = match program {
            "pawl" => Path::new(env!("CARGO_BIN_EXE_pawl")).to_owned(),
            link => self.path().join(link),
        };
        let mut command = Command::new(path);
        command.args(arguments).env("KUBECONFIG", self.path().join("kubeconfig")).current_dir(self.path());
        command.stdin(Stdio::null());
        command
    }

    /// `kubectl pawl` with these arguments.
    pub fn pawl(&self, arguments: &[&str]) -> Printed {
        self.run("kubectl-pawl", arguments)
    }
}
