//! What a status says of the parts of a model.

use serde_json::Value;

/// A part that does not begin where the one before ends: nothing is said of what trained the items between.
pub fn gap(status: &Value) -> Option<String> {
    let segments = status["training"]["segments"].as_array()?;
    let gap = segments.windows(2).find(|pair| pair[0]["toItems"] != pair[1]["fromItems"])?;
    Some(format!("status.training.segments: a gap: {gap:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn items_of_which_nothing_is_said_are_found() {
        let status = |bounds: &[(u64, u64)]| {
            let segments = bounds.iter().map(|(from, to)| json!({"fromItems": from, "toItems": to}));
            json!({"training": {"segments": segments.collect::<Vec<_>>()}})
        };
        assert_eq!(gap(&status(&[(0, 80), (80, 400), (400, 800)])), None);
        assert!(gap(&status(&[(0, 80), (96, 400)])).is_some());
        assert!(gap(&status(&[(0, 80), (80, 400), (320, 800)])).is_some(), "two claim the same items");
        assert_eq!(gap(&json!({})), None);
    }
}
