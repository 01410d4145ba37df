//! What trained the model, where that is not simply the settings in effect.

use crate::numbers::short;
use pawl_api::spec::Train;
use pawl_api::status::{SegmentStatus, TrainingStatus, differing};
use pawl_contract::settings::Settings;
use std::collections::{BTreeMap, BTreeSet};

/// A line for each part of the model that other settings, another seed or another build trained than the rest or than
/// are in effect, and for each model that the job trained before. None when the settings in effect trained all of it.
pub(crate) fn lines(training: &TrainingStatus, train: &Train, effective: Option<&Settings>) -> Vec<String> {
    let parts: Vec<&SegmentStatus> =
        training.segments.iter().filter(|segment| segment.to_items > segment.from_items).collect();
    let effective = effective.map(|settings| settings.flat().into_iter().chain(train.length()).collect());
    let all: Vec<&BTreeMap<String, String>> = parts.iter().map(|part| &part.settings).chain(&effective).collect();
    let names: BTreeSet<&str> = all.windows(2).flat_map(|pair| differing(pair[0], pair[1])).collect();
    let mut lines = Vec::new();
    if parts.len() > 1 || !names.is_empty() {
        lines.extend(parts.iter().map(|part| described(part, &names, &parts)));
    }
    if !training.quarantined.is_empty() {
        lines.push(format!("damaged, or perhaps so, and never resumed: {}", training.quarantined.join(", ")));
    }
    lines.extend(training.earlier.iter().map(|earlier| {
        let place = earlier.directory.as_deref().unwrap_or("the storage itself");
        format!("an earlier model of {} items is in {place}", short(earlier.items as f64))
    }));
    lines
}

/// A part of the model, with those of its settings that differ from others.
fn described(part: &SegmentStatus, names: &BTreeSet<&str>, parts: &[&SegmentStatus]) -> String {
    let value = |name: &&str| {
        let absent = if name.starts_with("train.") { "not recorded" } else { "default" };
        format!("{name}: {}", part.settings.get(*name).map_or(absent, String::as_str))
    };
    let mut with: Vec<String> = names.iter().map(value).collect();
    if parts.iter().any(|other| other.trainer != part.trainer) {
        with.push(format!("build {}", if part.trainer.is_empty() { "unknown" } else { &part.trainer }));
    }
    if part.merged {
        with.push("among others".to_owned());
    }
    let items = format!("items {} to {}", short(part.from_items as f64), short(part.to_items as f64));
    if part.settings.is_empty() && part.merged {
        format!("{items} by an attempt of which no record is left")
    } else if part.settings.is_empty() {
        format!("{items} by an earlier version")
    } else {
        format!("{items} with {}", with.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn training(segments: &serde_json::Value) -> TrainingStatus {
        serde_json::from_value(json!({"segments": segments, "earlier": [{"items": 500}]})).unwrap()
    }

    #[test]
    fn parts_are_named_by_what_differs() {
        let part = |from: u64, to: u64, rate: &str| json!({"fromItems": from, "toItems": to, "settings": {"batchPerGpu": "8", "learningRate": rate}});
        let effective: Settings = serde_json::from_value(json!({"batchPerGpu": 8, "learningRate": "0.2"})).unwrap();
        let train = Train { items: Some(800), ..Train::default() };
        let shown = |segments| lines(&training(&segments), &train, Some(&effective));
        let earlier = "an earlier model of 500 items is in the storage itself";
        assert_eq!(shown(json!([part(0, 800, "0.2"), part(800, 800, "0.3")])), [earlier]);
        let lost = json!({"fromItems": 0, "toItems": 300, "merged": true});
        let unknown = shown(json!([lost, part(300, 800, "0.2")]));
        assert_eq!(unknown[0], "items 0 to 300 by an attempt of which no record is left");
        assert_eq!(shown(json!([part(0, 800, "0.1")])), ["items 0 to 800 with learningRate: 0.1", earlier]);
        let mut damaged = training(&json!([part(0, 800, "0.2")]));
        damaged.quarantined = vec!["ckpt-55".to_owned(), "ckpt-60".to_owned()];
        let shown_damaged = lines(&damaged, &train, Some(&effective));
        assert_eq!(shown_damaged, ["damaged, or perhaps so, and never resumed: ckpt-55, ckpt-60", earlier]);
        let both = shown(json!([part(0, 300, "0.1"), part(300, 800, "0.2")]));
        assert_eq!(both[..2], ["items 0 to 300 with learningRate: 0.1", "items 300 to 800 with learningRate: 0.2"]);
        // A learning rate that decays has done so over another length.
        let planned = |from: u64, to: u64, items: &str| {
            let mut part = part(from, to, "0.2");
            part["settings"]["train.items"] = json!(items);
            part
        };
        assert_eq!(shown(json!([planned(0, 800, "800")])), [earlier]);
        let longer = shown(json!([planned(0, 300, "300"), planned(300, 800, "800")]));
        assert_eq!(longer[..2], ["items 0 to 300 with train.items: 300", "items 300 to 800 with train.items: 800"]);
        let both = shown(json!([part(0, 300, "0.2"), planned(300, 800, "900")]));
        assert_eq!(both[0], "items 0 to 300 with train.items: not recorded");
    }
}
