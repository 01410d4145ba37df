//! What judging takes, as text for a person.

use super::{Amount, Judging, Loss};
use pawl_api::spec::JudgingBudget;

impl Judging {
    /// What judging takes probably and at most, in total beside the training, then of each part. Empty: nothing is
    /// judged.
    pub fn lines(&self) -> Vec<String> {
        if self.parts.is_empty() {
            return Vec::new();
        }
        let (probably, most) = self.total();
        let mut lines = vec![format!("judging: {}{}", between(probably, most), beside(self))];
        lines.extend(self.limit());
        let parts = self.parts.iter();
        lines.extend(parts.map(|part| format!("judging: {}: {}", part.name, between(part.probably, part.most))));
        lines
    }

    /// The limit beside a training.
    fn limit(&self) -> Option<String> {
        self.items.or(self.epochs.map(u64::from))?;
        let percent = self.budget.unwrap_or_default().percent()?;
        let by = if self.budget.is_none() { "the default of analysis.budgetPercent" } else { "analysis.budgetPercent" };
        Some(format!(
            "judging: limited by {by} to {percent} % of the time of the training with the baseline, and what the \
             accepted phases save; without this limit:"
        ))
    }

    /// The warning about phases whose judging cannot pay for itself, in one line that ends with what to do about it.
    /// All that checks a manifest before it runs prints this line. None where a limit is given.
    pub fn warning(&self) -> Option<String> {
        let loss = self.loss()?;
        let cost = loss.cost * 100.0;
        let promise = match self.promised {
            None => "more than all there is to save".to_owned(),
            Some(_) => format!("and saves at most {:.0} % of it, if each expectedSpeedup holds", loss.saves * 100.0),
        };
        let remedies = self.remedies(loss);
        match self.budget {
            Some(JudgingBudget::Percent(_)) => None,
            Some(JudgingBudget::Unlimited) => Some(format!(
                "spec.phases: judging takes probably {cost:.0} % of the time of the training with the baseline, \
                 {promise}: {remedies}, or say how much judging may take at most (spec.analysis.budgetPercent)"
            )),
            None => Some(format!(
                "spec.phases: judging would probably take {cost:.0} % of the time of the training with the baseline, \
                 {promise}: the default of spec.analysis.budgetPercent, {} %, will probably give phases up: \
                 {remedies}, or measure all of them anyway (budgetPercent: Unlimited)",
                JudgingBudget::DEFAULT_PERCENT
            )),
        }
    }

    /// What makes judging pay: a training of a length that is long enough, if there is one, or less to judge.
    fn remedies(&self, loss: Loss) -> String {
        let field = if self.items.is_some() { "spec.train.items" } else { "spec.train.epochs" };
        let longer = |length| format!("train for longer ({field} of at least {}), ", grouped(length));
        format!(
            "{}remove the phases that save least, apply those that are known without measurement (pin: Accepted)",
            loss.pays_from.map(longer).unwrap_or_default()
        )
    }
}

fn between(probably: Amount, most: Amount) -> String {
    if probably == Amount::default() {
        return format!("probably nothing; at most {}", shown(most));
    }
    format!("probably {}; at most {}", shown(probably), shown(most))
}

pub(crate) fn shown(amount: Amount) -> String {
    let Amount { launches, steps, items, epochs } = amount;
    let parts = [(launches, "launch", "launches"), (steps, "step", "steps"), (items, "item", "items")];
    let parts = parts.into_iter().chain([(epochs, "epoch", "epochs")]).filter(|(count, ..)| *count > 0);
    parts.map(|(count, one, many)| counted(count, one, many)).collect::<Vec<_>>().join(", ")
}

pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

fn beside(plan: &Judging) -> String {
    match (plan.items, plan.epochs) {
        (Some(items), _) => format!("; the training: {}", counted(items, "item", "items")),
        (None, Some(epochs)) => format!("; the training: {}", counted(epochs.into(), "epoch", "epochs")),
        (None, None) => String::new(),
    }
}

/// A number with a comma between each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use pawl_api::TrainingJob;
    use pawl_api::spec::JudgingBudget;
    use serde_json::json;

    fn job(items: u64, promise: Option<&str>) -> TrainingJob {
        let phase = json!({"name": "compile", "expectedSpeedup": promise, "settings": {"compile": "Graph"}});
        let analysis = json!({"warmupSteps": 10, "windowSteps": 90, "minPairs": 3, "maxPairs": 7, "qualityItems": 1600,
            "budgetPercent": "Unlimited"});
        let spec = json!({"workload": {"command": ["train"]}, "settings": {"batchPerGpu": 8}, "phases": [phase],
            "analysis": analysis, "train": {"items": items}});
        serde_json::from_value(json!({"metadata": {"name": "toy"}, "spec": spec})).expect("a job")
    }

    #[test]
    fn the_plan_names_launches_steps_and_items_beside_the_training() {
        let expected = [
            // Three pairs of 100 steps of 8 items, twice; at most seven, and each look of the quality gates.
            "judging: probably 12 launches, 1,200 steps, 9,600 items; at most 37 launches, 4,600 steps, 36,800 items; \
             the training: 1,000,000 items",
            "judging: baseline: probably nothing; at most 3 launches, 600 steps, 4,800 items",
            "judging: compile: probably 6 launches, 600 steps, 4,800 items; at most 17 launches, 2,000 steps, 16,000 items",
            "judging: all together: probably 6 launches, 600 steps, 4,800 items; at most 17 launches, 2,000 steps, 16,000 items",
        ];
        assert_eq!(crate::judging(&job(1_000_000, Some("1.5"))).lines(), expected);
        let mut limited = job(1_000_000, Some("1.5"));
        limited.spec.analysis.budget_percent = Some(JudgingBudget::Percent(10));
        let lines = crate::judging(&limited).lines();
        assert!(lines.len() == expected.len() + 1 && lines[1].contains("budgetPercent to 10 %"), "{lines:?}");
        limited.spec.analysis.budget_percent = None;
        let lines = crate::judging(&limited).lines();
        assert!(lines[1].contains("limited by the default of analysis.budgetPercent to 10 %"), "{lines:?}");
        limited.spec.train.items = None;
        assert_eq!(crate::judging(&limited).lines().len(), expected.len(), "there is nothing that it is a share of");
        let mut nothing = job(1_000_000, None);
        nothing.spec.phases.clear();
        assert!(crate::judging(&nothing).lines().is_empty());
    }

    #[test]
    fn judging_that_cannot_pay_is_a_warning() {
        // 8,000 items at the speed of the baseline: half of them at 1.5 times that.
        let warning = |items, promise| crate::judging(&job(items, promise)).warning();
        assert_eq!(warning(30_000, Some("1.5")), None);
        let mut limited = job(16_000, Some("1.5"));
        limited.spec.analysis.budget_percent = Some(JudgingBudget::Percent(10));
        assert_eq!(crate::judging(&limited).warning(), None);
        let found = warning(16_000, Some("1.5")).expect("a third is saved, and half is spent");
        assert!(found.starts_with("spec.phases: judging takes probably 50 % of the time"), "{found}");
        assert!(found.contains("saves at most 33 % of it") && found.contains("pin: Accepted"), "{found}");
        assert!(found.contains("spec.train.items of at least 24,000") && !found.contains('\n'), "{found}");
        assert_eq!(warning(24_000, Some("1.5")), None, "the length that it names is long enough");
        assert!(warning(23_999, Some("1.5")).is_some());
        let found = warning(16_000, Some("1")).expect("nothing is saved");
        assert!(!found.contains("train for longer"), "{found}");
        // What is promised by nobody may be anything below the whole.
        assert_eq!(warning(16_000, None), None);
        let found = warning(8_000, None).expect("9,600 items are judged");
        assert!(found.contains("120 %") && found.contains("all there is to save"), "{found}");
    }

    #[test]
    fn a_ladder_that_cannot_pay_is_warned_of_the_default_limit() {
        let warning = |items| {
            let mut job = job(items, Some("1.5"));
            job.spec.analysis.budget_percent = None;
            crate::judging(&job).warning()
        };
        assert_eq!(warning(30_000), None);
        let found = warning(16_000).expect("a third is saved, and half would be spent");
        for part in ["would probably take 50 %", "10 %, will probably give phases up", "budgetPercent: Unlimited"] {
            assert!(found.contains(part), "{found}");
        }
    }
}
