//! Loads from light to the capacity, against a service objective.

use crate::analysis::Analysis;
use crate::analysis::definitions::Metric;
use crate::analysis::table::{Table, number, percent};
use crate::experiments::matrix::beside::RTX_3090;
use crate::experiments::matrix::scale::{ANSWER, BATCH, set, span_s};
use crate::experiments::matrix::seen::Seen;
use crate::experiments::matrix::{Bench, MatrixError};
use crate::experiments::servers::ServerSettings;
use crate::figure::Figure;
use crate::report::load;
use crate::workload::slo::Slo;
use crate::workload::spec::Spec;

/// Published: offered rate, TTFT p50 and p95, TPOT p50 and p95, output tokens/s, goodput/s, share,
/// dollars for a million output tokens.
type Line = (&'static str, [f64; 9]);

const GPU: [Line; 5] = [
    (
        "1 request/s",
        [1.0, 20.61, 26.9, 8.21, 8.73, 169.9, 0.953, 1.0, 0.65],
    ),
    (
        "2 requests/s",
        [2.0, 21.92, 27.71, 8.45, 9.07, 326.0, 1.833, 1.0, 0.34],
    ),
    (
        "4 requests/s",
        [4.0, 24.62, 30.48, 8.9, 10.2, 603.8, 3.402, 1.0, 0.18],
    ),
    (
        "8 requests/s",
        [8.0, 31.44, 42.04, 13.2, 15.13, 1_050.5, 5.896, 1.0, 0.11],
    ),
    (
        "8 requests/s, KV at 0.45",
        [8.0, 30.83, 44.25, 13.4, 15.13, 1_023.5, 5.743, 1.0, 0.11],
    ),
];

const CPU: [Line; 4] = [
    (
        "0.1 requests/s",
        [0.1, 69.88, 279.46, 31.47, 34.33, 11.8, 0.121, 1.0, 14.09],
    ),
    (
        "0.25 requests/s",
        [0.25, 53.54, 70.49, 31.56, 33.88, 26.4, 0.271, 1.0, 6.31],
    ),
    (
        "0.5 requests/s",
        [0.5, 60.88, 111.02, 32.76, 58.5, 44.2, 0.458, 1.0, 3.77],
    ),
    (
        "1 request/s",
        [1.0, 67.93, 172.54, 33.51, 40.97, 68.3, 0.701, 1.0, 2.44],
    ),
];

const COLUMNS: [&str; 10] = [
    "load",
    "offered/s",
    "TTFT p50 ms",
    "TTFT p95 ms",
    "TPOT p50 ms",
    "TPOT p95 ms",
    "output tokens/s",
    "goodput/s",
    "good",
    "$ a million tokens",
];

pub(super) async fn ladder(bench: &mut Bench<'_>) -> Result<(), MatrixError> {
    let whole = BATCH * 512;
    let usual = Bench::usual().with("kv_tokens", whole.to_string());
    let half = Bench::usual().with("kv_tokens", (whole / 2).to_string());
    bench
        .prove("ladder: the whole KV cache / half of it", &usual, &half)
        .await?;
    let mut table = Table::new("ours", &COLUMNS);
    let steps = [
        ("1/8 of capacity", 0.125, &usual, "eighth"),
        ("1/4 of capacity", 0.25, &usual, "quarter"),
        ("1/2 of capacity", 0.5, &usual, "half"),
        ("capacity", 1.0, &usual, "whole"),
        ("capacity, half the KV cache", 1.0, &half, "whole-half-kv"),
    ];
    let mut analyses = Vec::new();
    for (label, load, settings, id) in steps {
        let spec = spec(bench, load)?;
        let (cells, analysis) = line(bench, &format!("ladder-{id}"), label, settings, spec).await?;
        table.row(cells);
        if *settings == usual {
            analyses.push(analysis);
        }
    }
    let points = analyses.iter().filter_map(|analysis| {
        let x = analysis.offered_per_s()?;
        Some(load::Point { x, analysis })
    });
    let curve = load::Curve {
        name: String::new(),
        points: points.collect(),
    };
    let charts = load::charts("offered (requests/s)", true, &[curve]);
    bench.section.charts.extend(charts);
    table.note(format!(
        "short, medium and long exchanges; SLO: first token within {:.2} s, {:.1} ms for each further token",
        slo(bench).ttft.map_or(0.0, |span| span.as_secs_f64()),
        slo(bench).tpot.map_or(0.0, |span| span.as_millis_f64()),
    ));
    bench.section.tables.push(table);
    let published = |title: &str, note: &str, lines: &[Line]| {
        let mut table = Table::new(title, &COLUMNS);
        for (label, numbers) in lines {
            let cells = numbers.iter().enumerate().map(|(at, value)| match at {
                7 => percent(Some(*value)),
                _ => number(Some(*value)),
            });
            table.row(std::iter::once((*label).to_owned()).chain(cells));
        }
        table.note(note);
        table
    };
    bench
        .section
        .tables
        .push(published("published, on a GPU", RTX_3090, &GPU));
    let cpu = "published: llama3.2:1b on 8 processor cores, llama.cpp with 4 slots, SLO 20 s TTFT and 2.5 s TPOT \
        (llm-serving-lab)";
    bench
        .section
        .tables
        .push(published("published, on a processor", cpu, &CPU));
    Ok(())
}

/// The interactive objective in this server's own measure: thirty first tokens, and six times the
/// cadence of an answer alone, which is about what 0.75 s and 0.10 s were of the published server's.
fn slo(bench: &Bench<'_>) -> Slo {
    let alone = &bench.scale;
    let cadence_s = (alone.answer_s - alone.first_token_s) / f64::from(ANSWER);
    Slo {
        ttft: Some(span_s(30.0 * alone.first_token_s)),
        tpot: Some(span_s(6.0 * cadence_s)),
        e2e: None,
    }
}

fn spec(bench: &Bench<'_>, load: f64) -> Result<Spec, MatrixError> {
    // The capacity was measured with answers of one size; these are of 51.2 tokens in the mean.
    let mut spec = bench.open("ladder", load * f64::from(ANSWER) / 51.2)?;
    spec.prompts = vec![
        set("short", 6.0, 16, 32),
        set("medium", 3.0, 64, 64),
        set("long", 1.0, 160, 128),
    ];
    spec.slo = slo(bench);
    Ok(spec)
}

async fn line(
    bench: &mut Bench<'_>,
    id: &str,
    label: &str,
    settings: &ServerSettings,
    spec: Spec,
) -> Result<(Vec<String>, Analysis), MatrixError> {
    let price = bench.plan.price_per_hour;
    let point = bench.point(id, settings, spec).await?;
    let seen = Seen::priced(&point, price);
    let analysis = seen.analysis();
    let cost = analysis
        .cost
        .as_ref()
        .and_then(|cost| cost.per_million_output_tokens);
    let ours = [
        ("TTFT p95", seen.ms(Metric::Ttft, 0.95), "ms"),
        ("TPOT p95", seen.ms(Metric::Tpot, 0.95), "ms"),
        ("output", seen.tokens_per_s(), "tokens/s"),
        ("goodput", analysis.rates.goodput_per_s, "answers/s"),
        ("a million output tokens", cost, "$"),
    ];
    let ours = ours.into_iter().filter_map(|(name, value, unit)| {
        Some(Figure::new(format!("{name} ({label})"), value?, unit))
    });
    bench.section.numbers.extend(ours);
    let cells = vec![
        label.to_owned(),
        number(analysis.offered_per_s()),
        number(seen.ms(Metric::Ttft, 0.5)),
        number(seen.ms(Metric::Ttft, 0.95)),
        number(seen.ms(Metric::Tpot, 0.5)),
        number(seen.ms(Metric::Tpot, 0.95)),
        number(seen.tokens_per_s()),
        number(analysis.rates.goodput_per_s),
        analysis.all().good_cell(),
        number(cost),
    ];
    Ok((cells, analysis.clone()))
}
