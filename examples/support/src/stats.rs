//! One number for many spans.

use serve_core::Span;

/// The `percent`-th percentile by nearest rank: the smallest span that at least so many percent of
/// all do not exceed. Zero if there are none.
pub fn percentile(percent: u32, spans: impl IntoIterator<Item = Span>) -> Span {
    let mut spans: Vec<Span> = spans.into_iter().collect();
    spans.sort_unstable();
    let rank = (spans.len() * percent as usize).div_ceil(100);
    spans.get(rank.max(1) - 1).copied().unwrap_or_default()
}

/// The mean; zero if there are none.
pub fn mean(spans: impl IntoIterator<Item = Span>) -> Span {
    let spans: Vec<Span> = spans.into_iter().collect();
    let many = spans.len().max(1) as u64;
    spans.into_iter().sum::<Span>() / many
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_spans() {
        let spans = || (1..=200).map(Span::from_millis);
        assert_eq!(percentile(50, spans()), Span::from_millis(100));
        assert_eq!(percentile(99, spans()), Span::from_millis(198));
        assert_eq!(percentile(100, spans()), Span::from_millis(200));
        assert_eq!(percentile(50, []), Span::ZERO);
    }

    #[test]
    fn a_mean_is_the_sum_shared_out() {
        assert_eq!(mean([1, 2, 6].map(Span::from_millis)), Span::from_millis(3));
        assert_eq!(mean([]), Span::ZERO);
    }
}
