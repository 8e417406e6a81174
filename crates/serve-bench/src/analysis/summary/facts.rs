//! What is said of a run in lines: labels that come before any number, then counts and rates.

use crate::analysis::Analysis;
use crate::analysis::bootstrap::Estimate;
use crate::analysis::delivered::Delivered;
use crate::analysis::table::{number, percent};
use crate::workload::slo::Slo;

/// A fact about a run: a word and what is said of it.
pub type Fact = (&'static str, String);

/// What must be said before any number: that a run is void, that no server was asked, that a run was
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
    let warning = analysis.source.warning();
    labels.extend(warning.map(|(word, text)| (word, text.to_owned())));
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

fn share(estimate: &Estimate) -> String {
    let value = percent(estimate.value);
    match estimate.interval {
        Some([low, high]) => format!("{value} [{}, {}]", percent(Some(low)), percent(Some(high))),
        None => value,
    }
}
