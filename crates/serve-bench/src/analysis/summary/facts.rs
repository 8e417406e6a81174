//! What is said of a run in lines: labels that come before any number, then counts and rates.

use crate::analysis::Analysis;
use crate::analysis::bootstrap::Estimate;
use crate::analysis::delivered::Delivered;
use crate::analysis::steady::{Thirds, Verdict};
use crate::analysis::table::{number, percent};
use crate::analysis::tokens::{at_least, rate};
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
    if analysis.has_slo() || all.good + all.unjudged != all.requests.ok {
        facts.push(("goodput", goodput(analysis)));
    }
    facts.extend(retries(analysis).map(|text| ("retries", text)));
    facts.extend(little(analysis).map(|text| ("Little", text)));
    facts.extend(thirds(analysis).map(|text| ("thirds", text)));
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
    let tokens = &analysis.all().output_tokens;
    let rate = tokens.per_s(rates.wall_s);
    let rate = match tokens.missing() {
        None => format!("{rate} output tokens/s{spread}"),
        Some(missing) => format!("output tokens/s {rate} ({missing})"),
    };
    format!(
        "{} answers/s, {rate} over {} s",
        number(Some(rates.answers_per_s)),
        number(Some(rates.wall_s)),
    )
}

fn goodput(analysis: &Analysis) -> String {
    let all = analysis.all();
    let classes = analysis.slo_by_class.iter();
    let classes = classes.map(|(class, slo)| format!("; class {class}: {}", limits(slo)));
    let limits = format!("{}{}", limits(&analysis.slo), classes.collect::<String>());
    let scheduled = all.requests.scheduled();
    if all.unjudged > 0 {
        let least = match all.good {
            0 => "unknown".to_owned(),
            good => format!(
                "{}/s",
                at_least(rate(good, analysis.rates.wall_s), all.unjudged)
            ),
        };
        return format!(
            "{least}: {} of {scheduled} requests kept {limits}, and of {} the TPOT is unknown ({})",
            all.good,
            all.unjudged,
            all.output_tokens.missing().unwrap_or_default(),
        );
    }
    format!(
        "{}/s: {} of {scheduled} requests ({}) kept {limits}",
        number(analysis.rates.goodput_per_s),
        all.good,
        share(&all.good_share),
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
    let verdict = match (worst.agrees(), worst.gap > 0.0) {
        (true, _) => "both sides agree",
        (false, true) => {
            "not steady: what arrived stayed beyond the run's window, so the queue grew"
        }
        (false, false) => "not steady",
    };
    let which = if known.len() > 1 {
        " (of the run in which they differ most)"
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

/// Of several runs, the one whose thirds differ most in what is in flight.
fn thirds(analysis: &Analysis) -> Option<String> {
    let known = analysis.thirds.iter().flatten().collect::<Vec<_>>();
    let spread = |thirds: &Thirds| {
        let means = thirds.0.map(|third| third.in_flight_mean);
        means.into_iter().fold(0.0, f64::max) - means.into_iter().fold(f64::INFINITY, f64::min)
    };
    let differs = known.iter().filter(|it| it.verdict() != Verdict::Steady);
    let worst = differs.max_by(|a, b| spread(a).total_cmp(&spread(b)));
    let shown = worst.or(known.first())?;
    let verdict = match shown.verdict() {
        Verdict::Steady => "steady",
        Verdict::Differ => "not steady: a third is more than half as large again as another",
        Verdict::DifferOrChance => {
            "they differ, and are of too few requests to tell that from chance"
        }
    };
    let which = match (known.len(), worst) {
        (0 | 1, _) => "",
        (_, Some(_)) => " (of the run in which they differ most)",
        (_, None) => " (of the first run)",
    };
    let in_flight = shown.0.map(|third| number(Some(third.in_flight_mean)));
    let ttft = shown.0.map(|third| number(third.ttft_p50_ms));
    Some(format!(
        "in flight {}; TTFT p50 {} ms{which}: {verdict}",
        in_flight.join(", "),
        ttft.join(", "),
    ))
}

fn cost(analysis: &Analysis) -> Option<String> {
    let cost = analysis.cost?;
    if let Some(missing) = analysis.all().output_tokens.missing() {
        return Some(format!("unknown for a million output tokens ({missing})"));
    }
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

#[cfg(test)]
mod tests {
    use serve_core::Span;

    use super::*;
    use crate::analysis::testing::{answer, numbered, refused};
    use crate::analysis::{AnalysisOptions, summary};
    use crate::store::folder::Run;
    use crate::store::record::Record;

    fn analysed(rows: Vec<Record>) -> Analysis {
        let slo = Slo {
            ttft: Some(Span::from_millis(500)),
            tpot: Some(Span::from_millis(20)),
            e2e: None,
        };
        let options = AnalysisOptions {
            slo: Some(slo),
            price_per_hour: Some(1.0),
            ..AnalysisOptions::default()
        };
        Analysis::of(&[Run::of_rows(numbered(rows))], &options)
    }

    fn said(analysis: &Analysis, word: &str) -> String {
        let facts = facts(analysis);
        let found = facts.into_iter().find(|fact| fact.0 == word);
        found.map_or_else(String::new, |fact| fact.1)
    }

    #[test]
    fn tokens_that_nobody_counted_are_unknown_wherever_they_are_asked_for() {
        let row = |at: u64, tokens| answer(at * 100, &[at * 100 + 10, at * 100 + 30], tokens);
        let late = answer(600, &[1_200], None);
        let rows = |counted: u64| (0..6).map(move |at| row(at, (at < counted).then_some(3)));
        let none = analysed(rows(0).chain([late.clone(), refused(700)]).collect());
        let some = analysed(rows(2).chain([late, refused(700)]).collect());
        let all = analysed(rows(6).chain([refused(700)]).collect());

        let throughput = said(&none, "throughput");
        assert!(
            throughput.contains("output tokens/s unknown (7 of 7 answers without a count)"),
            "{throughput}"
        );
        let throughput = said(&some, "throughput");
        assert!(
            throughput.contains("output tokens/s >= 4.99 (5 of 7 answers without a count)"),
            "{throughput}"
        );
        let throughput = said(&all, "throughput");
        assert!(
            throughput.contains(" 25.6 output tokens/s over"),
            "{throughput}"
        );

        // The late one missed another limit, which can be told without a count.
        let goodput = said(&none, "goodput");
        assert!(
            goodput.starts_with("unknown: 0 of 8 requests kept "),
            "{goodput}"
        );
        assert!(
            goodput.contains("of 6 the TPOT is unknown (7 of 7 answers without a count)"),
            "{goodput}"
        );
        let goodput = said(&some, "goodput");
        assert!(
            goodput.starts_with(">= 1.66/s: 2 of 8 requests kept "),
            "{goodput}"
        );
        let goodput = said(&all, "goodput");
        assert!(goodput.contains("6 of 7 requests (85.7%"), "{goodput}");

        assert!(
            said(&none, "cost").starts_with("unknown"),
            "{}",
            said(&none, "cost")
        );
        assert!(
            said(&some, "cost").starts_with("unknown"),
            "{}",
            said(&some, "cost")
        );
        assert!(
            said(&all, "cost").starts_with('$'),
            "{}",
            said(&all, "cost")
        );

        let table = summary::beside([("none", &none), ("some", &some), ("all", &all)]);
        let column = |name: &str| {
            let at = table.columns.iter().position(|it| it == name).unwrap();
            table
                .rows
                .iter()
                .map(move |row| row[at].as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!(column("tokens/s"), ["unknown", ">= 4.99", "25.6"]);
        assert_eq!(column("good"), ["unknown", ">= 25.0%", "85.7%"]);
        for analysis in [&none, &some] {
            let json = serde_json::to_value(analysis).unwrap();
            for absent in ["output_tokens_per_s", "good_tokens_per_s", "goodput_per_s"] {
                assert!(json["rates"][absent].is_null(), "{absent}");
            }
            assert!(json["groups"][0]["good_share"]["value"].is_null());
        }
    }
}
