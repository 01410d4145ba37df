//! The usual forms of a line that reports a step and its loss, or a validation loss.

use regex::{Captures, Match, Regex};
use std::fmt::Write as _;
use std::sync::LazyLock;

/// A number, as Python prints it.
const NUMBER: &str = r"-?\d*\.?\d+(?:[eE][-+]?\d+)?|nan|NaN|-?inf";
/// Between a word and its number: `": `, ` = tensor(`.
const SEPARATOR: &str = r#"["']?\s*(?:is\s+)?[:=]?\s*["'\[(]?(?:tensor\()?\s*"#;

/// A regular expression of this file.
fn regex(text: &str) -> Regex {
    Regex::new(text).expect("a regular expression of the program is valid")
}

fn after_words(words: &str) -> Regex {
    regex(&format!(r#"(?i-u:{words})["']?\s*[:=#]?\s*[\[(]?\s*(?<number>\d+)"#))
}

static STEP: LazyLock<Regex> = LazyLock::new(|| after_words("global[_ ]?step|steps?|iter(?:ation)?s?"));
static BATCH: LazyLock<Regex> = LazyLock::new(|| after_words("mini-?batch|batch(?:[_ ]?idx|es)?|updates?"));
static EPOCH: LazyLock<Regex> = LazyLock::new(|| after_words("epoch"));
static OF_BATCHES: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?<number>\d+)\s*/\s*\d+ *(?<unit>(?i-u:batches|steps|iter(?:ation)?s))\b"));
static BAR: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:\|\s*(?<number>\d+)/\d+|(?:^|\s)(?<free>\d+)it) \[\d+:\d+"));
static PERCENT: LazyLock<Regex> = LazyLock::new(|| regex(r"\s*\d+%\|"));
static BRACKETS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"[\[(]\s*(?<number>\d+)\s*/\s*\d+(?<share>\s*\(\s*[\d.]+%\s*\))?\s*[\])]"));
static PAIR: LazyLock<Regex> = LazyLock::new(|| regex(r"^\s*\[\s*(?<epoch>\d+),\s*(?<number>\d+)\]"));
static BARE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?:^|\s)(?<number>\d+)/\d+(?:[\s:,|]|$)"));
static FIRST: LazyLock<Regex> = LazyLock::new(|| regex(r"^\s*(?<number>\d+)\s*[:|,]?\s"));
static LOSS: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r"(?<word>(?i-u:(?:train(?:ing)?|avg|average|running|mean) )?(?i-u:[a-z_/.-]*loss)){SEPARATOR}(?<number>{NUMBER})"
    ))
});
static VALIDATION: LazyLock<Regex> = LazyLock::new(|| {
    let of = r"\b(?i-u:(?<of>validation|valid|val|evaluation|eval|dev|test))[^A-Za-z\d|;][^\d|;]{0,24}?";
    regex(&format!(r"{of}(?:(?i-u:loss)){SEPARATOR}(?<number>{NUMBER})"))
});
static EVALUATION: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"\b(?i-u:validation|valid|val|evaluation|eval|dev|test|(?:validat|evaluat|test)ing)(?:\b|_)")
});

/// A part of a pattern, and the bytes of the line that it matches. `STEP` is the place of the group of the steps.
struct Fragment {
    start: usize,
    end: usize,
    pattern: String,
}

/// A line that reports a step and a loss.
pub(super) struct Form<'a> {
    text: &'a str,
    fragments: Vec<Fragment>,
    pub(super) epoch: Option<u64>,
    pub(super) step: u64,
    pub(super) loss: f64,
    /// Whether the share of the total follows the step: `[640/60000 (1%)]`.
    pub(super) has_share: bool,
    /// Whether the line has a validation loss, too.
    pub(super) has_validation: bool,
}

impl<'a> Form<'a> {
    /// The form of a line that reports a step and a training loss.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (loss, of_loss) = loss(text)?;
        let Step { number, fragment, epoch, has_share } = step(text)?;
        let mut form = Form {
            text,
            epoch,
            step: number,
            loss,
            has_share,
            has_validation: VALIDATION.is_match(text),
            fragments: Vec::new(),
        };
        if epoch.is_none()
            && let Some((epoch, of_epoch)) = epoch_before(text, fragment.start)
        {
            form.epoch = Some(epoch);
            form.fragments.push(of_epoch);
        }
        form.fragments.extend([fragment, of_loss]);
        form.fragments.sort_by_key(|fragment| fragment.start);
        let apart = form.fragments.windows(2).all(|pair| pair[0].end <= pair[1].start);
        apart.then_some(form)
    }

    /// What lines of one kind have in common.
    pub(super) fn key(&self) -> String {
        self.pattern(false)
    }

    /// The pattern of such lines. `items`: whether they count items.
    pub(super) fn pattern(&self, items: bool) -> String {
        let mut pattern = String::new();
        let mut end = 0;
        for fragment in &self.fragments {
            if end > 0 && !self.text[end..fragment.start].is_empty() {
                pattern.push_str(".*?");
            }
            pattern.push_str(&fragment.pattern);
            end = fragment.end;
        }
        pattern.replace("STEP", if items { "items" } else { "step" })
    }
}

/// The step of a line.
struct Step {
    number: u64,
    fragment: Fragment,
    epoch: Option<u64>,
    has_share: bool,
}

/// The step of a line, in the most specific form.
fn step(text: &str) -> Option<Step> {
    let plain = |number: Match<'_>, start: usize, pattern: String| {
        let fragment = Fragment { start, end: number.end(), pattern };
        Some(Step { number: number.as_str().parse().ok()?, fragment, epoch: None, has_share: false })
    };
    for words in [&*STEP, &*BATCH] {
        if let Some((number, start)) = after(words, text) {
            let pattern = format!(r"{}(?<STEP>\d+)", literal(&text[start..number.start()]));
            return plain(number, start, pattern);
        }
    }
    if let Some(found) = OF_BATCHES.captures(text) {
        let (number, unit) = (found.name("number")?, found.name("unit")?.as_str());
        return plain(number, number.start(), format!(r"\b(?<STEP>\d+)\s*/\s*\d+ *{unit}"));
    }
    if let Some(found) = BAR.captures(text) {
        return bar_step(text, &found);
    }
    if let Some(found) = PAIR.captures(text) {
        let epoch = found.name("epoch")?.as_str().parse().ok();
        let pattern = r"^\s*\[\s*(?<epoch>\d+),\s*(?<STEP>\d+)\]".to_owned();
        return Some(Step { epoch, ..plain(found.name("number")?, 0, pattern)? });
    }
    if let Some(found) = BRACKETS.captures_iter(text).find(|found| !is_epochs(text, found)) {
        let (all, share) = (found.get(0)?, found.name("share"));
        let close = literal(&text[all.end() - 1..all.end()]);
        let pattern = format!(
            r"{}\s*(?<STEP>\d+)\s*/\s*\d+{}\s*{close}",
            literal(&text[all.start()..=all.start()]),
            if share.is_some() { r"\s*\(\s*[\d.]+%\s*\)" } else { "" },
        );
        let step = plain(found.name("number")?, all.start(), pattern)?;
        let fragment = Fragment { end: all.end(), ..step.fragment };
        return Some(Step { has_share: share.is_some(), fragment, ..step });
    }
    if let Some(found) = BARE.captures_iter(text).find(|found| !is_epochs(text, found)) {
        let number = found.name("number")?;
        return plain(number, number.start(), r"\b(?<STEP>\d+)/\d+".to_owned());
    }
    let number = FIRST.captures(text)?.name("number")?;
    plain(number, 0, r"^\s*(?<STEP>\d+)".to_owned())
}

/// The first number that follows one of the words, and where the word begins.
fn after<'a>(words: &Regex, text: &'a str) -> Option<(Match<'a>, usize)> {
    words.captures_iter(text).find_map(|found| {
        let (all, number) = (found.get(0)?, found.name("number")?);
        let before = text[..all.start()].chars().next_back();
        let mut rest = text[number.end()..].chars();
        let follows = (rest.next(), rest.next());
        // Such as ms/batch 17.94, max_steps=100, and 4096tok.
        let is_part = before.is_some_and(|c| c.is_alphanumeric() || "_/.-".contains(c));
        let is_whole = match follows {
            (Some('.'), Some(c)) => !c.is_ascii_digit(),
            (Some(c), _) => !c.is_alphanumeric() && c != '%',
            (None, _) => true,
        };
        (!is_part && is_whole).then_some((number, all.start()))
    })
}

/// The step of a progress bar, with the description before it.
fn bar_step(text: &str, found: &Captures<'_>) -> Option<Step> {
    let (number, own) = match (found.name("number"), found.name("free")) {
        (Some(number), _) => (number, r"\|\s*(?<STEP>\d+)/\d+ \["),
        (None, Some(free)) => (free, r"\b(?<STEP>\d+)it \["),
        (None, None) => return None,
    };
    let described = PERCENT.find(text).map_or(number.start(), |percent| percent.start());
    let description = &text[..described.min(number.start())];
    let is_plain = description.ends_with(':') && !LOSS.is_match(description);
    let mut step = Step {
        number: number.as_str().parse().ok()?,
        fragment: Fragment { start: found.get(0)?.start(), end: number.end(), pattern: own.to_owned() },
        epoch: None,
        has_share: false,
    };
    if is_plain {
        let mut pattern = literal(description);
        if let Some((epoch, start)) = after(&EPOCH, description) {
            step.epoch = epoch.as_str().parse().ok();
            let (before, rest) = (&description[..start], &description[epoch.end()..]);
            let word = literal(&description[start..epoch.start()]);
            pattern = format!(r"{}{word}(?<epoch>\d+){}", literal(before), literal(rest));
        }
        step.fragment.start = 0;
        step.fragment.pattern = format!(r"{pattern}.*?{own}");
    }
    Some(step)
}

/// Whether the numbers are those of epochs: `Epoch [1/5]`.
fn is_epochs(text: &str, found: &Captures<'_>) -> bool {
    let start = found.name("number").map_or(0, |number| number.start());
    let before = text[..start].trim_end_matches(|c: char| !c.is_alphanumeric());
    let word = before.len().saturating_sub("epochs".len());
    before.get(word..).is_some_and(|end| end.to_ascii_lowercase().contains("epoch"))
}

/// The epoch that is named before a step.
fn epoch_before(text: &str, step: usize) -> Option<(u64, Fragment)> {
    let (number, start) = after(&EPOCH, &text[..step])?;
    let pattern = format!(r"{}(?<epoch>\d+)", literal(&text[start..number.start()]));
    Some((number.as_str().parse().ok()?, Fragment { start, end: number.end(), pattern }))
}

/// The training loss of a line: one that is just called that, or else the first one of several.
fn loss(text: &str) -> Option<(f64, Fragment)> {
    let evaluation = EVALUATION.find(text).map_or(text.len(), |found| found.start());
    let all = LOSS.captures_iter(text).filter(|found| found.name("word").is_some_and(|word| word.start() < evaluation));
    let own = |found: &Captures<'_>| {
        let word = found["word"].to_ascii_lowercase().replace(['_', '/', '.', '-'], " ");
        !["loss", "train loss", "training loss"].contains(&word.as_str())
    };
    let found = all.min_by_key(own)?;
    let (word, number) = (found.name("word")?, found.name("number")?);
    let pattern = format!("{}{}", literal(&text[word.start()..number.start()]), group());
    Some((number.as_str().parse().ok()?, Fragment { start: word.start(), end: number.end(), pattern }))
}

fn group() -> String {
    format!("(?<loss>{NUMBER})")
}

/// The form of a validation loss.
pub(super) struct Validation {
    pub(super) pattern: String,
    /// Whether it is called that of a test.
    pub(super) is_test: bool,
}

/// The form of the validation loss of a line, if there is one.
pub(super) fn validation(text: &str) -> Option<Validation> {
    let found = VALIDATION.captures(text)?;
    let (all, of, number) = (found.get(0)?, found.name("of")?, found.name("number")?);
    let pattern = format!("{}{}", literal(&text[all.start()..number.start()]), group());
    Some(Validation { pattern, is_test: of.as_str().eq_ignore_ascii_case("test") })
}

/// Whether a line is a dictionary of Hugging Face's Trainer that begins with this metric.
pub(super) fn is_trainers(text: &str, metric: &str) -> bool {
    text.contains(&format!("{{'{metric}': ")) && text.contains("'epoch': ")
}

/// The step of a progress bar.
pub(super) fn bar(text: &str) -> Option<u64> {
    BAR.captures(text)?.name("number")?.as_str().parse().ok()
}

/// A regular expression of a text that differs in its numbers and in the length of its spaces only.
fn literal(text: &str) -> String {
    let mut pattern = String::new();
    if text.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
        pattern.push_str(r"\b");
    }
    let kind = |c: char| {
        if c.is_whitespace() {
            Kind::Space
        } else if c.is_ascii_digit() {
            Kind::Digit
        } else {
            Kind::Other
        }
    };
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| kind(c) != kind(first)).unwrap_or(rest.len());
        match kind(first) {
            Kind::Space => pattern.push_str(r"\s*"),
            Kind::Digit => pattern.push_str(r"\d+"),
            Kind::Other => {
                let _ = write!(pattern, "{}", regex::escape(&rest[..end]));
            }
        }
        rest = &rest[end..];
    }
    pattern
}

#[derive(PartialEq)]
enum Kind {
    Space,
    Digit,
    Other,
}
