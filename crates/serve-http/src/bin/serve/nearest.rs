//! The name that somebody probably meant.

/// How alike two names must be, from 0 to 1, for one to be taken for the other: what clap asks of flags.
const ALIKE: f64 = 0.7;

/// The one of `known` that is most like `name`, if one is at all.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |other: &str| strsim::jaro(name, other);
    let alike = known.into_iter().filter(|other| likeness(other) > ALIKE);
    alike.max_by(|one, other| likeness(one).total_cmp(&likeness(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name_and_a_stranger_none() {
        let known = ["max_batch", "queue_cap", "order"];
        assert_eq!(nearest("maxbatch", known), Some("max_batch"));
        assert_eq!(nearest("queue_capp", known), Some("queue_cap"));
        assert_eq!(nearest("zzz", known), None);
    }
}
