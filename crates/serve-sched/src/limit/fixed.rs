//! Always as many: for an engine whose capacity is known, and the control of every other limit.

use std::num::NonZeroU32;

use super::Concurrency;
use crate::settings::{Change, MAX_BATCH, Row};

/// Always as many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed(u32);

impl Fixed {
    /// `limit` requests; 0 counts as 1.
    pub const fn new(limit: u32) -> Self {
        Self(if limit == 0 { 1 } else { limit })
    }
}

impl Default for Fixed {
    /// Eight, which is where the others start.
    fn default() -> Self {
        Self::new(8)
    }
}

impl Concurrency for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn limit(&self) -> u32 {
        self.0
    }

    fn takes(&self, row: &Row) -> bool {
        row.name == MAX_BATCH.row.name
    }

    fn change(&mut self, change: &Change) {
        self.0 = change.value(&MAX_BATCH).map_or(self.0, NonZeroU32::get);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_asked_for_and_never_nothing() {
        assert_eq!(Fixed::new(7).limit(), 7);
        assert_eq!(Fixed::new(0).limit(), 1);
    }
}
