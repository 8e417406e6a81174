//! Which running request is preempted when KV runs out, or when a higher class waits?

mod least_progress_lost;
mod most_freed_for_least_lost;
mod newest_of_lowest_class;
mod over_share_first;

pub use least_progress_lost::LeastProgressLost;
pub use most_freed_for_least_lost::MostFreedForLeastLost;
pub use newest_of_lowest_class::NewestOfLowestClass;
pub use over_share_first::OverShareFirst;

use serve_core::Request;

use crate::settings::{Named, Row, Setting, Settings};

/// Which victim policy it is.
pub const VICTIM: Setting<&'static str> = Setting::name(
    "victim",
    "Who is preempted",
    "newest-of-lowest-class",
    || Named::names(VICTIMS),
);

/// Every victim policy, with its settings.
pub const VICTIMS: &[Named<dyn Victim>] = &[
    newest_of_lowest_class::POLICY,
    least_progress_lost::POLICY,
    most_freed_for_least_lost::POLICY,
    over_share_first::POLICY,
];

const PREEMPT_BY_CLASS: Setting<bool> = Setting::switch(
    "preempt_by_class",
    "Whether a waiting request has running ones of a lower class preempted",
    false,
);

const PREEMPTIONS_MAX: Setting<u32> = Setting::count(
    "preemptions_max",
    "How often one request is preempted at most",
    3,
);

/// The settings of [`Preemption`].
pub(crate) const PREEMPTION: &[&Row] = &[&PREEMPT_BY_CLASS.row, &PREEMPTIONS_MAX.row];

/// A choice among running requests of the one to preempt.
///
/// The mechanism sees to what must hold whatever the choice is: a request is preempted a bounded
/// number of times; for KV blocks it gives its place up to its own class or a higher one, to a
/// waiting request only if that is of a strictly higher class and came after it had joined; one that
/// had [aged](crate::order::Order::ages_at) when it joined gives it up to no class; and nobody gives
/// it up for nothing.
pub trait Victim: Send {
    /// The name in the journal.
    fn name(&self) -> &'static str;

    /// How readily a running request is preempted: the greatest goes, compared field by field; of equals,
    /// the one that arrived last.
    fn rank(&self, candidate: &Candidate<'_>) -> [u64; 2];
}

/// A running request as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The request.
    pub request: &'a Request,
    /// Its place in the order of arrival at the gate.
    pub sequence: u64,
    /// Positions that have been run and would have to be run again.
    pub computed: u32,
    /// Tokens that it may still generate.
    pub output_left: u32,
    /// Blocks that would become available.
    pub blocks: u32,
    /// Blocks that all running requests of its tenant hold, a block counted for each that holds it.
    pub tenant_blocks: u32,
}

/// When and how often requests are preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// How often one request is preempted at most. When it starts again after the last time it is
    /// given the blocks for its whole life, so that nothing can preempt it.
    pub times_max: u32,
    /// Whether a waiting request that finds no room preempts running ones of a strictly lower class.
    pub by_class: bool,
}

impl Default for Preemption {
    /// Three times at most, on KV pressure only.
    fn default() -> Self {
        Self::of(&Settings::default())
    }
}

impl Preemption {
    /// As the settings say.
    pub fn of(settings: &Settings) -> Self {
        Self {
            times_max: settings.get(&PREEMPTIONS_MAX),
            by_class: settings.get(&PREEMPT_BY_CLASS),
        }
    }
}

#[cfg(test)]
mod tests {
    use serve_core::{Class, RequestId, Time, TokenId};

    use super::*;

    /// Which of some `(class, sequence, computed)` is preempted first, as the mechanism compares.
    pub(super) fn first_preempted(victim: &dyn Victim, running: &[(u8, u64, u32)]) -> usize {
        let rank = |&(class, sequence, computed): &(u8, u64, u32)| {
            let request = Request::new(RequestId::new(1), Time::ZERO, [TokenId::new(1)], 1)
                .unwrap()
                .with_class(Class::new(class));
            let candidate = Candidate {
                request: &request,
                sequence,
                computed,
                output_left: 1,
                blocks: 1,
                tenant_blocks: 1,
            };
            (victim.rank(&candidate), sequence)
        };
        let ranked = running.iter().map(rank).zip(0..);
        ranked.max().map(|(_, index)| index).unwrap()
    }
}
