//! The medians as a table, or as one JSON object a line.

use std::fmt::Write;

use serde_json::{Value, json};

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
    let _ = write!(out, "{:<22} {:<7} {:>5}", "engine", "weights", "MB");
    for (_, title, _) in STEPS {
        let _ = write!(out, " {title:>24}");
    }
    out.push('\n');
    let mut group = "";
    for entrant in &ENTRANTS {
        if entrant.group != group {
            group = entrant.group;
            out.push('\n');
        }
        let megabytes = results.rows(entrant, "weights").next();
        let megabytes = megabytes.map_or_else(|| "-".to_owned(), |row| format!("{:.0}", row.value));
        let _ = write!(
            out,
            "{:<22} {:<7} {megabytes:>5}",
            entrant.engine.name(),
            entrant.weights
        );
        for (name, _, tokens) in STEPS {
            let _ = write!(out, " {:>24}", cell(results, entrant, name, tokens));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
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
        let (name, percent) = (entrant.engine.name(), row.value * 100.0);
        Some(format!("{name} {} {percent:.1}%", entrant.weights))
    });
    percent.collect::<Vec<_>>().join(", ")
}

/// One object a line: name, value, unit, engine, weights; of a step its time, and what it is of serve's.
pub(super) fn json(results: &Results, head: &Head) -> String {
    let mut lines = Vec::new();
    for (engine, version) in versions(results, head) {
        lines.push(json!({
            "name": "version", "value": version, "engine": engine.name(), "shape": head.shape,
            "threads": head.threads, "rounds": head.rounds,
        }));
    }
    for entrant in &ENTRANTS {
        let mut row = |name: &str, value: f64, unit: &str, more: &[(&str, f64)]| {
            let mut row = json!({
                "name": name, "value": value, "unit": unit, "engine": entrant.engine.name(),
                "weights": entrant.weights,
            });
            for (key, value) in more {
                row[*key] = json!(value);
            }
            lines.push(row);
        };
        for name in ["weights", "deviation"] {
            if let Some(found) = results.rows(entrant, name).next() {
                row(name, found.value, &found.unit, &[]);
            }
        }
        for (name, _, tokens) in STEPS {
            if let Some(ms) = results.step_ms(entrant, name) {
                let more = [
                    ("step_ms", Some(ms)),
                    ("of_serve", of_serve(results, entrant, name)),
                ];
                let more = more
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value?)));
                let more = more.collect::<Vec<_>>();
                row(name, rate(tokens, ms), "tokens/s", &more);
            }
        }
    }
    for (engine, weights, why) in &results.failures {
        lines.push(json!({
            "name": "not_measured", "value": why, "engine": engine.name(), "weights": weights,
        }));
    }
    let line = |line: &Value| format!("{line}\n");
    lines.iter().map(line).collect()
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
    use crate::gpu_bench::Row;

    const HEAD: Head = Head {
        shape: "qwen2.5-0.5b",
        rounds: 1,
        threads: 2,
        serve: "0.1.0",
    };

    fn results() -> Results {
        let mut results = Results::default();
        let rows = |step_ms: f64, version: &str| {
            Row::parse(&format!(
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
        let rows = Row::parse(&lines);
        let peer = rows
            .iter()
            .filter(|row| row.name == "decode_16")
            .nth(1)
            .unwrap();
        assert_eq!(peer.more["engine"], "llama.cpp");
        assert_eq!(peer.value, 200.0);
        assert_eq!(peer.more["of_serve"], 1.25);
    }
}
