//! By how much times turn out longer than they were predicted: a high percentile, as a promise to each has to be
//! made, not one to half of them.
//!
//! Under overload everybody is admitted exactly at the limit of what is predicted to be in time, so a
//! prediction that is right in the mean makes half of them late, if only by a little.

/// The last predictions that came to their test, and the factor that would have been enough for nearly all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ratios {
    ratios: Vec<f64>,
    next: usize,
    first: f64,
    factor: f64,
}

/// Fewer forget what a bad hour looks like, more are slow to follow a change.
const KEPT: usize = 256;

/// The share of times that are to be no longer than promised.
const PERCENT: usize = 99;

/// How many new ones make it worth looking again.
const LOOK_EVERY: usize = 16;

/// What a promise is multiplied by: never less than the first, as a prediction that was too long at first would let
/// too many in, and one that is late by a thousandth is late; never more than the last.
const FACTORS: (f64, f64) = (1.02, 4.0);

impl Ratios {
    /// With `first` for the ratio of those that have not been.
    pub(super) const fn new(first: f64) -> Self {
        Self {
            ratios: Vec::new(),
            next: 0,
            first,
            factor: first,
        }
    }

    /// Times are multiplied by this.
    pub(super) fn factor(&self) -> f64 {
        self.factor
    }

    /// A time was `ratio` times as long as predicted.
    pub(super) fn add(&mut self, ratio: f64) {
        if self.ratios.is_empty() {
            self.ratios.resize(KEPT, self.first);
        }
        self.ratios[self.next] = ratio;
        self.next = (self.next + 1) % KEPT;
        if self.next.is_multiple_of(LOOK_EVERY) {
            let mut sorted = self.ratios.clone();
            let index = (KEPT - 1) * PERCENT / 100;
            let (_, &mut ratio, _) = sorted.select_nth_unstable_by(index, f64::total_cmp);
            self.factor = ratio.clamp(FACTORS.0, FACTORS.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_enough_for_nearly_all_and_forgets() {
        let mut ratios = Ratios::new(1.3);
        (0..200).for_each(|_| ratios.add(0.9));
        assert_eq!(ratios.factor(), 1.3, "too few to say");
        (0..1_000).for_each(|n| ratios.add(if n % 50 == 0 { 1.5 } else { 0.9 }));
        assert_eq!(
            ratios.factor(),
            1.5,
            "one in fifty is more than one in a hundred"
        );
        (0..1_000).for_each(|n| ratios.add(if n % 200 == 0 { 2.5 } else { 0.9 }));
        assert_eq!(ratios.factor(), FACTORS.0, "one in two hundred is not");
        (0..300).for_each(|_| ratios.add(100.0));
        assert_eq!(ratios.factor(), FACTORS.1);
    }
}
