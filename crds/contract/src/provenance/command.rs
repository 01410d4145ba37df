//! Command lines without what may be secret.

use std::borrow::Cow;

/// A command as one text, in which `***` stands for the values of options and variables with the name of a secret: one
/// of whose words is a token, a password, a secret or a key. That holds in a shell's script, too. References to
/// variables stay, and so do tokens of a text, such as their number, and keys of data, such as that of the labels.
///
/// ```
/// use pawl_contract::provenance::redacted;
/// let command = ["train", "--max-tokens=512", "--token=hf_17", "--api-key", "$(KEY)"].map(str::to_owned);
/// assert_eq!(redacted(&command), "train --max-tokens=512 --token=*** --api-key $(KEY)");
/// ```
pub fn redacted(command: &[String]) -> String {
    shown(command).into_iter().flatten().map(|word| word.text).collect::<Vec<_>>().join(" ")
}

/// As [`redacted`], argument by argument: one without secrets stays as it is, and another one keeps its lines.
pub fn without_secrets(command: &[String]) -> Vec<String> {
    let word = |(argument, shown): (&String, Vec<Word<'_>>)| {
        let is_whole = shown.iter().all(|word| matches!(word.text, Cow::Borrowed(_)));
        if is_whole { argument.clone() } else { shown.iter().flat_map(|word| [word.space, &*word.text]).collect() }
    };
    command.iter().zip(shown(command)).map(word).collect()
}

/// A word that may be shown.
struct Word<'a> {
    /// What is between it and the word before it.
    space: &'a str,
    text: Cow<'a, str>,
}

/// The words of each argument that may be shown.
fn shown(command: &[String]) -> Vec<Vec<Word<'_>>> {
    // Whether the value of an option comes next.
    let mut expected = false;
    command.iter().map(|argument| words_shown(argument, &mut expected)).collect()
}

/// The words of an argument that may be shown. `expected`: whether the value of a secret option comes next.
fn words_shown<'a>(argument: &'a str, expected: &mut bool) -> Vec<Word<'a>> {
    // Options and their values are whole arguments. Others may be scripts.
    let whole = *expected || argument.starts_with('-');
    let words = if whole { vec![("", argument)] } else { spaced(argument) };
    let mut shown = Vec::new();
    let mut open: Option<char> = None;
    for (space, word) in words {
        if let Some(quote) = open {
            open = open.filter(|_| !word.contains(quote));
            continue;
        }
        let found = secret(word, *expected);
        // The line of a script goes on after a backslash.
        *expected = found.is_none() && (is_secret_option(word) || (*expected && word == "\\"));
        let text = match found {
            Some((name, value)) if !is_reference(value) => {
                open = left_open(name, value);
                Cow::Owned(format!("{name}***"))
            }
            Some(_) | None => Cow::Borrowed(word),
        };
        shown.push(Word { space, text });
    }
    shown
}

/// The words of a script, each with the white space before it.
fn spaced(mut script: &str) -> Vec<(&str, &str)> {
    let mut words = Vec::new();
    while let Some(start) = script.find(|c: char| !c.is_whitespace()) {
        let (space, rest) = script.split_at(start);
        let (word, rest) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        words.push((space, word));
        script = rest;
    }
    words
}

/// What begins and ends a text of a shell.
const QUOTES: [char; 2] = ['"', '\''];

/// What is before a value that may be secret, and the value. `expected`: an option before it has one.
fn secret(word: &str, expected: bool) -> Option<(&str, &str)> {
    if expected && word != "\\" && !word.starts_with('-') {
        return Some(("", word));
    }
    let named = secret_name(word)?;
    let at = named + word[named..].find('=')?;
    Some(word.split_at(at + 1))
}

fn is_secret_option(word: &str) -> bool {
    word.trim_start_matches(QUOTES).starts_with('-') && !word.contains('=') && secret_name(word).is_some()
}

/// Endings of the words that name a secret, whatever is before them, as in `PGPASSWORD`.
const SECRETS: [&str; 6] = ["password", "passwords", "passwd", "passphrase", "secret", "secrets"];
/// What stands before `key` in a setting about data or a model, and what stands behind it: other keys are secret.
const OF_DATA: [&str; 2] = [
    "column dict dim feature field foreign group image index input join label loss max metric min monitor num output \
     partition primary query score sort target text",
    "bias dim dims heads len length norm padding proj size",
];
/// Words that end in `key`, and are none.
const NO_KEYS: &str = "donkey hockey hotkey jockey monkey turkey whiskey";
/// What stands before `token` in a setting about the tokens of a text, and what stands behind it.
const OF_A_TEXT: [&str; 2] = [
    "bos cls eos mask max min num pad per sep special unk",
    "budget count dim dropout id ids len length level per type",
];
/// What stands before `tokens` besides, where they are counted.
const COUNTED: &str = "batch eval new seq stop target total train warmup";

/// Where the first name ends that says that its value may be secret.
fn secret_name(word: &str) -> Option<usize> {
    let between = |c: char| !c.is_alphanumeric() && !"-_.".contains(c);
    let mut end = 0;
    word.split_inclusive(between).find_map(|name| {
        end += name.len();
        is_secret(name).then(|| end - name.len() + name.trim_end_matches(between).len())
    })
}

/// Whether a name, such as `--api-key` or `hfToken`, is that of a secret.
fn is_secret(name: &str) -> bool {
    let words = words(name);
    let listed = |list: &str, word: &str| list.split(' ').any(|listed| listed == word);
    words.iter().enumerate().any(|(place, word)| {
        let before = place.checked_sub(1).map_or("", |before| &words[before]);
        let after = words.get(place + 1).map_or("", String::as_str);
        // As in `HF_TOKEN2`.
        let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let is_key = ["key", "keys"].iter().filter_map(|key| word.strip_suffix(key)).any(|prefix| {
            let of = if prefix.is_empty() { before } else { prefix };
            !listed(OF_DATA[0], of) && !listed(OF_DATA[1], after) && !listed(NO_KEYS, word)
        });
        let of_a_text = listed(OF_A_TEXT[0], before) || listed(OF_A_TEXT[1], after);
        let is_counted = of_a_text || listed(COUNTED, before);
        let is_token = word.ends_with("token") && !of_a_text || word.ends_with("tokens") && !is_counted;
        is_key || is_token || SECRETS.iter().any(|secret| word.ends_with(secret))
    })
}

/// The words of a name in lower case: `hf-token`, `HF_TOKEN` and `hfToken` have the same ones.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = '-';
    for c in name.chars() {
        if !c.is_alphanumeric() || previous.is_lowercase() && c.is_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        previous = c;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a value is a variable's: `$NAME`, `${NAME}` or `$(NAME)`.
fn is_reference(value: &str) -> bool {
    let name = value.trim_matches(QUOTES).strip_prefix('$');
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.(){}".contains(c)))
}

/// The quote that the words after this value end.
fn left_open(name: &str, value: &str) -> Option<char> {
    let whole = name.chars().next().filter(|first| QUOTES.contains(first));
    let own = value.chars().next().filter(|first| QUOTES.contains(first));
    match (whole, own) {
        (Some(quote), _) => (!value.contains(quote)).then_some(quote),
        (None, Some(quote)) => (value.matches(quote).count() == 1).then_some(quote),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets_are_known_by_their_words() {
        let secret = "--token --hf_token HF_TOKEN hfToken --id-token --access-tokens GITHUB_TOKEN_PROD --key --api-key \
                      --apikey WANDB_API_KEY AWS_SECRET_ACCESS_KEY PGPASSWORD --db.password client-secret --ssh-keys \
                      --aws-key --s3-key ANTHROPIC_KEY --master-key HF_TOKEN2 --password2 --tokens --key1 --hf-tokens \
                      --wandbkey --data-key";
        for name in secret.split(' ') {
            assert!(is_secret(name), "{name}");
        }
        let shown = "--max-tokens --tokenizer --max_new_tokens maxTokens data.tokenizer --tokens-per-batch \
                     --pad-token-id --eos-token --token-dropout --keyframe --sort-key --key-dim --num-keys --monkey \
                     --secretary --lr train --monitor-key --primary_key labelKey --image-key text.key \
                     --num_key_value_heads --train-tokens --total_tokens --sortkey";
        for name in shown.split(' ') {
            assert!(!is_secret(name), "{name}");
        }
        let command = ["train", "--max-tokens", "512", "--tokenizer=gpt2", "--token", "x17"].map(str::to_owned);
        assert_eq!(redacted(&command), "train --max-tokens 512 --tokenizer=gpt2 --token ***");
    }

    #[test]
    fn values_that_may_be_secret_are_not_in_a_command() {
        let of = |command: &[&str]| redacted(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["train", "--lr", "0.1", "--data=a=b", "-k", "1"]), "train --lr 0.1 --data=a=b -k 1");
        assert_eq!(of(&["train", "--token=x17", "--HF_TOKEN", "x17", "--lr"]), "train --token=*** --HF_TOKEN *** --lr");
        assert_eq!(of(&["train", "--password", "x17 x17", "--secret"]), "train --password *** --secret");
        assert_eq!(of(&["train", "--password=x17 x17", "1"]), "train --password=*** 1");
        assert_eq!(of(&["train", "--use-key", "--lr=1"]), "train --use-key --lr=1");
        assert_eq!(of(&["train", "--url=https://a/?token=x17"]), "train --url=https://a/?token=***");
        assert_eq!(of(&["sh", "-c", "WANDB_API_KEY=x17 train --lr 1"]), "sh -c WANDB_API_KEY=*** train --lr 1");
        assert_eq!(of(&["sh", "-c", "train --api-key \\\n x17 --lr 1"]), "sh -c train --api-key \\ *** --lr 1");
        assert_eq!(of(&["sh", "-c", "train --password \"x17 x17\" --lr 1"]), "sh -c train --password *** --lr 1");
        assert_eq!(of(&["sh", "-c", "train '--token=x17 x17' --lr 1"]), "sh -c train '--token=*** --lr 1");
        assert_eq!(of(&["sh", "-c", "train --token=\"x17\" don't"]), "sh -c train --token=*** don't");
        assert_eq!(of(&["train", "--key=$(TOKEN)", "--key", "${KEY}"]), "train --key=$(TOKEN) --key ${KEY}");
        assert_eq!(of(&["sh", "-c", "train --key \"$KEY\" 1"]), "sh -c train --key \"$KEY\" 1");
        assert_eq!(of(&["train", "--key=${KEY:-x17}"]), "train --key=***");
    }

    #[test]
    fn words_without_secrets_stay_as_they_are() {
        let command = ["env", "TOKEN=x17", "train", "--out", "my  runs", "a  b", "--api-key", "x17"].map(str::to_owned);
        let shown = ["env", "TOKEN=***", "train", "--out", "my  runs", "a  b", "--api-key", "***"];
        assert_eq!(without_secrets(&command), shown);
        let of = |script: &str| without_secrets(&["sh", "-c", script].map(str::to_owned)).remove(2);
        assert_eq!(of("cd /a # then\nTOKEN=x17 train\n  --lr 1"), "cd /a # then\nTOKEN=*** train\n  --lr 1");
        assert_eq!(of("train --key \"x17\nx17\"\n\ttest\n"), "train --key ***\n\ttest");
        assert_eq!(of("train --lr 1\n"), "train --lr 1\n");
    }
}
