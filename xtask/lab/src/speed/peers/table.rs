//! The medians as a table, or as one JSON object a line.

use std::fmt::Write;

use serve_bench::analysis::table::Table;
use serve_bench::figure::Figure;

use super::entrants::{ENTRANTS, Engine, Entrant, Results};
use super::tools::SAMPLES;

/// What is measured, and how many tokens a step of it runs.
const STEPS: [(&str, &str, u32); 4] = [
    ("prefill_128", "prefill of 128", 128),
    ("decode_1", "batch 1", 1),
    ("decode_4", "batch 4", 4),
    ("decode_16", "batch 16", 16),
];

/// The types in which serve's logits are compared with candle's. check-model takes what q4 loses on random
/// weights for a fault; the other engines lose as much.
pub(super) const CHECKED: [&str; 2] = ["bf16", "q8"];

/// What is said of all.
pub(super) struct Head<'a> {
    pub(super) shape: &'a str,
    pub(super) rounds: u32,
    pub(super) threads: usize,
    /// The version of this workspace.
    pub(super) serve: &'a str,
}

/// For people.
pub(super) fn text(results: &Results, head: &Head) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "the same random weights in the shape of {} for all; {} threads each\n\
         tokens/s, ms a step, and tokens/s as a multiple of serve's in the same group\n\
         medians of {} rounds of alternating processes (candle, which takes a minute each time: of the first),\n\
         in each the median of {SAMPLES} steps after one that does not count; prompts of 128 tokens; choosing the\n\
         likeliest token is part of every step\n",
        head.shape, head.threads, head.rounds
    );
    let titles = STEPS.map(|(_, title, _)| title);
    let mut table = Table::new("", &[&["engine", "weights", "MB"][..], &titles].concat());
    for entrant in &ENTRANTS {
        let megabytes = results.rows(entrant, "weights").next();
        let megabytes = megabytes.and_then(Figure::number);
        let megabytes = megabytes.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"));
        let own = [entrant.engine.name(), entrant.weights, &megabytes].map(str::to_owned);
        let steps = STEPS.map(|(name, _, tokens)| cell(results, entrant, name, tokens));
        table.row(own.into_iter().chain(steps));
    }
    out.push_str(&table.text());
    out.push('\n');
    for (engine, version) in versions(results, head) {
        let _ = writeln!(out, "{}: {version}", engine.name());
    }
    let passed = ENTRANTS.iter().filter(|entrant| {
        let is_checked = entrant.engine == Engine::Serve && CHECKED.contains(&entrant.weights);
        is_checked && !results.has_failed(entrant)
    });
    let passed = passed.map(|entrant| entrant.weights).collect::<Vec<_>>();
    let _ = writeln!(
        out,
        "logits against those of candle in f32: check-model passes for serve in {}; root mean square off: {}",
        passed.join(", "),
        deviations(results)
    );
    for (engine, weights, why) in &results.failures {
        let _ = writeln!(out, "NOT MEASURED: {} in {weights}: {why}", engine.name());
    }
    out
}

/// How far the logits of each are from the reference, which is candle's f32.
fn deviations(results: &Results) -> String {
    let others = ENTRANTS.iter().filter(|entrant| entrant.weights != "f32");
    let percent = others.filter_map(|entrant| {
        let row = results.rows(entrant, "deviation").next()?;
        let (name, percent) = (entrant.engine.name(), row.number()? * 100.0);
        Some(format!("{name} {} {percent:.1}%", entrant.weights))
    });
    percent.collect::<Vec<_>>().join(", ")
}

/// One object a line: name, value, unit, engine, weights; of a step its time, and what it is of serve's.
pub(super) fn json(results: &Results, head: &Head) -> String {
    let mut figures = Vec::new();
    for (engine, version) in versions(results, head) {
        let version = Figure::text("version", version).with("engine", engine.name());
        let version = version.with("shape", head.shape);
        figures.push(
            version
                .with("threads", head.threads)
                .with("rounds", head.rounds),
        );
    }
    for entrant in &ENTRANTS {
        let of_entrant = |figure: Figure| {
            let figure = figure.with("engine", entrant.engine.name());
            figure.with("weights", entrant.weights)
        };
        for name in ["weights", "deviation"] {
            let found = results.rows(entrant, name).next();
            let found = found.and_then(|row| Some((row.number()?, &row.unit)));
            let found = found.map(|(value, unit)| of_entrant(Figure::new(name, value, unit)));
            figures.extend(found);
        }
        for (name, _, tokens) in STEPS {
            if let Some(ms) = results.step_ms(entrant, name) {
                let step = Figure::new(name, rate(tokens, ms), "tokens/s");
                let step = of_entrant(step).with("step_ms", ms);
                figures.push(match of_serve(results, entrant, name) {
                    Some(of_serve) => step.with("of_serve", of_serve),
                    None => step,
                });
            }
        }
    }
    for (engine, weights, why) in &results.failures {
        let figure = Figure::text("not_measured", why).with("engine", engine.name());
        figures.push(figure.with("weights", *weights));
    }
    let line = |figure: &Figure| format!("{}\n", figure.line(true));
    figures.iter().map(line).collect()
}

fn cell(results: &Results, entrant: &Entrant, name: &str, tokens: u32) -> String {
    let Some(ms) = results.step_ms(entrant, name) else {
        return "-".to_owned();
    };
    let of_serve = of_serve(results, entrant, name);
    let of_serve = of_serve.map_or_else(String::new, |of| format!("{of:.2}x"));
    format!("{:.1} {ms:>7.1} ms {of_serve:>6}", rate(tokens, ms))
}

fn rate(tokens: u32, step_ms: f64) -> f64 {
    f64::from(tokens) / step_ms * 1e3
}

/// How many times as fast as serve with the weights of the same group.
fn of_serve(results: &Results, entrant: &Entrant, name: &str) -> Option<f64> {
    if entrant.engine == Engine::Serve {
        return None;
    }
    let serve = Entrant {
        engine: Engine::Serve,
        weights: entrant.group,
        ..*entrant
    };
    Some(results.step_ms(&serve, name)? / results.step_ms(entrant, name)?)
}

/// Of every engine that was measured.
fn versions(results: &Results, head: &Head) -> Vec<(Engine, String)> {
    let mut versions = vec![(Engine::Serve, head.serve.to_owned())];
    for engine in [Engine::LlamaCpp, Engine::Candle] {
        let mut entrants = ENTRANTS.iter().filter(|entrant| entrant.engine == engine);
        let row = entrants.find_map(|entrant| results.rows(entrant, "weights").next());
        if let Some(row) = row {
            let version = row.more["version"].as_str().unwrap_or_default().to_owned();
            versions.push((engine, version));
        }
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const HEAD: Head = Head {
        shape: "qwen2.5-0.5b",
        rounds: 1,
        threads: 2,
        serve: "0.1.0",
    };

    fn results() -> Results {
        let mut results = Results::default();
        let rows = |step_ms: f64, version: &str| {
            Figure::parse(&format!(
                "{{\"name\":\"weights\",\"value\":988.1,\"unit\":\"MB\",\"version\":\"{version}\"}}\n\
                 {{\"name\":\"decode_16\",\"value\":1,\"unit\":\"tokens/s\",\"step_ms\":{step_ms}}}\n"
            ))
        };
        results.add(&ENTRANTS[0], rows(100.0, ""));
        results.add(&ENTRANTS[2], rows(80.0, "b1234"));
        results.fail(Engine::Candle, "q4", &"no such file");
        results
    }

    #[test]
    fn a_peer_stands_beside_the_decoder_with_the_same_weights() {
        let text = text(&results(), &HEAD);
        let row = |engine: &str| {
            let line = text.lines().find(|line| line.starts_with(engine));
            line.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let (serve, peer) = (row("serve").unwrap(), row("llama.cpp").unwrap());
        assert_eq!(serve, "serve bf16 988 - - - 160.0 100.0 ms");
        assert_eq!(peer, "llama.cpp bf16 988 - - - 200.0 80.0 ms 1.25x");
        assert!(text.contains("\nllama.cpp: b1234\n"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let why = "NOT MEASURED: candle in q4: no such file";
        assert!(text(&results(), &HEAD).contains(why));
        let last = json(&results(), &HEAD);
        let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
        assert_eq!(last["name"], "not_measured");
        assert_eq!(last["weights"], "q4");
    }

    #[test]
    fn rows_say_whose_they_are() {
        let lines = json(&results(), &HEAD);
        let rows = Figure::parse(&lines);
        let peer = rows
            .iter()
            .filter(|row| row.name == "decode_16")
            .nth(1)
            .unwrap();
        assert_eq!(peer.more["engine"], "llama.cpp");
        assert_eq!(peer.number(), Some(200.0));
        assert_eq!(peer.more["of_serve"], 1.25);
    }
}
