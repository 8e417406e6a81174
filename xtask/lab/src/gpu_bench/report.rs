//! The report: what was run on what, how each stage ended, every row, and the ratios that are read first.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;
use serve_bench::analysis::table::Table;
use serve_bench::figure::Figure;

use super::folder::Record;
use super::stages::Stage;

/// Markdown. `label` says what the run is not; a stage without a record was not run.
pub(super) fn report(
    manifest: &Value,
    label: Option<String>,
    stages: &[(Stage, Option<Record>)],
) -> String {
    let mut out = String::from("# GPU benchmark\n\n");
    if let Some(label) = label {
        let _ = writeln!(out, "**{label}**\n");
    }
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let hardware = &manifest["hardware"];
    let gpu = match &hardware["gpu"] {
        Value::Null => "none".to_owned(),
        gpu => format!(
            "{}, driver {}, {} MiB ({} free at the start)",
            text(&gpu["name"]),
            text(&gpu["driver"]),
            gpu["memory_mib"],
            gpu["free_mib"]
        ),
    };
    let plan = &manifest["plan"];
    let _ = writeln!(out, "- GPU: {gpu}");
    let _ = writeln!(
        out,
        "- host: {}, {} cores",
        text(&hardware["cpu"]),
        hardware["cores"]
    );
    let _ = writeln!(
        out,
        "- device: {}, commit {}",
        text(&plan["device"]),
        text(&plan["commit"])
    );
    if plan["smoke"] == true {
        let _ = writeln!(out, "- smoke run: few repeats, not for quoting");
    }
    let mut table = Table::new("", &["stage", "what", "ended", "seconds", "cause"]);
    for (stage, record) in stages {
        let (ended, seconds, cause) = match record {
            Some(record) => (
                format!("{:?}", record.status).to_lowercase(),
                format!("{:.0}", record.seconds),
                record.cause.clone().unwrap_or_default(),
            ),
            None => ("not run".to_owned(), String::new(), String::new()),
        };
        let cause = cause.replace('\n', " ");
        table.row([stage.name, stage.what, &ended, &seconds, &cause]);
    }
    let _ = write!(out, "\n## Stages\n\n{}", table.markdown());
    let rows = |name: &str| {
        let found = stages.iter().find(|(stage, _)| stage.name == name);
        let record = found.and_then(|(_, record)| record.as_ref());
        record.map_or(&[][..], |record| record.rows.as_slice())
    };
    headlines(rows("steps"), rows("peer"), &mut out);
    for (stage, record) in stages {
        let Some(record) = record.as_ref().filter(|record| !record.rows.is_empty()) else {
            continue;
        };
        let _ = writeln!(out, "\n## {}: {}\n", stage.name, stage.what);
        out.push_str(&of_rows(&record.rows).markdown());
    }
    out
}

/// The ratios that the decoder is judged by: batch 16 against batch 1, and against the peer.
fn headlines(steps: &[Figure], peer: &[Figure], out: &mut String) {
    let of = |rows: &[Figure], name: &str, model: &Value| {
        let mut found = rows
            .iter()
            .filter(|row| row.name == name && &row.more["model"] == model);
        found.next().and_then(Figure::number)
    };
    let models: BTreeSet<String> = steps
        .iter()
        .map(|row| row.more["model"].to_string())
        .collect();
    let mut lines = String::new();
    for model in models {
        let Ok(value) = serde_json::from_str::<Value>(&model) else {
            continue;
        };
        let step = |batch: u32| {
            of(steps, &format!("decode_{batch}"), &value).map(|rate| f64::from(batch) / rate)
        };
        if let (Some(one), Some(sixteen)) = (step(1), step(16)) {
            let _ = writeln!(
                lines,
                "- {model}: a step of 16 costs {:.2}x a step of 1",
                sixteen / one
            );
        }
        let ours = of(steps, "decode_16", &value);
        if let (Some(ours), Some(theirs)) = (ours, of(peer, "peer_static_16", &value)) {
            let _ = writeln!(
                lines,
                "- {model}: {ours:.0} tokens/s of decode at batch 16; transformers' static batches of 16, prompts \
                 included: {theirs:.0}",
            );
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "\n## First of all\n\n{lines}");
    }
}

fn of_rows(rows: &[Figure]) -> Table {
    let keys = rows.iter().flat_map(|row| row.more.keys());
    let keys: BTreeSet<&str> = keys.map(String::as_str).collect();
    let columns = ["name", "value", "unit"]
        .into_iter()
        .chain(keys.iter().copied());
    let mut table = Table::new("", &columns.collect::<Vec<_>>());
    for row in rows {
        let own = [row.name.clone(), cell(&row.value), row.unit.clone()];
        let more = keys
            .iter()
            .map(|key| row.more.get(*key).map_or_else(String::new, cell));
        table.row(own.into_iter().chain(more));
    }
    table
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(value) => value.as_f64().map_or_else(String::new, number),
        other => other.to_string(),
    }
}

/// Four significant digits, whole numbers as they are.
fn number(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e9 {
        return format!("{value}");
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6);
    format!("{value:.*}", digits as usize)
}

#[cfg(test)]
mod tests {
    use super::super::folder::Status;
    use super::super::stages::STAGES;
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_keep_four_digits() {
        let shown = [0.000_123_4, 0.2312, 1.10956, 16.25, 1234.5, 64.0].map(number);
        assert_eq!(
            shown,
            ["0.000123", "0.2312", "1.110", "16.25", "1234", "64"]
        );
    }

    #[test]
    fn a_report_shows_what_was_run_what_was_not_and_the_ratios() {
        let rows = Figure::parse(
            "{\"name\":\"decode_1\",\"value\":100,\"unit\":\"tokens/s\",\"model\":\"m\"}\n\
             {\"name\":\"decode_16\",\"value\":1280,\"unit\":\"tokens/s\",\"model\":\"m\",\"context\":192}\n",
        );
        let record = Record {
            status: Status::Passed,
            cause: None,
            seconds: 12.3,
            rows,
        };
        let stages = STAGES.map(|stage| (stage, (stage.name == "steps").then(|| record.clone())));
        let manifest = json!({
            "plan": {"device": "cpu", "commit": "abc", "smoke": true},
            "hardware": {"gpu": null, "cpu": "a processor", "cores": 2},
        });
        let text = report(&manifest, Some("REHEARSAL".to_owned()), &stages);
        for expected in [
            "**REHEARSAL**",
            "- GPU: none\n",
            "- device: cpu, commit abc\n",
            "| steps | step times against batch and context, and the memory's own speed | passed | 12 |  |",
            "| peer | Hugging Face transformers on the same shape | not run |  |  |",
            "- \"m\": a step of 16 costs 1.25x a step of 1\n",
            "| decode_16 | 1280 | tokens/s | 192 | m |",
        ] {
            assert!(text.contains(expected), "{expected:?} is not in\n{text}");
        }
    }
}
