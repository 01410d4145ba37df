//! Naming parts of a model by scope.

/// A pattern for scope paths: components joined by `/`, `*` for any characters within one component.
/// `blocks.*/attn` names the regions `blocks.0/attn`, `blocks.1/attn`, ..; each with all scopes below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    components: Vec<String>,
}

impl Pattern {
    /// A pattern.
    pub fn new(pattern: &str) -> Self {
        Self { components: pattern.split('/').map(str::to_owned).collect() }
    }

    /// The region `path` lies in: its beginning, as long as the pattern; `None` if it does not match.
    pub fn region<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut end = 0;
        let mut given = path.split('/');
        for (i, wanted) in self.components.iter().enumerate() {
            let component = given.next()?;
            if !matches(wanted, component) {
                return None;
            }
            end += component.len() + usize::from(i > 0);
        }
        path.get(..end)
    }
}

fn matches(wanted: &str, given: &str) -> bool {
    match wanted.split_once('*') {
        None => wanted == given,
        Some((head, tail)) => given
            .strip_prefix(head)
            .is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && matches(tail, &rest[i..]))),
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn a_pattern_names_regions() {
        let pattern = Pattern::new("blocks.*/attn");
        assert_eq!(pattern.region("blocks.3/attn/qkv"), Some("blocks.3/attn"));
        assert_eq!(pattern.region("blocks.3/attn"), Some("blocks.3/attn"));
        assert_eq!(pattern.region("blocks.3/mlp"), None);
        assert_eq!(pattern.region("blocks.3"), None);
        assert_eq!(Pattern::new("loss").region("loss/spectral"), Some("loss"));
        assert_eq!(Pattern::new("loss").region("losses"), None);
    }
}
