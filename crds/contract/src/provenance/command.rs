//! Command lines without what may be secret.

use std::borrow::Cow;

/// A command as one text, in which `***` stands for the values of options and variables whose names contain `token`,
/// `key`, `secret` or `password`, also in a shell's script. References to variables stay.
///
/// ```
/// use pawl_contract::provenance::redacted;
/// let command = ["train", "--lr=0.1", "--token=hf_17", "--api-key", "$(KEY)"].map(str::to_owned);
/// assert_eq!(redacted(&command), "train --lr=0.1 --token=*** --api-key $(KEY)");
/// ```
pub fn redacted(command: &[String]) -> String {
    // Whether the value of an option comes next.
    let mut expected = false;
    let mut text: Vec<Cow<'_, str>> = Vec::new();
    for argument in command {
        // Options and their values are whole arguments. Others may be scripts.
        let whole = expected || argument.starts_with('-');
        let words: Vec<&str> = if whole { vec![argument.as_str()] } else { argument.split_whitespace().collect() };
        let mut open: Option<char> = None;
        for word in words {
            if let Some(quote) = open {
                open = open.filter(|_| !word.contains(quote));
                continue;
            }
            let found = secret(word, expected);
            // The line of a script goes on after a backslash.
            expected = found.is_none() && (is_secret_option(word) || (expected && word == "\\"));
            text.push(match found {
                Some((name, value)) if !is_reference(value) => {
                    open = left_open(name, value);
                    Cow::Owned(format!("{name}***"))
                }
                Some(_) | None => Cow::Borrowed(word),
            });
        }
    }
    text.join(" ")
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

/// Where the first part of a name ends that says that its value may be secret.
fn secret_name(word: &str) -> Option<usize> {
    // Its characters stay where they are.
    let word = word.to_ascii_lowercase();
    ["token", "key", "secret", "password"].iter().filter_map(|part| Some(word.find(part)? + part.len())).min()
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
}
