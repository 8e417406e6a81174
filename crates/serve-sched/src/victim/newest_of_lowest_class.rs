//! The newest request of the lowest class yields.
//!
//! Rule: greatest `(class, arrival)`. The oldest of a class never yields to a newer one, so among
//! equals somebody always goes on to the end.

use super::{Candidate, Victim};

/// The newest request of the lowest class yields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewestOfLowestClass;

impl Victim for NewestOfLowestClass {
    fn name(&self) -> &'static str {
        "newest-of-lowest-class"
    }

    fn yields(&self, candidate: &Candidate<'_>) -> [u64; 2] {
        [
            u64::from(candidate.request.class().rank()),
            candidate.sequence,
        ]
    }
}
