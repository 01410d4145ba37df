//! The state directory of `pawl run`, and the report about it.

use crate::parts::parts;
use crate::scratch;
use crate::story::Story;
use pawl_display::report::render;
use pawl_local::evidence::gather;
use pawl_local::state::document::Document;
use pawl_local::state::{StateDir, attempts};
use serde_json::Value;
use std::path::{Component, Path};

/// `status.json`, `events.jsonl`, the `record.json` of an attempt and the `report.json` of a launch: they are refused
/// with a remedy, or the report is rendered and the next decision is taken.
pub fn run(input: &[u8]) {
    let [status, events, record, report] = parts(input);
    let directory = scratch::directory();
    let state = StateDir::new(directory.path());
    scratch::write(&state.status(), status);
    scratch::write(&state.events(), events);
    write_attempt(&state, record, report);
    match gather(&state) {
        Ok(evidence) => {
            let page = render(&evidence);
            assert!(page.ends_with("</html>") || page.ends_with("</html>\n"), "the report is cut off");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(Some(document)) = Document::load(&state) {
        let mut story = Story::new(&document.job, document.status.clone());
        for _ in 0..3 {
            story.decide();
            story.wait(60);
        }
    }
}

/// The files of an attempt, with the plan that its record contains, and of its first launch.
fn write_attempt(state: &StateDir, record: &[u8], report: &[u8]) {
    let record_value: Value = serde_json::from_slice(record).unwrap_or_default();
    let plan = record_value.get("plan").cloned().unwrap_or_default();
    let plain = |name: &&str| {
        let mut steps = Path::new(name).components();
        name.len() < 200
            && !name.contains('\0')
            && matches!((steps.next(), steps.next()), (Some(Component::Normal(_)), None))
    };
    let named = |value: &Value| value.as_str().filter(plain).unwrap_or("other").to_owned();
    let attempt = attempts::directory(state, &named(&plan["attempt"]));
    let launch = attempt.join(named(&plan["launches"][0]["launch"]));
    std::fs::create_dir_all(&launch).expect("a directory can be created");
    scratch::write(&attempt.join(attempts::RECORD), record);
    scratch::write(&attempt.join("attempt.json"), plan.to_string().as_bytes());
    scratch::write(&launch.join("report.json"), report);
}
