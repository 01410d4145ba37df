//! What `kubectl apply` says: broken manifests are refused by the API server, and those of before are unchanged.

use pawl_e2e::programs::{repository, succeed};
use pawl_e2e::scene;
use std::path::{Path, PathBuf};

/// Each broken manifest of the API crate says in its second line what a cluster does with it: `refuses` (schema and
/// rules), `prunes` (an unknown field: kubectl asks for strict decoding, so it is refused too), `accepts` (only `pawl
/// validate` or preflight knows better), `reads VALUE` (what `pawl validate` refuses as ambiguous is stored as VALUE),
/// `unread` (it never becomes one object whose schema could be asked).
#[test]
fn broken_manifests_are_refused_at_apply_with_the_field_and_the_remedy() {
    scene(async |scene| {
        let folder = repository().join("crds/manifest/tests/broken");
        let mut wrong = Vec::new();
        let mut refused = 0;
        for file in std::fs::read_dir(&folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let mut lines = text.lines();
            let error = lines.next().and_then(|line| line.strip_prefix("# error: ")).unwrap();
            let expected = lines.next().and_then(|line| line.strip_prefix("# cluster: ")).unwrap();
            let answer = scene.try_apply(&text);
            // FIELD: what the error is about, as a path.
            let field = error.split(' ').nth(1).unwrap_or_default().trim_end_matches(':');
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if let (Some(value), Ok(())) = (expected.strip_prefix("reads "), &answer) {
                let stored = succeed(&mut scene.kubectl(&[
                    "get",
                    "trainingjobs",
                    "-o",
                    &format!("jsonpath={{.items[0].{field}}}"),
                ]));
                if stored.trim() != value {
                    wrong.push(format!("{name}: {field} is stored as {stored}, not as {value}"));
                }
            }
            if answer.is_ok() {
                // Others have its name, and what a job trains is immutable.
                succeed(&mut scene.kubectl(&["delete", "trainingjobs", "--all"]));
            }
            match (expected, &answer) {
                ("unread", _) | ("accepts", Ok(())) => {}
                (reads, Ok(())) if reads.starts_with("reads ") => {}
                ("refuses" | "prunes", Err(refusal)) => {
                    refused += 1;
                    // What kubectl names is the field or what it is in.
                    let mut parts = field.rsplit('.').map(|part| part.split('[').next().unwrap());
                    if !parts.by_ref().take(2).any(|part| refusal.contains(part)) {
                        wrong.push(format!("{name}: does not name {field}: {refusal}"));
                    }
                }
                _ => wrong.push(format!("{name}: should be {expected}: {answer:?}")),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(refused >= 50, "only {refused} broken manifests are refused");
    });
}

/// The manifests below a directory.
fn manifests(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    here.chain(directories.iter().flat_map(|directory| manifests(directory))).collect()
}

/// A default inside an item of a list would be a difference for ever, for `kubectl apply` as for Argo CD.
#[test]
fn an_example_that_is_applied_again_is_unchanged() {
    scene(async |scene| {
        let folder = tempfile::tempdir().unwrap();
        let examples = manifests(&repository().join("examples"));
        assert!(examples.len() >= 30, "{examples:?}");
        for path in examples {
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.matches("\nspec:\n").count(), 1, "{}", path.display());
            let file = folder.path().join("job.yaml");
            // Pods are of no interest here.
            std::fs::write(&file, text.replace("\nspec:\n", "\nspec:\n  suspend: true\n")).unwrap();
            let file = file.to_str().unwrap();
            for way in ["--server-side=false", "--server-side"] {
                let apply = || succeed(&mut scene.kubectl(&["apply", way, "-f", file]));
                let version = || {
                    let of = "jsonpath={.items[0].metadata.generation} {.items[0].spec}";
                    succeed(&mut scene.kubectl(&["get", "trainingjobs", "-o", of]))
                };
                apply();
                let before = version();
                let again = apply();
                assert!(way == "--server-side" || again.trim().ends_with(" unchanged"), "{}: {again}", path.display());
                assert_eq!(version(), before, "{}", path.display());
                succeed(&mut scene.kubectl(&["delete", "trainingjobs", "--all"]));
            }
        }
    });
}
