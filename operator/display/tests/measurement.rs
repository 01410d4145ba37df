//! How good the measurements of speedups are, of the recorded statuses of whole ladders.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_api::status::{PhaseState, Speedup};
use pawl_display::report::evidence::Evidence;
use pawl_display::report::render;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/device/ladders")
}

/// The manifest and the status of a recorded job.
fn recorded(name: &str) -> Evidence {
    changed(name, |_| {})
}

/// The same, with changes to its document.
fn changed(name: &str, change: impl FnOnce(&mut Value)) -> Evidence {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    let mut document = serde_json::from_str::<Value>(&text).unwrap()["job"].take();
    change(&mut document);
    let (job, status) = (document["job"].take(), document["status"].take());
    Evidence::new(serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap(), Vec::new(), Vec::new())
}

/// All recorded jobs with their names.
fn all() -> Vec<(String, Evidence)> {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: Vec<_> = names.map(|name| (name.clone(), recorded(&name))).collect();
    assert!(found.len() > 9, "{}", found.len());
    found
}

/// The card with this identifier.
fn card<'a>(page: &'a str, id: &str) -> &'a str {
    let rest = page.split_once(&format!("<article class=\"card\" id=\"{id}\">"));
    rest.unwrap_or_else(|| panic!("no card {id}")).1.split("</article>").next().unwrap()
}

/// Text without tags.
fn shown(markup: &str) -> String {
    let outside = markup.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    outside.collect::<String>().replace("&quot;", "\"").replace("&amp;", "&")
}

/// The line about the measurement in a card.
fn line(page: &str, id: &str) -> Option<String> {
    let rest = card(page, id).split_once("<div class=\"measurement\">")?.1;
    Some(shown(rest.split("</div>").next().unwrap()))
}

/// The cards with a speedup: their identifiers and speedups.
fn judged(evidence: &Evidence) -> Vec<(String, Speedup)> {
    let phases = evidence.status.phases.iter();
    let phases = phases.filter_map(|phase| Some((format!("phase-{}", phase.name), phase.speedup.clone()?)));
    let bundle = evidence.status.bundle.iter();
    phases.chain(bundle.filter_map(|it| Some(("all-together".to_owned(), it.speedup.clone()?)))).collect()
}

/// The numbers `N of M` before `what`.
fn n_of_m(text: &str, what: &str) -> Option<(usize, usize)> {
    let before = text.split_once(what)?.0;
    let words: Vec<&str> = before.split_whitespace().rev().take(3).collect();
    Some((words[2].parse().unwrap(), words[0].parse().unwrap()))
}

#[test]
fn every_speedup_has_a_line_and_its_pairs_add_up() {
    let (mut found, mut numbers) = (0, 0);
    for (name, evidence) in all() {
        let page = render(&evidence);
        for (id, speedup) in judged(&evidence) {
            let line = line(&page, &id).unwrap_or_else(|| panic!("{name}: {id} has no line"));
            let known = ["● Speed measurement", "◐ Speed measurement", "○ Speed measurement"]
                .iter()
                .any(|start| line.starts_with(start));
            assert!(known && line.contains("interval"), "{name}: {id}: {line}");
            if line.contains("no longer in the status") {
                assert!(line.contains(&format!("The launches of its {} pairs", speedup.pairs)), "{line}");
                continue;
            }
            let (counted, of) = n_of_m(&line, " pairs count").unwrap_or_else(|| panic!("{name}: {id}: {line}"));
            let not = shown(card(&page, &id).split("<b>Not counted</b>").nth(1).unwrap_or_default());
            let (not, of_not) = n_of_m(&not, " pairs:").unwrap_or((0, of));
            assert_eq!((counted, counted + not, of_not), (speedup.pairs as usize, of, of), "{name}: {id}: {line}");
            found += 1;
        }
        // 7.9 pixels are the width of a digit at 12.5 pixels; signs and brackets are narrower.
        for number in page.split("<text class=\"number\" x=\"636.0\"").skip(1) {
            numbers += 1;
            let number = number.split_once('>').unwrap().1.split('<').next().unwrap();
            let digits = number.chars().filter(char::is_ascii_digit).count() as f64;
            let width = 7.9 * digits + 5.0 * (number.chars().count() as f64 - digits);
            assert!(636.0 + width < 782.0, "{name}: {number} touches the mark of the measurement");
        }
        let marks = page.matches("<g><title>Speed measurement").count();
        assert_eq!(marks, judged(&evidence).len(), "{name}: a mark beside each verdict of the waterfall");
    }
    assert!(found > 30 && numbers > found, "{found}, {numbers}");
}

#[test]
fn levels_and_reasons_are_those_of_the_recorded_pairs() {
    let forex = render(&recorded("forex.json"));
    let weak = "○ Speed measurement: weak. 3 of 3 pairs count, seeds 42, 43, 44; none was seen to be disturbed; interval [3.40, \
                10.44], its upper bound more than twice the lower one. \
                The required 1.30× is below the whole interval: it is met, but count on 3.40× rather than on the estimate.";
    assert_eq!(line(&forex, "all-together").unwrap(), weak);
    assert!(forex.contains("[3.40, 10.44], 3 pairs, very wide interval"), "the tile says it");
    let gone = "◐ Speed measurement: with care. The launches of its 5 pairs are no longer in the status, which keeps the newest \
                evidence only; none of them is known to have been disturbed; interval [1.28, 1.54]. \
                The required 1.00× is below the whole interval: it is met, but count on 1.28× rather than on the estimate.";
    assert_eq!(line(&forex, "phase-fused-optimizer").unwrap(), gone);

    let gpu = render(&recorded("huggingface-gpu.json"));
    let care = "◐ Speed measurement: with care. 4 of 6 pairs count, seeds 42, 43, 44; of these it is not known whether other \
                programs disturbed them, as their launches did not report it (?); interval [1.30, 2.22], which is wide. \
                The required 1.02× is below the whole interval: it is met, but count on 1.30× rather than on the estimate.";
    assert_eq!(line(&gpu, "phase-flash-attention").unwrap(), care);
    let left = "Not counted (~, hollow) 2 of 6 pairs: pair 2: the speed of a launch still changed; pair 4: only one \
                launch, its attempt ended before the other.";
    assert!(shown(card(&gpu, "phase-flash-attention")).contains(left));

    let bdh = render(&recorded("vision-bdh.json"));
    let good = "● Speed measurement: good. 7 of 7 pairs count, seeds 42, 43, 44; none was seen to be disturbed; interval [0.999, \
                1.004]. The required 1.00× is inside the interval.";
    assert_eq!(line(&bdh, "phase-loader").unwrap(), good);
    assert!(bdh.contains("[8.43, 8.53], 3 pairs</span>"), "nothing to be said in the tile");
}

#[test]
fn the_same_settings_at_another_speed_are_named_in_both_comparisons() {
    let page = render(&recorded("ups-1gpu.json"));
    let of = |id| line(&page, id).unwrap();
    let there =
        "The same settings ran 27.3 items/s here and 21.2 in compile (+29 %): the machine or its load differed.";
    assert!(of("all-together").contains(there), "{}", of("all-together"));
    for later in ["phase-checkpointing-batch30", "phase-loader"] {
        assert!(of(later).contains("and 104 in compile (+") && of(later).contains("with care"), "{}", of(later));
    }
    let here = "The same settings ran 21.2 items/s here and 27.3 in all together (-22 %)";
    assert!(of("phase-compile").contains(here) && of("phase-compile").contains("with care"), "{}", of("phase-compile"));
    // What is not known is not said: whether it was the machine or its load.
    assert!(page.contains("with care: speed differs elsewhere</td>"), "{page}");
    // One whose settings ran alike, and one after a phase that was rolled back.
    for same in ["phase-bf16", "phase-fused-kernels", "phase-nothing"] {
        assert!(of(same).starts_with("● Speed measurement: good."), "{}", of(same));
    }
    // What was accepted when the later ones were measured is not known any more.
    let open = changed("ups-1gpu.json", |document| document["status"]["phases"][0]["state"] = json!("Measuring"));
    assert!(!render(&open).contains("The same settings ran"));
}

#[test]
fn a_product_unlike_what_was_measured_together_is_said() {
    let page = render(&recorded("ups-1gpu.json"));
    let said = "The phases multiply to 8.22×; measured together they are 7.43× [7.29, 7.59]. What was measured \
                together is what training is promised.";
    assert!(shown(&page).contains(said));
    assert!(!render(&recorded("forex.json")).contains("The phases multiply"), "within the interval");
    let again = render(&recorded("huggingface-gpu-again.json"));
    assert!(!again.contains("The phases multiply"), "other phases were measured together");
    let open = changed("ups-1gpu.json", |document| document["status"]["bundle"]["state"] = json!("Measuring"));
    assert!(!render(&open).contains("The phases multiply"), "it is being measured");
}

#[test]
fn a_launch_whose_partner_may_follow_is_no_half_pair() {
    // While the third pair was measured, whose other launch was interrupted: as if it ran, and as recorded.
    let loader = |runs: bool| {
        let page = render(&changed("ups-2gpu.json", |document| {
            let phase = &mut document["status"]["phases"][2];
            phase["state"] = json!("Measuring");
            phase["speedup"] = json!({"estimate": "1.00037", "lower": "0.436753", "upper": "2.2913", "pairs": 2});
            let launches = phase["launches"].as_array_mut().unwrap();
            launches.retain(|launch| launch["pair"].as_u64() < Some(3));
            if runs {
                launches.last_mut().unwrap().as_object_mut().unwrap().remove("attempt");
            }
        }));
        shown(card(&page, "phase-loader"))
    };
    let (running, ended) = (loader(true), loader(false));
    assert!(!running.contains("only one launch") && running.contains("2 of 2 pairs count"), "{running}");
    assert!(ended.contains("pair 3: only one launch, its attempt ended before the other."), "{ended}");
    assert!(
        ended.contains("Speed measurement so far: weak. 2 of 3 pairs count, fewer than 3, seeds 42, 43"),
        "{ended}"
    );
}

#[test]
fn all_together_has_a_card_that_no_phase_can_have() {
    let page = render(&changed("ups-1gpu.json", |document| {
        for part in ["job", "status"] {
            let phases =
                if part == "job" { &mut document[part]["spec"]["phases"] } else { &mut document[part]["phases"] };
            phases[0]["name"] = json!("all-together");
        }
    }));
    let ids: Vec<&str> = page.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    assert!(page.contains("<a href=\"#all-together\">speedup, measured together</a>"));
    let card = card(&page, "all-together");
    for wanted in ["B, with all accepted phases, over A, the baseline", "needs 3.00×", "pair 4", "GoalMet"] {
        assert!(card.contains(wanted), "{wanted} is missing from {card}");
    }
    // Without the gate, it must confirm what was accepted: one of the phases may cost 2 % by its minSpeedup.
    let without_gate = render(&recorded("vision-bdh.json"));
    assert!(self::card(&without_gate, "all-together").contains("needs 0.98×"), "{without_gate}");
    let unproven = render(&changed("vision-bdh.json", |document| {
        document["job"]["spec"]["analysis"]["onInconclusive"] = json!("Accept");
    }));
    assert!(!self::card(&unproven, "all-together").contains("needs"), "nothing must be confirmed");
}

#[test]
fn quality_has_its_confidence_and_limit_and_no_exponents() {
    let atft = render(&recorded("atft.json"));
    let quality = "validation loss +0.0129, at most +0.0182 with 95 % confidence (allowed: 0.0125)";
    assert!(shown(card(&atft, "phase-batch-8192")).contains(quality));
    let ups = shown(card(&render(&recorded("ups-1gpu.json")), "phase-bf16"));
    let in_parts = "at most +0.000737 with at least 97.5 % confidence (allowed: 0.001), nrmse +0.0453 % on average (allowed: 3 % more)";
    assert!(ups.contains(in_parts), "{ups}");
    for (name, evidence) in all() {
        let page = render(&evidence);
        for quality in page.split("<b>Quality</b>").skip(1) {
            let text = shown(quality.split("</p>").next().unwrap());
            let is_exponent = |at: usize| text[..at].ends_with(|c: char| c.is_ascii_digit());
            assert!(!text.match_indices('e').any(|(at, _)| is_exponent(at)), "{name}: {text}");
            assert!(!text.contains("-0 ") && !text.contains("-0.0000 "), "{name}: {text}");
        }
    }
}

#[test]
fn a_phase_that_was_skipped_is_listed_with_its_reason() {
    let evidence = recorded("slm-fp8.json");
    assert!(evidence.status.phases.iter().any(|phase| phase.state == PhaseState::Skipped));
    let page = render(&evidence);
    let table = page.split("<table class=\"cards verdicts\">").nth(1).unwrap().split("</table>").next().unwrap();
    let row = table.split("<tr>").find(|row| row.contains("#phase-fp8-delayed")).unwrap();
    for wanted in ["skipped", "it requires fp8, which is not accepted", "RequirementNotAccepted"] {
        assert!(row.contains(wanted), "{wanted} is missing from {row}");
    }
    let row = table.split("<tr>").find(|row| row.contains("#phase-nothing")).unwrap();
    assert!(row.contains("● </span>") || row.contains("●</span>"), "{row}");
}

#[test]
fn what_is_declared_and_required_is_said_in_words() {
    let page = render(&recorded("vision-bdh.json"));
    let of = |id| shown(card(&page, id));
    let slower = "It need not be faster: 0.98 of the speed before it is enough (minSpeedup).";
    assert!(of("phase-channels-last").contains(slower) && !of("phase-compile").contains(slower));
    assert!(of("phase-compile").contains("training losses are compared, and quality is not tested unless"));
    assert!(of("phase-bf16").contains("declared to change the numerics: quality is tested"));
    let open = changed("vision-bdh.json", |document| {
        document["status"]["phases"][3]["judgedAsChanged"] = json!("the losses differ");
    });
    let of_open = shown(card(&render(&open), "phase-compile"));
    assert!(of_open.contains("which the training losses leave open: quality is tested"), "{of_open}");
    // The reason follows the message.
    let compile = of("phase-compile");
    assert!(compile.find("is at least minSpeedup") < compile.find("SpeedAboveThreshold"), "{compile}");
}
