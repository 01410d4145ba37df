//! Broken manifests are refused by the API server, at `kubectl apply`.

use pawl_e2e::programs::{repository, succeed};
use pawl_e2e::scene;

/// Each broken manifest of the API crate says in its second line what a cluster does with it: `refuses` (schema and
/// rules), `prunes` (an unknown field: kubectl asks for strict decoding, so it is refused too), `accepts` (only `pawl
/// validate` or preflight knows better), `unread` (it never becomes one object whose schema could be asked).
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
            if answer.is_ok() {
                // Others have its name, and what a job trains is immutable.
                succeed(&mut scene.kubectl(&["delete", "trainingjobs", "--all"]));
            }
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            match (expected, &answer) {
                ("unread", _) | ("accepts", Ok(())) => {}
                ("refuses" | "prunes", Err(refusal)) => {
                    refused += 1;
                    // FIELD: what kubectl names is it or what it is in.
                    let field = error.split(' ').nth(1).unwrap_or_default().trim_end_matches(':');
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
