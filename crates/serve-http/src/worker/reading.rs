//! What the scheduler says of itself after a step, for those on the other side of the thread, and
//! what those before it have counted.

use serve_core::{Span, Time};
use serve_sched::kv::PoolStats;
use serve_sched::{ClassStats, Counters, Scheduler, Stats};

#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) stats: Stats,
    /// Requests a second that end; `None` while none has.
    drain_rate: Option<f64>,
    /// When a step ended last, or since when there is work.
    pub(super) progress_at: Time,
}

impl Reading {
    /// `past` is what the engines before this one have counted.
    pub(super) fn of(scheduler: &Scheduler, past: &Past, progress_at: Time) -> Self {
        Self {
            stats: past.and(scheduler.stats()),
            drain_rate: scheduler.pace().drain_rate(),
            progress_at,
        }
    }

    /// What is left of an engine that was lost: what it counted, and nothing that it held.
    pub(super) fn lost(last: &Self, past: &Past) -> Self {
        let blocks = PoolStats {
            free: last.stats.blocks.total,
            held: 0,
            cached: 0,
            ..last.stats.blocks
        };
        Self {
            stats: past.and(Stats {
                blocks,
                ..Stats::default()
            }),
            ..*last
        }
    }

    /// Whether a request is in the scheduler.
    pub(super) fn has_work(&self) -> bool {
        self.stats.waiting > 0 || self.stats.running > 0
    }

    /// How long the engine takes to end `requests`, if that is known.
    pub(super) fn time_to_drain(&self, requests: u32) -> Option<Span> {
        let rate = self.drain_rate?;
        Some(Span::from_secs_f64(f64::from(requests) / rate))
    }
}

/// What engines that are gone have counted, so that no request is forgotten with them.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    counters: Counters,
    classes: Vec<ClassStats>,
}

impl Past {
    /// The same after `requests` more came that no engine was left for.
    pub(super) fn with_failed(mut self, requests: usize) -> Self {
        self.counters.arrived += requests as u64;
        self.counters.failed += requests as u64;
        self
    }

    /// Everything up to an engine that was lost after `last`: what it held has failed.
    pub(super) fn ended_with(last: &Stats) -> Self {
        let lost = |counters: Counters, live: u32| Counters {
            failed: counters.failed + u64::from(live),
            ..counters
        };
        let class = |class: &ClassStats| ClassStats {
            waiting: 0,
            running: 0,
            counters: lost(class.counters, class.waiting + class.running),
            ..*class
        };
        Self {
            counters: lost(last.counters, last.waiting + last.running),
            classes: last.classes.iter().map(class).collect(),
        }
    }

    /// A reading of the present engine with the past added.
    fn and(&self, mut stats: Stats) -> Stats {
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
