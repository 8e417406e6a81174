//! An analysis as lines and tables: what the terminal and the report both show.

use crate::analyse::Analysis;
use crate::analyse::bootstrap::Estimate;
use crate::analyse::group::{Group, Percentile};
use crate::definitions::{self, Metric};
use crate::delivered::Delivered;
use crate::slo::Slo;
use crate::table::{Table, number, percent};

/// A fact about a run: a word and what is said of it.
pub type Fact = (&'static str, String);

/// What must be said before any number: that a run is void, that rows were simulated, that a run was
/// stopped.
pub fn labels(analysis: &Analysis) -> Vec<Fact> {
    let mut labels = analysis
        .delivered
        .iter()
        .flat_map(|it| &it.void)
        .map(|reason| ("VOID", reason.to_string()))
        .collect::<Vec<_>>();
    if analysis.is_void() {
        let text = "the client was the bottleneck: these numbers say nothing about the server";
        labels.push(("VOID", text.to_owned()));
    }
    if analysis.simulated {
        let text =
            "every number here comes from a simulation in virtual time; nothing was measured";
        labels.push(("SIMULATED", text.to_owned()));
    }
    if analysis.interrupted {
        let text = "a run was stopped before its time; its rows end where it was stopped";
        labels.push(("INTERRUPTED", text.to_owned()));
    }
    labels
}

/// Counts and rates, one line each.
pub fn facts(analysis: &Analysis) -> Vec<Fact> {
    let all = analysis.all();
    let mut facts = vec![("requests", all.requests.to_string())];
    if all.attempts != all.requests {
        facts.push(("attempts", all.attempts.to_string()));
    }
    if !analysis.causes.is_empty() {
        let causes = analysis
            .causes
            .iter()
            .map(|(cause, count)| format!("{cause} {count}"));
        facts.push(("causes", causes.collect::<Vec<_>>().join(", ")));
    }
    facts.push(("delivered", delivered(analysis)));
    facts.push(("throughput", throughput(analysis)));
    if analysis.has_slo() || all.good != all.requests.ok {
        facts.push(("goodput", goodput(analysis)));
    }
    facts.extend(retries(analysis).map(|text| ("retries", text)));
    facts.extend(little(analysis).map(|text| ("Little", text)));
    facts.extend(cost(analysis).map(|text| ("cost", text)));
    facts
}

/// How the load was delivered; of several runs, the worst of each.
fn delivered(analysis: &Analysis) -> String {
    let most = |value: fn(&Delivered) -> Option<f64>| {
        let values = analysis.delivered.iter().filter_map(value);
        values.max_by(f64::total_cmp)
    };
    let rates = analysis.offered_per_s().zip(analysis.delivered_per_s());
    let rates = rates.map_or_else(String::new, |(offered, delivered)| {
        let share = percent(Some(delivered / offered));
        format!(
            "{}/s of {}/s offered ({share}), ",
            number(Some(delivered)),
            number(Some(offered))
        )
    });
    let gaps = most(|it| it.gap_distance).map_or_else(String::new, |distance| {
        format!(", gaps {distance:.3} from the planned distribution")
    });
    let least = analysis.delivered.iter().filter_map(|it| it.poisson_p);
    let poisson = least.min_by(f64::total_cmp);
    let poisson = poisson.map_or_else(String::new, |p| format!(" (Poisson: p = {p:.2})"));
    let worst = match analysis.runs {
        0 | 1 => String::new(),
        runs => format!("; the worst of {runs} runs"),
    };
    format!(
        "{rates}schedule lag p50 {} / p99 {} / max {} ms{gaps}{poisson}{worst}",
        number(most(|it| it.lag_p50_ms)),
        number(most(|it| it.lag_p99_ms)),
        number(most(|it| it.lag_max_ms)),
    )
}

fn throughput(analysis: &Analysis) -> String {
    let rates = &analysis.rates;
    let spread = match &rates.output_tokens_per_s_of_run[..] {
        [] | [_] => String::new(),
        runs => {
            let (low, high) = runs.iter().fold((f64::MAX, f64::MIN), |(low, high), rate| {
                (low.min(*rate), high.max(*rate))
            });
            format!(
                " (runs from {} to {})",
                number(Some(low)),
                number(Some(high))
            )
        }
    };
    format!(
        "{} answers/s, {} output tokens/s{spread} over {} s",
        number(Some(rates.answers_per_s)),
        number(Some(rates.output_tokens_per_s)),
        number(Some(rates.wall_s)),
    )
}

fn goodput(analysis: &Analysis) -> String {
    let all = analysis.all();
    let classes = analysis.slo_by_class.iter();
    let classes = classes.map(|(class, slo)| format!("; class {class}: {}", limits(slo)));
    format!(
        "{}/s: {} of {} requests ({}) kept {}{}",
        number(Some(analysis.rates.goodput_per_s)),
        all.good,
        all.requests.scheduled(),
        share(&all.good_share),
        limits(&analysis.slo),
        classes.collect::<String>(),
    )
}

fn limits(slo: &Slo) -> String {
    let limits = [("TTFT", slo.ttft), ("TPOT", slo.tpot), ("E2E", slo.e2e)];
    let limits = limits.into_iter();
    let limits = limits.filter_map(|(name, limit)| Some(format!("{name} <= {}", limit?)));
    match limits.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "their deadlines".to_owned(),
        limits => limits,
    }
}

fn retries(analysis: &Analysis) -> Option<String> {
    let retries = &analysis.retries;
    (retries.retried > 0).then(|| {
        format!(
            "amplification {}: {} attempts of {} requests; {} were tried again, {} of these answered",
            number(retries.amplification),
            retries.attempts,
            retries.requests,
            retries.retried,
            retries.rescued,
        )
    })
}

fn little(analysis: &Analysis) -> Option<String> {
    let known = analysis.little.iter().flatten().collect::<Vec<_>>();
    let worst = known
        .iter()
        .max_by(|a, b| a.gap.abs().total_cmp(&b.gap.abs()))?;
    let verdict = match (worst.is_steady(), worst.gap > 0.0) {
        (true, _) => "the run was steady",
        (false, true) => {
            "not steady: what arrived stayed beyond the run's window, so the queue grew"
        }
        (false, false) => "not steady",
    };
    let which = if known.len() > 1 {
        " (of the least steady run)"
    } else {
        ""
    };
    Some(format!(
        "L = {} in flight, lambda W = {}/s * {} s = {}{which}: {verdict}",
        number(Some(worst.in_flight_mean)),
        number(Some(worst.arrivals_per_s)),
        number(Some(worst.stay_mean_s)),
        number(Some(worst.arrivals_per_s * worst.stay_mean_s)),
    ))
}

fn cost(analysis: &Analysis) -> Option<String> {
    let cost = analysis.cost?;
    let good = match analysis.has_slo() {
        true => format!(
            ", {} for a million good ones",
            number(cost.per_million_good_tokens)
        ),
        false => String::new(),
    };
    Some(format!(
        "${} for a million output tokens{good}, at ${} an hour",
        number(cost.per_million_output_tokens),
        number(Some(cost.per_hour)),
    ))
}

/// The percentiles of every metric, over all requests.
pub fn times(analysis: &Analysis) -> Table {
    let columns = ["metric", "values", "p50", "p90", "p95", "p99", "p99 of all"];
    let mut table = Table::new("times in ms [95% interval]", &columns);
    let all = analysis.all();
    for distribution in &all.distributions {
        let percentiles = &distribution.percentiles;
        let mut cells = vec![
            distribution.metric.name().to_owned(),
            distribution.count.to_string(),
        ];
        cells.extend(percentiles.iter().map(cell));
        cells.push(of_all(distribution.metric, &percentiles[3]));
        table.row(cells);
    }
    let requests = &all.requests;
    table.note(format!(
        "times are of the {} answered of {} requests: {} were refused, {} failed, {} unfinished",
        requests.ok,
        requests.scheduled(),
        requests.refused,
        requests.failed,
        requests.unfinished(),
    ));
    let thin = all.distributions.iter().flat_map(|it| &it.percentiles);
    if thin.into_iter().any(Percentile::is_thin) {
        table.note("* fewer than 10 values lie beyond it");
    }
    table.note(format!(
        "interval: {} draws with seed {}, {}",
        analysis.bootstrap.resamples, analysis.bootstrap.seed, analysis.scheme
    ));
    table
}

fn cell(percentile: &Percentile) -> String {
    let mark = if percentile.is_thin() { "*" } else { "" };
    let value = number(percentile.estimate.value);
    match percentile.estimate.interval {
        Some([low, high]) => {
            format!(
                "{value}{mark} [{}, {}]",
                number(Some(low)),
                number(Some(high))
            )
        }
        None => format!("{value}{mark}"),
    }
}

fn of_all(metric: Metric, percentile: &Percentile) -> String {
    match (metric, percentile.of_all) {
        (Metric::Ttft | Metric::TtftSent | Metric::E2e | Metric::E2eSent, None) => {
            "never".to_owned()
        }
        (_, value) => number(value),
    }
}

fn share(estimate: &Estimate) -> String {
    let value = percent(estimate.value);
    match estimate.interval {
        Some([low, high]) => format!("{value} [{}, {}]", percent(Some(low)), percent(Some(high))),
        None => value,
    }
}

/// One row for each part of the workload; `None` where there is but one.
pub fn parts(analysis: &Analysis) -> Option<Table> {
    if analysis.groups.len() < 2 {
        return None;
    }
    let columns = [
        "part",
        "requests",
        "ok",
        "refused",
        "failed",
        "unfinished",
        "good",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "E2E p50",
        "E2E p99",
    ];
    let mut table = Table::new("parts of the workload, times in ms", &columns);
    for group in &analysis.groups {
        table.row(part(group));
    }
    let cuts = [analysis.cuts.prompt_tokens, analysis.cuts.output_tokens];
    if let [Some(prompt), Some(output)] = cuts {
        table.note(format!(
            "long in: more than {prompt} prompt tokens; long out: more than {output} allowed output tokens"
        ));
    }
    Some(table)
}

fn part(group: &Group) -> Vec<String> {
    let requests = &group.requests;
    let mut cells = vec![group.key.to_string()];
    let counts = [
        requests.scheduled(),
        requests.ok,
        requests.refused,
        requests.failed,
        requests.unfinished(),
    ];
    cells.extend(counts.map(|count| count.to_string()));
    cells.push(percent(group.good_share.value));
    let columns = [
        (Metric::Ttft, 0),
        (Metric::Ttft, 3),
        (Metric::Tpot, 0),
        (Metric::E2e, 0),
        (Metric::E2e, 3),
    ];
    cells.extend(columns.map(|(metric, at)| {
        let percentile = group.distribution(metric).map(|it| &it.percentiles[at]);
        percentile.map_or_else(
            || "-".to_owned(),
            |it| {
                let mark = if it.is_thin() { "*" } else { "" };
                format!("{}{mark}", number(it.estimate.value))
            },
        )
    }));
    cells
}

/// Several analyses beside each other, one row each.
pub fn beside<'a>(groups: impl IntoIterator<Item = (&'a str, &'a Analysis)>) -> Table {
    let columns = [
        "run",
        "offered/s",
        "requests",
        "ok",
        "refused",
        "failed",
        "unfinished",
        "good",
        "tokens/s",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "E2E p50",
        "E2E p99",
    ];
    let mut table = Table::new("times in ms", &columns);
    for (name, analysis) in groups {
        let rates = &analysis.rates;
        let mut cells = part(analysis.all());
        let simulated = if analysis.simulated {
            " (simulated)"
        } else {
            ""
        };
        let void = if analysis.is_void() { " (VOID)" } else { "" };
        cells[0] = format!("{name}{simulated}{void}");
        cells.insert(1, number(analysis.offered_per_s()));
        cells.insert(8, number(Some(rates.output_tokens_per_s)));
        table.row(cells);
    }
    table.note("times are of answered requests, from the scheduled send; * fewer than 10 values lie beyond it");
    table
}

/// Who got how much, a table for tenants and one for classes.
pub fn fairness(analysis: &Analysis) -> Vec<Table> {
    let table = |fairness: &crate::analyse::fairness::Fairness| {
        let columns = [
            fairness.by,
            "requests",
            "answered",
            "share",
            "output tokens",
            "starved",
        ];
        let mut table = Table::new(format!("fairness between {} parts", fairness.by), &columns);
        for share in &fairness.shares {
            table.row([
                share.name.clone(),
                share.requests.to_string(),
                share.answered.to_string(),
                percent(Some(share.answered as f64 / share.requests.max(1) as f64)),
                share.output_tokens.to_string(),
                share.starved.to_string(),
            ]);
        }
        table.note(format!(
            "Jain's index: {} of answered shares, {} of output tokens (1: all alike, {}: one has all)",
            number(fairness.jain_answered),
            number(fairness.jain_output_tokens),
            number(Some(1.0 / fairness.shares.len() as f64)),
        ));
        table.note(format!(
            "starved: {} ms or longer without a first token",
            number(Some(fairness.starved_after_ms)),
        ));
        table
    };
    analysis.fairness.iter().map(table).collect()
}

/// What each word means.
pub fn definitions() -> Table {
    let mut table = Table::new("definitions", &["word", "meaning"]);
    for definition in definitions::all() {
        table.row([definition.name, definition.meaning]);
    }
    table
}

/// Everything as plain text.
pub fn text(analysis: &Analysis) -> String {
    let mut out = String::new();
    for (word, said) in labels(analysis).into_iter().chain(facts(analysis)) {
        out.push_str(&format!("{word:<10} {said}\n"));
    }
    let tables = [Some(times(analysis)), parts(analysis)];
    for table in tables.into_iter().flatten().chain(fairness(analysis)) {
        out.push('\n');
        out.push_str(&table.text());
    }
    out.push('\n');
    let present = analysis.all().distributions.iter().map(|it| it.metric);
    for metric in present {
        out.push_str(&format!("{:<12} {}\n", metric.name(), metric.definition()));
    }
    out
}
