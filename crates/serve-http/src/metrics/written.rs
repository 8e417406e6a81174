//! The server's own families of metrics, in the order in which `GET /metrics` has them.

use std::sync::atomic::Ordering;

use serve_core::Span;
use serve_sched::Stats;

use super::class::{ClassMetrics, Finish};
use super::histogram::Histogram;
use super::tally::{End, REFUSAL_CODES};
use super::text::{Kind, Text};
use super::{Metrics, Served, Snapshot, process, upstream};

impl Metrics {
    pub(super) fn write(&self, text: &mut Text, snapshot: &Snapshot<'_>) {
        self.write_book(text);
        if let Some(served) = &snapshot.served {
            self.write_served(text, served);
        }
        if let Some(figures) = &snapshot.upstream {
            upstream::write(text, figures);
        }
        self.write_classes(text);
        // The steps of an engine behind the gate are its own.
        if snapshot.upstream.is_none() {
            self.write_steps(text);
        }
        self.write_edge(text, snapshot);
        let mut build = text.family(Kind::Gauge, "serve_build_info", "What this binary is");
        let labels = self.settings.build.iter();
        let labels: Vec<_> = labels
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        build.sample(&labels, 1);
        process::write(text, self.started);
    }

    fn write_book(&self, text: &mut Text) {
        let page = self.book.read();
        let classes = || {
            let named = page.classes.iter().enumerate();
            named.map(|(rank, tally)| (self.class_name(rank), tally))
        };
        let help = "Requests for text that have come";
        let mut family = text.family(Kind::Counter, "serve_requests_arrived_total", help);
        for (class, tally) in classes() {
            family.sample(&[("class", class)], tally.arrived);
        }
        let help = "Requests for text that have ended, by how";
        let mut family = text.family(Kind::Counter, "serve_requests_ended_total", help);
        for (class, tally) in classes() {
            for (end, count) in End::ALL.iter().zip(tally.ended) {
                family.sample(&[("class", class), ("end", end.name())], count);
            }
        }
        let help = "Requests for text that have come and not ended";
        let mut family = text.family(Kind::Gauge, "serve_requests_in_flight", help);
        for (class, tally) in classes() {
            family.sample(&[("class", class)], tally.in_flight);
        }
        let help = "Requests for text whose body is being read, so that their class is not known";
        text.gauge("serve_requests_reading", help, page.reading);
        let help = "Requests for text that were refused, by the code in the answer";
        let mut family = text.family(Kind::Counter, "serve_refusals_total", help);
        for (class, tally) in classes() {
            let mut refusals = tally.refusals.clone();
            for code in REFUSAL_CODES {
                refusals.entry(code).or_default();
            }
            for (code, count) in refusals {
                family.sample(&[("class", class), ("code", code)], count);
            }
        }
    }

    fn write_served(&self, text: &mut Text, served: &Served) {
        let Served { limits, stats, .. } = served;
        let mut family = text.family(
            Kind::Gauge,
            "serve_config_info",
            "What is served, and how much of it fits",
        );
        let numbers = [
            ("sequences_max", limits.sequences_max),
            ("step_tokens_max", limits.step_tokens_max),
            ("context_max", limits.context_max),
            ("block_size", limits.block_size),
            ("kv_blocks", limits.usable_blocks()),
        ];
        let numbers = numbers.map(|(name, number)| (name, number.to_string()));
        let numbers = numbers
            .iter()
            .map(|(name, number)| (*name, number.as_str()));
        let labels: Vec<_> = [("model", served.model.as_str())]
            .into_iter()
            .chain(numbers)
            .collect();
        family.sample(&labels, 1);

        let of = |rank: usize| {
            stats
                .classes
                .iter()
                .find(|of| usize::from(of.class.rank()) == rank)
        };
        let classes = || (0..self.classes.len()).map(|rank| (self.class_name(rank), of(rank)));
        let help = "Requests in the queue";
        let mut family = text.family(Kind::Gauge, "serve_requests_waiting", help);
        for (class, stats) in classes() {
            family.sample(&[("class", class)], stats.map_or(0, |stats| stats.waiting));
        }
        let help = "Requests in the batch";
        let mut family = text.family(Kind::Gauge, "serve_requests_running", help);
        for (class, stats) in classes() {
            family.sample(&[("class", class)], stats.map_or(0, |stats| stats.running));
        }
        let help = "How long the request that has waited longest for its first step has waited; 0 where none waits";
        let mut family = text.family(Kind::Gauge, "serve_oldest_wait_seconds", help);
        for rank in 0..self.classes.len() {
            let oldest = served
                .oldest
                .iter()
                .find(|(of, _)| usize::from(of.rank()) == rank);
            let wait = oldest.map_or(Span::ZERO, |(_, wait)| *wait);
            family.sample(&[("class", self.class_name(rank))], wait.as_secs_f64());
        }
        let help = "Times that a running request had to wait again";
        let mut family = text.family(Kind::Counter, "serve_preemptions_total", help);
        for (class, stats) in classes() {
            family.sample(
                &[("class", class)],
                stats.map_or(0, |stats| stats.counters.preempted),
            );
        }
        write_stats(text, stats);
    }

    fn write_classes(&self, text: &mut Text) {
        type Part = fn(&ClassMetrics) -> &Histogram;
        let parts: [(&str, &str, Part); 10] = [
            (
                "serve_queue_seconds",
                "Time from a request's arrival to its first step",
                |of| &of.queue,
            ),
            (
                "serve_ttft_seconds",
                "Time from a request's arrival to its first token",
                |of| &of.first_token,
            ),
            (
                "serve_itl_seconds",
                "Time between two tokens of an answer, for each token but the first",
                |of| &of.between_tokens,
            ),
            (
                "serve_tpot_seconds",
                "Mean time between two tokens of a whole answer, for each answer",
                |of| &of.per_token,
            ),
            (
                "serve_prefill_seconds",
                "Time from a request's first step to its first token",
                |of| &of.prefill,
            ),
            (
                "serve_decode_seconds",
                "Time from an answer's first token to its last",
                |of| &of.decode,
            ),
            (
                "serve_e2e_seconds",
                "Time from a request's arrival to the end of its whole answer",
                |of| &of.whole,
            ),
            (
                "serve_prompt_tokens",
                "Tokens in the prompts of whole answers",
                |of| &of.prompt_tokens,
            ),
            ("serve_output_tokens", "Tokens in whole answers", |of| {
                &of.output_tokens
            }),
            (
                "serve_output_tokens_max",
                "Tokens that whole answers could have had at most",
                |of| &of.output_tokens_max,
            ),
        ];
        for (name, help, part) in parts {
            let mut family = text.family(Kind::Histogram, name, help);
            for (rank, class) in self.classes.iter().enumerate() {
                family.histogram(&[("class", self.class_name(rank))], &part(class).read());
            }
        }
        let classes = || {
            let named = self.classes.iter().enumerate();
            named.map(|(rank, class)| (self.class_name(rank), class))
        };
        let help = "Whole answers, by why they ended";
        let mut family = text.family(Kind::Counter, "serve_answers_total", help);
        for (name, class) in classes() {
            for finish in Finish::ALL {
                family.sample(
                    &[("class", name), ("finish", finish.name())],
                    class.finished(finish),
                );
            }
        }
        let help = "Requests with a deadline that the engine had taken, by whether their answer was whole in time";
        let mut family = text.family(Kind::Counter, "serve_deadlines_total", help);
        for (name, class) in classes() {
            for (result, count) in class.deadlines() {
                family.sample(&[("class", name), ("result", result)], count);
            }
        }
        let help = "Tokens of answers that were not completed: cancelled, late or failed";
        let mut family = text.family(Kind::Counter, "serve_unused_tokens_total", help);
        for (name, class) in classes() {
            family.sample(&[("class", name)], class.unused_tokens());
        }
    }

    fn write_steps(&self, text: &mut Text) {
        let parts = [
            (
                "serve_step_seconds",
                "Time that a step took, planning and booking included",
                &self.step_seconds,
            ),
            (
                "serve_step_sequences",
                "Requests in a step",
                &self.step_sequences,
            ),
            (
                "serve_step_tokens",
                "Positions that a step ran, of prompts and of answers",
                &self.step_tokens,
            ),
            (
                "serve_release_lag_seconds",
                "Time from a disconnect, an abort or a deadline until all that the request held was free",
                &self.release_lag_seconds,
            ),
        ];
        for (name, help, histogram) in parts {
            text.family(Kind::Histogram, name, help)
                .histogram(&[], &histogram.read());
        }
    }

    fn write_edge(&self, text: &mut Text, snapshot: &Snapshot<'_>) {
        let help = "How long refused requests were told to wait before they try again";
        text.family(Kind::Histogram, "serve_retry_after_seconds", help)
            .histogram(&[], &self.retry_after_seconds.read());
        let help = "Connections that are open";
        text.gauge(
            "serve_connections",
            help,
            self.connections.load(Ordering::Relaxed),
        );
        let counters = [
            (
                "serve_connections_dropped_total",
                "Connections that were closed unheard because there were too many",
                self.connections_dropped.load(Ordering::Relaxed),
            ),
            (
                "serve_wrong_keys_total",
                "Requests on any path with an API key that is not known",
                self.wrong_keys.load(Ordering::Relaxed),
            ),
            (
                "serve_log_lines_lost_total",
                "Lines of the log that could not be written, or not fast enough",
                snapshot.log_lines_lost,
            ),
        ];
        for (name, help, count) in counters {
            text.counter(name, help, count);
        }
        let help = "1 for the state that the server is in";
        let mut family = text.family(Kind::Gauge, "serve_state", help);
        for state in &snapshot.states {
            family.sample(&[("state", state)], u8::from(*state == snapshot.state));
        }
    }
}

/// The part of the blocks that requests hold, from 0 to 1.
pub(super) fn kv_usage(stats: &Stats) -> f64 {
    match stats.blocks.total {
        0 => 0.0,
        total => f64::from(stats.blocks.held) / f64::from(total),
    }
}

fn write_stats(text: &mut Text, stats: &Stats) {
    let (counters, blocks) = (&stats.counters, stats.blocks);
    text.counter(
        "serve_steps_total",
        "Steps that ran something",
        counters.steps,
    );
    text.counter(
        "serve_steps_failed_total",
        "Steps that the backend failed",
        counters.steps_failed,
    );
    let help =
        "Positions of prompts that were run, tokens sampled, positions found in the prefix cache";
    let mut family = text.family(Kind::Counter, "serve_tokens_total", help);
    let kinds = [
        ("prompt", counters.prefill_tokens),
        ("output", counters.output_tokens),
        ("cached", counters.cached_tokens),
    ];
    for (kind, count) in kinds {
        family.sample(&[("kind", kind)], count);
    }
    let help = "KV blocks: free, held by a request, or kept for prompts that begin alike";
    let mut family = text.family(Kind::Gauge, "serve_kv_blocks", help);
    for (state, count) in [
        ("free", blocks.free),
        ("held", blocks.held),
        ("cached", blocks.cached),
    ] {
        family.sample(&[("state", state)], count);
    }
    let help = "The part of the KV blocks that requests hold, from 0 to 1";
    text.gauge("serve_kv_usage_ratio", help, kv_usage(stats));
}
