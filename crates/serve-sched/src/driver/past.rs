//! What engines that are gone have counted, so that no request is forgotten with them.

use crate::kv::PoolStats;
use crate::{ClassStats, Counters, Stats};
use serve_core::Class;

#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    counters: Counters,
    classes: Vec<ClassStats>,
    /// The blocks of the last engine, of which nobody holds one now.
    blocks: PoolStats,
}

impl Past {
    /// Everything up to an engine that was lost with these figures: what had not ended has failed.
    pub(super) fn ended_with(last: &Stats) -> Self {
        let class = |class: &ClassStats| ClassStats {
            waiting: 0,
            running: 0,
            counters: all_ended(class.counters),
            ..*class
        };
        Self {
            counters: all_ended(last.counters),
            classes: last.classes.iter().map(class).collect(),
            blocks: PoolStats {
                free: last.blocks.total,
                held: 0,
                cached: 0,
                ..last.blocks
            },
        }
    }

    /// One more request has come, and there was no engine for it.
    pub(super) fn one_failed(&mut self, class: Class) {
        let counters = Counters {
            arrived: 1,
            failed: 1,
            ..Counters::default()
        };
        self.counters = sum(self.counters, counters);
        match self.classes.iter_mut().find(|of| of.class == class) {
            Some(of) => of.counters = sum(of.counters, counters),
            None => self.classes.push(ClassStats {
                class,
                waiting: 0,
                running: 0,
                counters,
            }),
        }
    }

    /// The figures while there is no engine.
    pub(super) fn alone(&self) -> Stats {
        self.and(Stats {
            blocks: self.blocks,
            ..Stats::default()
        })
    }

    /// The figures of the present engine with the past added.
    pub(super) fn and(&self, mut stats: Stats) -> Stats {
        stats.counters = sum(self.counters, stats.counters);
        for past in &self.classes {
            match stats.classes.iter_mut().find(|now| now.class == past.class) {
                Some(now) => now.counters = sum(past.counters, now.counters),
                None => stats.classes.push(*past),
            }
        }
        stats.classes.sort_unstable_by_key(|class| class.class);
        stats
    }
}

/// Counters of which whatever has arrived and not ended has failed.
fn all_ended(counters: Counters) -> Counters {
    let ended = counters.finished + counters.refused + counters.cancelled;
    Counters {
        failed: counters.arrived - ended,
        ..counters
    }
}

fn sum(a: Counters, b: Counters) -> Counters {
    Counters {
        arrived: a.arrived + b.arrived,
        refused: a.refused + b.refused,
        finished: a.finished + b.finished,
        cancelled: a.cancelled + b.cancelled,
        failed: a.failed + b.failed,
        preempted: a.preempted + b.preempted,
        steps: a.steps + b.steps,
        steps_failed: a.steps_failed + b.steps_failed,
        prefill_tokens: a.prefill_tokens + b.prefill_tokens,
        output_tokens: a.output_tokens + b.output_tokens,
        cached_tokens: a.cached_tokens + b.cached_tokens,
    }
}
