//! The newest request of the lowest class is preempted.
//!
//! Rule: greatest `(class, arrival)`. The oldest of a class is never preempted for a newer one, so among
//! equals somebody always goes on to the end.

use super::{Candidate, Victim};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Victim> = Named {
    name: "newest-of-lowest-class",
    settings: &[],
    build: |_| Box::new(NewestOfLowestClass),
};

/// The newest request of the lowest class is preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewestOfLowestClass;

impl Victim for NewestOfLowestClass {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn rank(&self, candidate: &Candidate<'_>) -> [u64; 2] {
        [
            u64::from(candidate.request.class().rank()),
            candidate.sequence,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::victim::tests::first_preempted;

    #[test]
    fn the_class_comes_before_the_age() {
        let running = [(0, 9, 5), (1, 2, 5), (1, 3, 5), (0, 10, 5)];
        assert_eq!(first_preempted(&NewestOfLowestClass, &running), 2);
    }
}
