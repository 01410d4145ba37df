//! What goes wrong, and what it says.

use crate::api::{Answer, Api, job, one_job, unknown};
use crate::program::Program;
use std::net::TcpListener;

#[test]
fn an_unknown_job_is_an_error_that_suggests_similar_names() {
    let api = one_job();
    let printed = Program::new(&api).pawl(&["status", "toi"]);
    assert_eq!(printed.code, Some(2));
    assert!(printed.err.contains("namespace \"team\" has no TrainingJob \"toi\"; available: toy"), "{}", printed.err);
}

#[test]
fn the_error_for_a_missing_crd_explains_the_installation() {
    let api = Api::start(|_| unknown());
    let program = Program::new(&api);
    for words in [&["status", "toy"][..], &["suspend", "toy"], &["rollback", "toy", "--all"], &["report", "toy"]] {
        let printed = program.pawl(words);
        assert_eq!(printed.code, Some(4), "{}", printed.err);
        assert!(printed.err.contains("helm install pawl"), "{words:?}: {}", printed.err);
    }
}

#[test]
fn the_error_for_missing_permission_names_the_verb() {
    let api = Api::start(|asked| match asked.method.as_str() {
        "PATCH" => Answer::Failure(
            403,
            "Forbidden",
            "trainingjobs.pawl.dev \"toy\" is forbidden: User \"jo\" cannot patch".into(),
            "toy",
        ),
        _ => Answer::Json(job()),
    });
    let printed = Program::new(&api).pawl(&["suspend", "toy"]);
    assert_eq!(printed.code, Some(4));
    assert!(
        printed.err.contains("you are not allowed to patch trainingjobs.pawl.dev in namespace \"team\""),
        "{}",
        printed.err
    );
    assert!(printed.err.contains("User \"jo\""), "{}", printed.err);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let unused_address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let printed = Program::at(unused_address).pawl(&["status", "toy"]);
    assert_eq!(printed.code, Some(4), "{}", printed.err);
    assert!(
        printed.err.contains(&format!("http://{unused_address}")) && printed.err.contains("refused"),
        "{}",
        printed.err
    );
}

#[test]
fn a_context_or_kubeconfig_that_is_not_there_is_named() {
    let api = one_job();
    let program = Program::new(&api);
    let printed = program.pawl(&["status", "toy", "--context", "nowhere"]);
    assert!(printed.code == Some(4) && printed.err.contains("nowhere"), "{}", printed.err);
    let printed = program.pawl(&["status", "toy", "--kubeconfig", "missing.yaml"]);
    assert!(printed.code == Some(4) && printed.err.contains("missing.yaml"), "{}", printed.err);
    assert_eq!(api.asked().len(), 0);
}
