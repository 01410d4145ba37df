//! pin, rollback, suspend, resume, restart.

use crate::api::{Answer, Api, JOBS, job, one_job};
use crate::program::Program;
use serde_json::json;

#[test]
fn suspend_and_resume_change_that_alone_and_only_when_it_differs() {
    let api = one_job();
    let program = Program::new(&api);
    let printed = program.pawl(&["suspend", "toy"]);
    assert_eq!(
        (printed.code, printed.out.as_str()),
        (Some(0), "trainingjob.pawl.dev/toy suspended\n"),
        "{}",
        printed.err
    );
    let writes = api.writes();
    assert_eq!(writes.len(), 1);
    assert_eq!(
        (writes[0].path.as_str(), writes[0].kind.as_str()),
        (&*format!("{JOBS}/toy"), "application/merge-patch+json")
    );
    assert!(writes[0].query.contains("fieldManager=kubectl-pawl"), "{}", writes[0].query);
    assert_eq!(writes[0].json(), json!({"metadata": {"uid": "11"}, "spec": {"suspend": true}}));
    // It runs already.
    let printed = program.pawl(&["resume", "toy"]);
    assert!(printed.code == Some(0) && printed.out.contains("already"), "{}", printed.out);
    assert_eq!(api.writes().len(), 1);
}

#[test]
fn restart_names_the_attempts_that_are_under_way() {
    let api = one_job();
    let printed = Program::new(&api).pawl(&["restart", "toy"]);
    assert!(printed.code == Some(0) && printed.out.contains("no attempt is under way"), "{}", printed.out);
    assert_eq!(api.writes().len(), 0);
    let api = Api::start(|_| {
        let mut job = job();
        job["status"]["attempt"] = json!({"name": "toy-4", "started": "2026-01-01T00:00:00Z"});
        job["status"]["parallel"] = json!([{"name": "toy-5", "started": "2026-01-02T00:00:00Z"}]);
        Answer::Json(job)
    });
    let printed = Program::new(&api).pawl(&["restart", "toy"]);
    assert_eq!(printed.out, "trainingjob.pawl.dev/toy: toy-4, toy-5 will be replaced\n", "{}", printed.err);
    let write = api.writes().pop().unwrap();
    let named = "toy-4/2026-01-01T00:00:00Z,toy-5/2026-01-02T00:00:00Z";
    assert_eq!(write.json(), json!({"metadata": {"uid": "11", "annotations": {"pawl.dev/restart": named}}}));
}

#[test]
fn rollback_pins_each_phase_that_is_not_yet() {
    let api = one_job();
    let program = Program::new(&api);
    for words in [&["rollback", "toy", "--all"][..], &["rollback", "toy", "-p", "compile"]] {
        let printed = program.pawl(words);
        assert_eq!(printed.code, Some(0), "{}", printed.err);
        assert!(printed.err.contains("manifest"), "a later apply takes it back: {}", printed.err);
        let write = api.writes().pop().unwrap();
        assert_eq!(write.kind, "application/json-patch+json");
        assert_eq!(
            write.json(),
            json!([{"op": "test", "path": "/metadata/uid", "value": "11"},
                   {"op": "test", "path": "/spec/phases/0/name", "value": "compile"},
                   {"op": "add", "path": "/spec/phases/0/pin", "value": "RolledBack"}])
        );
    }
    let before = api.writes().len();
    assert!(program.pawl(&["rollback", "toy", "--phase", "slow"]).out.contains("nothing to change"));
    assert_eq!(api.writes().len(), before);
    let printed = program.pawl(&["rollback", "toy"]);
    assert!(printed.code == Some(2) && printed.err.contains("--all"), "{}", printed.err);
}

#[test]
fn a_pin_can_have_any_value_of_the_api_and_can_be_removed() {
    let api = one_job();
    let program = Program::new(&api);
    let printed = program.pawl(&["pin", "toy", "--phase", "compile", "DryRun"]);
    assert_eq!(printed.out, "trainingjob.pawl.dev/toy: compile: pinned to DryRun\n", "{}", printed.err);
    assert_eq!(api.writes().pop().unwrap().json()[2]["value"], "DryRun");
    let printed = program.pawl(&["pin", "toy", "--phase", "slow", "none"]);
    assert_eq!(printed.out, "trainingjob.pawl.dev/toy: slow: pin removed\n", "{}", printed.err);
    assert_eq!(api.writes().pop().unwrap().json()[2], json!({"op": "remove", "path": "/spec/phases/1/pin"}));
    let printed = program.pawl(&["pin", "toy", "--phase", "compil", "Accepted"]);
    assert!(printed.code == Some(2) && printed.err.contains("available: compile"), "{}", printed.err);
    assert_eq!(api.writes().len(), 2);
}

#[test]
fn a_concurrently_changed_job_is_left_unchanged_with_an_error() {
    let api = Api::start(|asked| match asked.writes() {
        true => Answer::Failure(422, "Invalid", "the server rejected our request: testing value failed".into(), "toy"),
        false => Answer::Json(job()),
    });
    let printed = Program::new(&api).pawl(&["rollback", "toy", "--all"]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("rejected by the API server: the server rejected"), "{}", printed.err);
}
