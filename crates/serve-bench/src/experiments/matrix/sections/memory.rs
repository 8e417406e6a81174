//! Half the KV cache under long prompts.

use crate::analysis::definitions::Metric;
use crate::experiments::matrix::beside::{Beside, RTX_3090};
use crate::experiments::matrix::scale::{BATCH, set};
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, MatrixError};
use crate::workload::spec::Spec;

/// Tokens of a long prompt and of its answer: together they fit the smallest model's context.
const PROMPT: u32 = 192;
const ANSWER: u32 = 192;

pub(super) async fn kv(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    // What the batch needs when every answer is at its end, and half of it.
    let whole = BATCH * (PROMPT + ANSWER).next_multiple_of(16);
    let off = Bench::usual().with("kv_tokens", whole.to_string());
    let on = Bench::usual().with("kv_tokens", (whole / 2).to_string());
    bench
        .prove("kv: all that the batch needs / half of it", &off, &on)
        .await?;
    let spec = |bench: &Bench<'_>| -> Spec {
        let requests = bench.plan.effort.requests(BATCH);
        let mut spec = bench.closed("kv", BATCH, requests);
        spec.prompts = vec![set("long", 1.0, PROMPT, ANSWER)];
        spec
    };
    let full = bench.point("kv-whole", &off, spec(bench)).await?;
    let half = bench.point("kv-half", &on, spec(bench)).await?;
    let (full, half) = (Seen::of(&full), Seen::of(&half));
    let tokens = [full.tokens_per_s(), half.tokens_per_s()];
    let ms = |metric, quantile| [full.ms(metric, quantile), half.ms(metric, quantile)];
    let yielded = [full.preemptions(), half.preemptions()];
    let failed = |seen: &Seen<'_>| Some((seen.counts().scheduled() - seen.counts().ok) as f64);
    let mut beside = Beside::new("the whole KV cache (off) and half of it (on)");
    beside.headline("output tokens/s", "tokens/s", [1_050.5, 1_023.5], tokens);
    beside.line(
        "TTFT p50 ms",
        "ms",
        [Some(31.44), Some(30.83)],
        ms(Metric::Ttft, 0.5),
    );
    beside.line(
        "TTFT p95 ms",
        "ms",
        [Some(42.04), Some(44.25)],
        ms(Metric::Ttft, 0.95),
    );
    beside.line(
        "TPOT p95 ms",
        "ms",
        [Some(15.13), Some(15.13)],
        ms(Metric::Tpot, 0.95),
    );
    beside.line(
        "preemptions",
        "requests",
        [None, None],
        yielded.map(|count| count.map(|count| count as f64)),
    );
    beside.line(
        "not answered",
        "requests",
        [None, None],
        [failed(&full), failed(&half)],
    );
    let note = format!(
        "ours: {BATCH} clients, {PROMPT} tokens in and {ANSWER} out, {whole} and {} tokens of KV; the \
         published load never filled its cache and says that longer prompts and a count are needed",
        whole / 2
    );
    bench.show(beside.note(RTX_3090).note(&note));
    if let [Some(off), Some(on)] = yielded {
        bench.expect(
            "nobody is preempted with the whole cache",
            off == 0,
            format!("{off} preemptions"),
        );
        bench.expect(
            "somebody is preempted with half of it",
            on > 0,
            format!("{on} preemptions"),
        );
    }
    Ok(())
}
