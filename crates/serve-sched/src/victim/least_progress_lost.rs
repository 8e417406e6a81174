//! Of the lowest class, the request with least to compute again is preempted.
//!
//! Rule: greatest `(class, -computed positions)`. Wastes the least work for each preemption, at a
//! price: a request that has just come back is the first to go again, so it may use up all of its
//! preemptions before it is left in peace.

use super::{Candidate, Victim};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Victim> = Named {
    name: "least-progress-lost",
    settings: &[],
    build: |_| Box::new(LeastProgressLost),
};

/// Of the lowest class, the request with the fewest computed positions is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeastProgressLost;

impl Victim for LeastProgressLost {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn rank(&self, candidate: &Candidate<'_>) -> [u64; 2] {
        let class = u64::from(candidate.request.class().rank());
        [class, u64::MAX - u64::from(candidate.computed)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::victim::tests::first_preempted;

    #[test]
    fn the_class_comes_before_the_progress_and_the_newest_of_equals_goes() {
        let running = [(0, 1, 2), (1, 2, 90), (1, 3, 40), (1, 4, 40)];
        assert_eq!(first_preempted(&LeastProgressLost, &running), 3);
    }
}
