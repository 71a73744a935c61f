//! "Did you mean": the nearest known word to a misspelt one. Pure.

/// The word nearest to `typed`, if it is near enough: at most a third of its letters wrong, or a beginning of it.
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let near = |word: &&'a str| {
        let lower = word.to_lowercase();
        let begins = typed.len() >= 2 && lower.starts_with(&typed);
        let wrong = distance(&typed, &lower);
        (begins || wrong <= typed.chars().count().max(lower.chars().count()).div_ceil(3)).then_some((!begins, wrong))
    };
    known.into_iter().filter_map(|word| near(&word).map(|rank| (rank, word))).min().map(|(_, word)| word)
}

/// Edits from `a` to `b`: letters inserted, deleted, replaced, or swapped with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word() {
        let known = ["proxy", "check", "status", "request", "wait", "version", "completion", "help"];
        for (typed, near) in [
            ("porxy", Some("proxy")),
            ("proxi", Some("proxy")),
            ("Status", Some("status")),
            ("stat", Some("status")),
            ("req", Some("request")),
            ("wiat", Some("wait")),
            ("complete", Some("completion")),
            ("bogus", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, known), near, "{typed}");
        }
    }

    #[test]
    fn swapped_letters_are_one_edit() {
        assert_eq!(distance("wiat", "wait"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
