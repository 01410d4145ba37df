//! Accuracy of predicted codes of dialogues: sums over documents, and the metrics computed from them.

use std::ops::Range;

/// Sums over all codes: documents, and those whose code was among the 1, 3 and 5 most likely tokens.
const SHARED: usize = 4;
const BEST: [(&str, f64); 3] = [("top1", 1.0), ("top3", 3.0), ("top5", 5.0)];
/// Sums per code: true positives, predicted documents, actual documents.
const OF_A_CODE: usize = 3;

/// The codes.
#[derive(Clone, Debug)]
pub struct Diagnoses {
    /// Their ids.
    pub codes: Range<u32>,
}

impl Diagnoses {
    /// Length of the vector of sums.
    pub fn sums(&self) -> usize {
        SHARED + OF_A_CODE * self.codes.len()
    }

    /// Adds a document of `code`: `rank` tokens were more likely than the code, and `likeliest` was the most likely
    /// one.
    pub fn add(&self, code: u32, rank: f64, likeliest: u32, sums: &mut [f64]) {
        sums[0] += 1.0;
        for (sum, (_, k)) in sums[1..].iter_mut().zip(BEST) {
            *sum += f64::from(u8::from(rank < k));
        }
        let mut count = |id: u32, which: usize| {
            // A predicted token that is not a code counts as an error of the actual code only.
            if self.codes.contains(&id) {
                sums[SHARED + OF_A_CODE * (id - self.codes.start) as usize + which] += 1.0;
            }
        };
        if likeliest == code {
            count(code, 0);
        }
        count(likeliest, 1);
        count(code, 2);
    }

    /// `top1`, `top3`, `top5`: fractions of the documents; `macroF1`: the mean F1 over the codes that any document has
    /// or was predicted to have.
    pub fn metrics(&self, sums: &[f64]) -> Vec<(String, f64)> {
        let (shared, of_codes) = sums.split_at(SHARED);
        let f1 = of_codes.as_chunks::<OF_A_CODE>().0.iter().filter(|[_, told, are]| told + are > 0.0);
        let (sum, codes) =
            f1.fold((0.0, 0.0), |(sum, codes), [right, told, are]| (sum + 2.0 * right / (told + are), codes + 1.0));
        let best = BEST.iter().zip(&shared[1..]).map(|((name, _), sum)| ((*name).to_owned(), sum / shared[0]));
        best.chain([("macroF1".to_owned(), sum / codes)]).collect()
    }
}
