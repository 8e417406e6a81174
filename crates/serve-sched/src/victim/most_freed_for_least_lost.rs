//! Of the lowest class, the request goes that frees most blocks for what it loses.
//!
//! Rule: greatest `(class, blocks freed x left / (lost + left))`, where lost are the positions that
//! would be run again and left the tokens that it may still generate. One large request makes room in
//! the place of several small ones, so fewer are interrupted, and one that is nearly done is spared: it
//! frees its blocks by itself soon.

use super::{Candidate, Victim};
use crate::settings::Named;

/// As its family lists it.
pub(super) const POLICY: Named<dyn Victim> = Named {
    name: "most-freed-for-least-lost",
    settings: &[],
    build: |_| Box::new(MostFreedForLeastLost),
};

/// Of the lowest class, the request that frees most blocks for what it loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MostFreedForLeastLost;

impl Victim for MostFreedForLeastLost {
    fn name(&self) -> &'static str {
        POLICY.name
    }

    fn rank(&self, candidate: &Candidate<'_>) -> [u64; 2] {
        let left = u64::from(candidate.output_left);
        let life = (u64::from(candidate.computed) + left).max(1);
        // 2^20 keeps the fraction of a block.
        let freed = (u64::from(candidate.blocks) << 20) / life;
        [
            u64::from(candidate.request.class().rank()),
            freed.saturating_mul(left),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Class, Request, RequestId, Time, TokenId};

    use super::*;

    fn rank(class: u8, computed: u32, output_left: u32, blocks: u32) -> [u64; 2] {
        let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1)
            .unwrap()
            .with_class(Class::new(class));
        MostFreedForLeastLost.rank(&Candidate {
            request: &request,
            sequence: 0,
            computed,
            output_left,
            blocks,
            tenant_blocks: blocks,
        })
    }

    #[test]
    fn the_class_comes_first_then_what_is_freed_and_the_nearly_done_are_spared() {
        assert!(rank(0, 900, 900, 60) < rank(1, 10, 1, 1));
        assert!(rank(1, 100, 100, 7) < rank(1, 200, 200, 13));
        assert!(rank(1, 900, 10, 57) < rank(1, 100, 100, 7));
        assert!(rank(1, 300, 100, 19) < rank(1, 100, 300, 19));
        assert_eq!(rank(1, u32::MAX, u32::MAX, 0), [1, 0]);
        assert!(rank(1, 0, u32::MAX, u32::MAX)[1] > 0, "no overflow");
    }
}
