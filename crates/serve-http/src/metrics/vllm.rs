//! The same figures under the names that dashboards, autoscalers and gateways of this field ask for: those of vLLM.
//!
//! What a name means follows vLLM's own code (`vllm/v1/metrics/loggers.py` and `stats.py` of version 0.11 and later):
//! `kv_cache_usage_perc` is a fraction in which blocks that nobody holds count as free, and `prompt_tokens_total` has the
//! tokens found in a cache in it. Every bound of its histograms is one here, among others.

use serve_core::Span;

use super::class::{ClassMetrics, Finish};
use super::histogram::{Histogram, Reading};
use super::tally::Tally;
use super::text::{Kind, Text};
use super::written::kv_usage;
use super::{Metrics, Served};

/// The bounds of all of vLLM's histograms of time, in milliseconds.
const BOUNDS_MS: [u64; 42] = [
    1, 5, 10, 20, 25, 40, 50, 60, 75, 80, 100, 150, 200, 250, 300, 400, 500, 750, 800, 1_000,
    1_500, 2_000, 2_500, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000,
    80_000, 120_000, 160_000, 240_000, 480_000, 640_000, 960_000, 1_920_000, 2_560_000, 7_680_000,
];

/// What must be bounds of the histograms of time.
pub(super) fn bounds() -> impl Iterator<Item = Span> {
    BOUNDS_MS.into_iter().map(Span::from_millis)
}

/// Writes all families.
pub(super) fn write(text: &mut Text, metrics: &Metrics, served: &Served) {
    let names = Names {
        model: &served.model,
    };
    names.gauges(text, served);
    names.counters(text, metrics, served);
    names.histograms(text, metrics);
}

struct Names<'a> {
    model: &'a str,
}

impl<'a> Names<'a> {
    fn labels<'b>(&self, more: Option<(&'b str, &'b str)>) -> Vec<(&'b str, &'b str)>
    where
        'a: 'b,
    {
        let both = [("model_name", self.model), ("engine", "0")];
        both.into_iter().chain(more).collect()
    }

    fn gauges(&self, text: &mut Text, served: &Served) {
        let stats = &served.stats;
        let gauges = [
            (
                "vllm:num_requests_running",
                "Requests in the batch",
                f64::from(stats.running),
            ),
            (
                "vllm:num_requests_waiting",
                "Requests in the queue",
                f64::from(stats.waiting),
            ),
            (
                "vllm:kv_cache_usage_perc",
                "The part of the KV blocks that requests hold, from 0 to 1",
                kv_usage(stats),
            ),
        ];
        for (name, help, value) in gauges {
            text.family(Kind::Gauge, name, help)
                .sample(&self.labels(None), value);
        }
        let (size, blocks) = (served.limits.block_size, served.limits.usable_blocks());
        let (size, blocks) = (size.to_string(), blocks.to_string());
        let mut labels = self.labels(Some(("block_size", &size)));
        labels.push(("num_gpu_blocks", &blocks));
        let help = "How large the KV cache is";
        text.family(Kind::Gauge, "vllm:cache_config_info", help)
            .sample(&labels, 1);
    }

    fn counters(&self, text: &mut Text, metrics: &Metrics, served: &Served) {
        let counters = &served.stats.counters;
        let of_classes = |part: fn(&ClassMetrics) -> u64| -> u64 {
            metrics.classes.iter().map(|class| part(class)).sum()
        };
        let looked_up = of_classes(|class| class.looked_up()[0]);
        let found = of_classes(|class| class.looked_up()[1]);
        let plain = [
            (
                "vllm:num_preemptions_total",
                "Times that a running request had to wait again",
                counters.preempted,
            ),
            (
                "vllm:prompt_tokens_total",
                "Tokens of prompts, each once, those found in the prefix cache included",
                of_classes(ClassMetrics::prompt_total),
            ),
            (
                "vllm:generation_tokens_total",
                "Tokens sampled",
                counters.output_tokens,
            ),
            (
                "vllm:prompt_tokens_cached_total",
                "Tokens of prompts that were found in the prefix cache",
                counters.cached_tokens,
            ),
            (
                "vllm:prefix_cache_queries_total",
                "Tokens of the prompts of whole answers, which were looked up in the prefix cache",
                looked_up,
            ),
            (
                "vllm:prefix_cache_hits_total",
                "Of those, tokens that were found",
                found,
            ),
        ];
        for (name, help, value) in plain {
            text.family(Kind::Counter, name, help)
                .sample(&self.labels(None), value);
        }
        let finished = |finish: Finish| -> u64 {
            metrics
                .classes
                .iter()
                .map(|class| class.finished(finish))
                .sum()
        };
        let aborted = metrics.book.read().classes;
        let aborted: u64 = aborted.iter().map(Tally::cancelled).sum();
        let reasons = [
            ("stop", finished(Finish::Stop) + finished(Finish::StopText)),
            ("length", finished(Finish::Length)),
            ("abort", aborted),
            ("error", served.stats.counters.failed),
        ];
        let help = "Requests that have ended, by why";
        let mut family = text.family(Kind::Counter, "vllm:request_success_total", help);
        for (reason, count) in reasons {
            family.sample(&self.labels(Some(("finished_reason", reason))), count);
        }
    }

    fn histograms(&self, text: &mut Text, metrics: &Metrics) {
        type Part = fn(&ClassMetrics) -> &Histogram;
        let parts: [(&str, &str, Part); 12] = [
            (
                "vllm:time_to_first_token_seconds",
                "Arrival to first token",
                |of| &of.first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "Time between two tokens",
                |of| &of.between_tokens,
            ),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time between two tokens of an answer",
                |of| &of.per_token,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "Arrival to the end of the answer",
                |of| &of.whole,
            ),
            (
                "vllm:request_queue_time_seconds",
                "Arrival to first step",
                |of| &of.queue,
            ),
            (
                "vllm:request_prefill_time_seconds",
                "First step to first token",
                |of| &of.prefill,
            ),
            (
                "vllm:request_decode_time_seconds",
                "First token to last",
                |of| &of.decode,
            ),
            (
                "vllm:request_inference_time_seconds",
                "First step to last token",
                |of| &of.inference,
            ),
            ("vllm:request_prompt_tokens", "Tokens in prompts", |of| {
                &of.prompt_tokens
            }),
            (
                "vllm:request_generation_tokens",
                "Tokens in answers",
                |of| &of.output_tokens,
            ),
            (
                "vllm:request_params_max_tokens",
                "Tokens that answers could have",
                |of| &of.output_tokens_max,
            ),
            (
                "vllm:request_max_num_generation_tokens",
                "Tokens in the longest of a request's answers",
                |of| &of.output_tokens,
            ),
        ];
        for (name, help, part) in parts {
            let of_classes = metrics.classes.iter().map(|class| part(class).read());
            let Some(reading) = of_classes.reduce(Reading::with) else {
                continue;
            };
            let mut family = text.family(Kind::Histogram, name, help);
            family.histogram(&self.labels(None), &reading);
        }
        let others = [
            (
                "vllm:iteration_tokens_total",
                "Positions that a step ran",
                metrics.step_tokens.read(),
            ),
            // A request has one answer.
            (
                "vllm:request_params_n",
                "Answers asked for by a request",
                answers_asked_for(metrics),
            ),
        ];
        for (name, help, reading) in others {
            let mut family = text.family(Kind::Histogram, name, help);
            family.histogram(&self.labels(None), &reading);
        }
    }
}

/// One for each request: more are refused.
fn answers_asked_for(metrics: &Metrics) -> Reading {
    let answers = metrics
        .classes
        .iter()
        .map(|class| class.output_tokens.read().count);
    let count = answers.sum();
    Reading {
        cumulative: [1.0, 2.0, 5.0, 10.0, 20.0]
            .map(|bound| (bound, count))
            .into(),
        count,
        sum: count as f64,
        examples: Vec::new(),
    }
}
