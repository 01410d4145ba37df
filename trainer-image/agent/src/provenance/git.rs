//! The revision of the Git repository that contains a script: as the program `git` says it, or else, without whether
//! there are changes, as the files of the repository do.

use super::Inquiry;
use crate::files::read_bounded;
use pawl_contract::provenance::Source;
use std::path::{Path, PathBuf};

/// Maximum size of a file that is read, bytes.
const MAX_FILE: u64 = 4 << 20;
/// Variables that would choose another repository, work tree or index.
const CHOOSING: [&str; 3] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"];

/// The revision of the repository that contains `script`; `None` without one.
pub(super) fn source(script: &Path, inquiry: &Inquiry) -> Option<Source> {
    let script = std::fs::canonicalize(script).ok()?;
    let root = script.ancestors().skip(1).find(|folder| folder.join(".git").exists())?;
    let mut command = inquiry.program("git");
    for name in CHOOSING {
        command.env_remove(name);
    }
    // It writes nothing, and starts no monitor of files; filters that the repository's configuration names may run.
    command.args(["--no-optional-locks", "-c", "core.fsmonitor=false", "-C"]).arg(root);
    command.args(["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal"]);
    // Each is a repository of its own, which may be large.
    command.arg("--ignore-submodules=all");
    let said = inquiry.ask(command).map(|text| of_status(&text, script.strip_prefix(root).ok()));
    said.or_else(|| Some(Source { commit: Some(head(&root.join(".git"))?), dirty: None }))
}

/// The revision in the output of `git status`. A file that Git does not track is a change if it is the script.
fn of_status(text: &str, script: Option<&Path>) -> Source {
    let of_script = |untracked: &str| script.is_some_and(|script| script.starts_with(untracked));
    let lines = || text.split('\0').filter(|line| !line.is_empty());
    let commit = lines().find_map(|line| line.strip_prefix("# branch.oid ")).filter(|commit| is_commit(commit));
    let changed = lines().any(|line| match line.strip_prefix("? ") {
        Some(untracked) => of_script(untracked),
        None => ["1 ", "2 ", "u "].iter().any(|kind| line.starts_with(kind)),
    });
    Source { commit: commit.map(str::to_owned), dirty: Some(changed) }
}

/// The commit that is checked out. `git` is the folder `.git`, or the file of this name of a further work tree.
fn head(git: &Path) -> Option<String> {
    let text = |path: PathBuf| Some(String::from_utf8(read_bounded(&path, MAX_FILE).ok()?).ok()?.trim().to_owned());
    let folder = match text(git.to_owned()) {
        Some(link) => git.parent()?.join(link.strip_prefix("gitdir: ")?),
        None => git.to_owned(),
    };
    let head = text(folder.join("HEAD"))?;
    let commit = match head.strip_prefix("ref: ") {
        None => head,
        Some(branch) => {
            // All work trees have the same branches.
            let common = text(folder.join("commondir")).map_or_else(|| folder.clone(), |common| folder.join(common));
            let packed = || {
                let all = text(common.join("packed-refs"))?;
                let mut named = all.lines().filter_map(|line| line.split_once(' '));
                named.find(|(_, name)| *name == branch).map(|(commit, _)| commit.to_owned())
            };
            text(common.join(branch)).or_else(packed)?
        }
    };
    is_commit(&commit).then_some(commit)
}

fn is_commit(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    #[test]
    fn the_commit_is_found_without_git() {
        let folder = tempfile::tempdir().unwrap();
        let git = folder.path().join("code/.git");
        create_dir_all(git.join("refs/heads")).unwrap();
        let [one, two, three] = ["1", "2", "3"].map(|digit| digit.repeat(40));
        write(git.join("HEAD"), format!("{one}\n")).unwrap();
        assert_eq!(head(&git), Some(one));
        write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        assert_eq!(head(&git), None, "there is no commit yet");
        write(git.join("packed-refs"), format!("# pack-refs with: peeled\n{two} refs/heads/main\n")).unwrap();
        assert_eq!(head(&git), Some(two));
        write(git.join("refs/heads/main"), format!("{three}\n")).unwrap();
        assert_eq!(head(&git), Some(three.clone()), "it is newer than the packed one");

        let tree = git.join("worktrees/tree");
        create_dir_all(&tree).unwrap();
        create_dir_all(folder.path().join("tree")).unwrap();
        write(tree.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        write(tree.join("commondir"), "../..\n").unwrap();
        let link = folder.path().join("tree/.git");
        write(&link, format!("gitdir: {}\n", tree.display())).unwrap();
        assert_eq!(head(&link), Some(three));
        write(git.join("refs/heads/main"), "../../secret\n").unwrap();
        assert_eq!(head(&git), None, "only a commit is one");
    }

    #[test]
    fn changes_are_those_of_tracked_files_and_of_the_script() {
        let oid = "a".repeat(40);
        let of = |lines: &str, script: &str| {
            of_status(&format!("# branch.oid {oid}\0# branch.head main\0{lines}"), Some(Path::new(script))).dirty
        };
        assert_eq!(of("", "src/train.py"), Some(false));
        assert_eq!(of("1 .M N... 100644 100644 100644 a b other.py\0", "src/train.py"), Some(true));
        assert_eq!(of("? notes.txt\0? data/\0", "src/train.py"), Some(false));
        assert_eq!(of("? src/\0", "src/train.py"), Some(true));
        assert_eq!(of("? src/train.py\0", "src/train.py"), Some(true));
        assert_eq!(of_status("# branch.oid (initial)\0", None), Source { commit: None, dirty: Some(false) });
    }
}
