//! Dialogues of doctor and patient that end in a diagnosis, which only their symptoms determine.
//!
//! ```text
//! DOCTOR question.. PATIENT word SYMPTOM word.. DOCTOR .. DIAGNOSIS | code END
//!                          prompt                                   |  answer
//! ```
//!
//! Ids are assigned directly: [`END`], the other marks, one id for each code, symptoms, words. Most mentioned symptoms
//! are from the few of the code; the others are random. Questions and answers are templates. Codes are balanced, so the
//! chance level is 1 in their number.

use crate::random::Stream;
use crate::sampling::{choose, permutation};
use crate::slm::split::{Split, share};
use rayon::prelude::*;
use std::ops::Range;

/// The token at the end of a document.
pub const END: u32 = 0;
const DOCTOR: u32 = 1;
const PATIENT: u32 = 2;
/// The last token of a prompt.
const DIAGNOSIS: u32 = 3;
/// Ids of marks.
const MARKS: usize = 4;
/// Tokens of a document that follow its prompt: the code and the end.
pub const ANSWER: usize = 2;

/// Documents, codes and mean length at full scale: those of the data set that this models.
const DOCUMENTS: usize = 10_000;
const CODES: usize = 2_000;
const MEAN: usize = 1_167;
/// Minimum mean length: shorter documents would mention too few symptoms.
const LEAST_MEAN: usize = 24;
/// Maximum number of ids of symptoms and of words.
const SYMPTOMS: usize = 512;
const WORDS: usize = 4_096;
/// Number of symptoms of a code.
const OF_A_CODE: u32 = 4;
/// Probability that a mentioned symptom is one of the code's.
const TRUE_MENTIONS: f64 = 0.7;
/// Number of templates of questions, and of answers.
const TEMPLATES: u64 = 32;
/// Seed of symptoms and templates, which are the same for all dialogues.
const RULE_SEED: u64 = 1234;

/// A set of dialogues: their number, lengths and order. Tokens are generated on demand.
#[derive(Debug)]
pub struct Dialogues {
    seed: u64,
    codes: usize,
    symptoms: usize,
    words: usize,
    /// Tokens of each.
    lengths: Vec<usize>,
    /// Numbers of documents; a split is a part of it.
    order: Vec<u32>,
}

impl Dialogues {
    /// Dialogues of at most `tokens` tokens in total, in ids below `vocabulary`. Below a full set (11.7 million),
    /// number and mean length of the documents shrink equally, each by the square root; there is one code per five
    /// documents, and per four ids.
    pub fn new(tokens: usize, vocabulary: usize, seed: u64) -> Self {
        let scale = (tokens as f64 / (DOCUMENTS * MEAN) as f64).sqrt().min(1.0);
        let mean = ((MEAN as f64 * scale).round() as usize).max(LEAST_MEAN);
        let documents = (tokens / mean).min(DOCUMENTS);
        let codes = CODES.min(documents / 5).min(vocabulary / 4).max(2);
        let symptoms = SYMPTOMS.min(vocabulary / 4);
        let words = WORDS.min(vocabulary.saturating_sub(MARKS + codes + symptoms)).max(1);
        // Uniform around the mean, from half of it on: at full scale no document is longer than 1,750 tokens.
        let (draws, spread) = (Stream::named(seed, "slm.lengths"), mean / 2);
        let mut left = tokens;
        let lengths: Vec<usize> = (0..documents as u64)
            .map(|number| mean - spread + draws.below(number, 2 * spread as u64 + 1) as usize)
            .take_while(|&length| {
                let fits = length <= left;
                left = left.saturating_sub(length);
                fits
            })
            .collect();
        let order = permutation(Stream::named(seed, "slm.documents"), lengths.len() as u32);
        Self { seed, codes, symptoms, words, lengths, order }
    }

    /// Ids of codes.
    pub fn codes(&self) -> Range<u32> {
        MARKS as u32..(MARKS + self.codes) as u32
    }

    /// Lengths of the documents of a split, in its order.
    pub fn lengths(&self, split: Split) -> impl Iterator<Item = usize> {
        self.split(split).iter().map(|&number| self.lengths[number as usize])
    }

    /// Tokens of a split.
    pub fn tokens(&self, split: Split) -> Vec<u32> {
        self.split(split).par_iter().flat_map_iter(|&number| self.document(number)).collect()
    }

    /// Numbers of the documents of a split.
    fn split(&self, split: Split) -> &[u32] {
        &self.order[share(split, self.order.len())]
    }

    fn document(&self, number: u32) -> Vec<u32> {
        let length = self.lengths[number as usize];
        let code = number % self.codes as u32;
        let rules = Stream::named(RULE_SEED, "slm.symptoms").fork(u64::from(code));
        let own = choose(rules, self.symptoms as u32, OF_A_CODE);
        let draws = Stream::named(self.seed, "slm.dialogues").fork(u64::from(number));
        let mut tokens = Vec::with_capacity(length + 16);
        let mut turn = 0;
        while tokens.len() + ANSWER + 1 < length {
            tokens.push(DOCTOR);
            tokens.extend(self.template("slm.questions", 3, draws.below(turn, TEMPLATES)));
            tokens.push(PATIENT);
            let mut answer = self.template("slm.answers", 2, draws.below(turn + 1, TEMPLATES));
            tokens.extend(answer.next());
            let of = |count: u64| draws.below(turn + 3, count);
            let mentioned = match draws.uniform(turn + 2) < TRUE_MENTIONS {
                true => own[of(own.len() as u64) as usize],
                false => of(self.symptoms as u64) as u32,
            };
            tokens.push(self.codes().end + mentioned);
            tokens.extend(answer);
            turn += 4;
        }
        tokens.truncate(length - ANSWER - 1);
        tokens.extend([DIAGNOSIS, self.codes().start + code, END]);
        tokens
    }

    /// Words of template `number`: at least `shortest`, and up to three more.
    fn template(&self, kind: &str, shortest: u64, number: u64) -> impl Iterator<Item = u32> {
        let rules = Stream::named(RULE_SEED, kind).fork(number);
        let (first, words) = (self.codes().end + self.symptoms as u32, self.words as u64);
        (0..shortest + number % 4).map(move |at| first + rules.below(at, words) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slm::vocabulary::LEAST_DIALOGUE_VOCABULARY;
    use std::collections::BTreeSet;

    fn documents(tokens: &[u32]) -> Vec<&[u32]> {
        tokens.split_inclusive(|&token| token == END).collect()
    }

    #[test]
    fn a_full_set_has_the_statistics_of_the_one_it_stands_for() {
        let all = Dialogues::new(12_000_000, 32_000, 42);
        let mean = all.lengths.iter().sum::<usize>() as f64 / all.lengths.len() as f64;
        assert_eq!((all.lengths.len(), all.codes), (10_000, 2_000));
        assert!(
            (mean - 1_167.0).abs() < 15.0 && all.lengths.iter().all(|length| (580..2_048).contains(length)),
            "{mean}"
        );
        let counts = [Split::Train, Split::Validation].map(|split| all.split(split).len());
        assert_eq!(counts, [7_000, 1_500]);
        let train = all.tokens(Split::Train);
        let codes: BTreeSet<_> = train.iter().filter(|token| all.codes().contains(token)).collect();
        // Of a code's five documents all are in another split in 0.2 of 100 cases.
        assert!(codes.len() > 1_985, "{} codes are learnt", codes.len());
        assert_eq!(train.iter().filter(|&&token| token == END).count(), 7_000);
    }

    #[test]
    fn documents_are_dialogues_that_end_in_a_code() {
        for (tokens, vocabulary) in
            [(700, LEAST_DIALOGUE_VOCABULARY), (100_000, 64), (1_000_000, 512), (2_000_000, 32_000)]
        {
            let all = Dialogues::new(tokens, vocabulary, 7);
            assert!(all.lengths.iter().sum::<usize>() <= tokens);
            let mut seen = BTreeSet::new();
            for split in [Split::Train, Split::Validation] {
                let made = all.tokens(split);
                assert_eq!(made, Dialogues::new(tokens, vocabulary, 7).tokens(split), "the same again");
                assert_ne!(made, Dialogues::new(tokens, vocabulary, 8).tokens(split));
                assert_eq!(
                    documents(&made).iter().map(|d| d.len()).collect::<Vec<_>>(),
                    all.lengths(split).collect::<Vec<_>>()
                );
                assert!(made.iter().all(|&token| (token as usize) < vocabulary));
                for document in documents(&made) {
                    let [prompt @ .., DIAGNOSIS, code, END] = document else { panic!("{document:?}") };
                    assert!(prompt[0] == DOCTOR && all.codes().contains(code));
                    assert!(
                        prompt.iter().all(|token| *token != DIAGNOSIS && !all.codes().contains(token)),
                        "no code is given away"
                    );
                    seen.insert(*code);
                }
            }
            // The fifth of the documents is not looked at.
            assert!(seen.len() * 10 >= all.codes * 7, "{} of {}", seen.len(), all.codes);
        }
    }

    #[test]
    fn splits_share_no_document() {
        let all = Dialogues::new(300_000, 512, 42);
        let [train, validation] = [Split::Train, Split::Validation].map(|split| all.tokens(split));
        let known: BTreeSet<_> = documents(&train).into_iter().collect();
        assert!(documents(&validation).iter().all(|document| !known.contains(document)));
        let numbers: BTreeSet<_> =
            [Split::Train, Split::Validation].iter().flat_map(|&split| all.split(split)).collect();
        assert_eq!(numbers.len(), all.split(Split::Train).len() + all.split(Split::Validation).len());
    }

    #[test]
    fn most_mentions_are_symptoms_of_the_code() {
        let all = Dialogues::new(300_000, 512, 42);
        let symptoms = all.codes().end..all.codes().end + all.symptoms as u32;
        let (mut own, mut mentions) = (0, 0);
        for document in documents(&all.tokens(Split::Train)) {
            let code = document[document.len() - 2] - all.codes().start;
            let rules = Stream::named(RULE_SEED, "slm.symptoms").fork(u64::from(code));
            let of_code = choose(rules, all.symptoms as u32, OF_A_CODE);
            for symptom in document.iter().filter(|token| symptoms.contains(token)) {
                mentions += 1;
                own += usize::from(of_code.contains(&(symptom - symptoms.start)));
            }
        }
        let share = f64::from(own as u32) / f64::from(mentions);
        // Of the others a few are, too.
        assert!((0.69..0.73).contains(&share), "{share} of {mentions}");
    }
}
