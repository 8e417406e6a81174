//! The commands that check and measure a decoder: what they print and how they exit.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file or folder of serve-model.
fn of_model(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../crates/serve-model")
        .join(path)
}

/// A tiny model with golden outputs.
fn folder(name: &str) -> PathBuf {
    of_model("tests/fixtures").join(name)
}

/// A file of the text test data.
fn data(name: &str) -> PathBuf {
    of_model("tests/data/text").join(name)
}

/// What a command of the lab prints, and how it exits.
fn lab<S: AsRef<OsStr>>(command: &[&str], arguments: impl IntoIterator<Item = S>) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
    lab.args(command).args(arguments).output().unwrap()
}

fn check_model(arguments: &[PathBuf]) -> Output {
    lab(&["check-model"], arguments)
}

fn check_tokenizer(dir: &Path, golden: &Path) -> Output {
    lab(&["check-tokenizer"], [dir, golden])
}

fn last_line(output: &Output) -> &str {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().last().unwrap_or_default()
}

#[test]
fn a_good_model_passes_every_case() {
    let output = check_model(&[folder("tiny-qwen3-untied-bf16")]);
    assert_eq!(last_line(&output), "12 passed, 0 failed");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn quantised_weights_pass_within_their_tolerance() {
    let trained = of_model("models/austen-2m");
    let check = |model: &PathBuf, quantize: &str| {
        let output = check_model(&[model.clone(), "--quantize".into(), quantize.into()]);
        let passed = last_line(&output).to_owned();
        (output.status.code(), passed)
    };
    assert_eq!(
        check(&trained, "q8"),
        (Some(0), "8 passed, 0 failed".into())
    );
    assert_eq!(
        check(&trained, "q4"),
        (Some(0), "8 passed, 0 failed".into())
    );
    // Of random weights four bits leave too little, and the command says so.
    let (code, passed) = check(&folder("tiny-qwen2"), "q4");
    assert_eq!(code, Some(1), "{passed}");
    assert_eq!(check(&trained, "q5").0, Some(2));
}

#[test]
fn another_models_golden_outputs_fail() {
    let golden = folder("tiny-llama").join("golden.json");
    let output = check_model(&[folder("tiny-qwen2"), golden]);
    // Tokenizer and template are the same in both.
    assert_eq!(last_line(&output), "7 passed, 5 failed");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn steps_with_a_small_margin_may_differ_in_a_file_of_cases() {
    let golden = std::fs::read_to_string(folder("tiny-qwen2").join("golden.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_str(&golden).unwrap();
    let mut case = golden["prompts"][1].clone();
    let check = |case: &serde_json::Value, name: &str| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("cases-{name}-{}.json", std::process::id()));
        let file = serde_json::json!({ "cases": [case] });
        std::fs::write(&path, file.to_string()).unwrap();
        let output = check_model(&[folder("tiny-qwen2"), path.clone()]);
        std::fs::remove_file(path).unwrap();
        output.status.code()
    };
    assert_eq!(check(&case, "same"), Some(0));
    case["greedy"][3] = serde_json::json!(0);
    case["margins"][3] = serde_json::json!(0.5);
    assert_eq!(check(&case, "wide"), Some(1));
    case["margins"][3] = serde_json::json!(0.04);
    assert_eq!(check(&case, "narrow"), Some(0));
}

#[test]
fn what_cannot_be_used_is_an_error_of_its_own() {
    let output = check_model(&["no/such/model".into(), "no/such/golden".into()]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot read no/such/golden"), "{error}");
}

#[test]
fn speeds_are_one_object_a_line() {
    let output = lab(&["speed", "decode"], ["embedded", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(row["value"].as_f64().unwrap() > 0.0, "{line}");
        // Only a decode step is held against the memory's own speed.
        let name = row["name"].as_str().unwrap().to_owned();
        assert_eq!(
            row["times_floor"].is_f64(),
            name.starts_with("decode"),
            "{line}"
        );
        (name, row["unit"].as_str().unwrap().to_owned())
    });
    let expected = [
        ("weights", "MB"),
        ("read_bandwidth", "GB/s"),
        ("prefill_128", "tokens/s"),
        ("decode_1", "tokens/s"),
        ("decode_4", "tokens/s"),
        ("decode_16", "tokens/s"),
    ];
    let expected = expected.map(|(name, unit)| (name.to_owned(), unit.to_owned()));
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

#[test]
fn golden_cases_of_three_real_tokenizers_pass() {
    for (dir, golden) in [
        ("qwen2.5", "qwen_golden.json"),
        ("qwen3", "qwen_golden.json"),
        ("smollm2", "smollm2_golden.json"),
    ] {
        let output = check_tokenizer(&data(dir), &data(golden));
        let lines = String::from_utf8_lossy(&output.stdout);
        assert_eq!(last_line(&output), "87 passed, 0 failed", "{dir}:\n{lines}");
        assert!(output.status.success());
    }
}

#[test]
fn golden_cases_of_the_small_models_pass() {
    for (folder, cases) in [
        ("tests/fixtures/tiny-qwen2", 7),
        ("tests/fixtures/tiny-llama-v5", 7),
        ("models/austen-2m", 8),
    ] {
        let dir = of_model(folder);
        let output = check_tokenizer(&dir, &dir.join("golden.json"));
        let lines = String::from_utf8_lossy(&output.stdout);
        let expected = format!("{cases} passed, 0 failed");
        assert_eq!(last_line(&output), expected, "{folder}:\n{lines}");
    }
}

#[test]
fn the_check_fails_on_another_models_cases() {
    let arguments = [data("qwen2.5"), data("qwen_golden.json"), "qwen3".into()];
    let output = lab(&["check-tokenizer"], arguments);
    // The texts agree but for the thinking and tool response tokens; the default system prompt differs.
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8_lossy(&output.stdout);
    assert!(lines.contains("FAILED  chat: user: prompt: expected"));
    let none = check_tokenizer(&data("qwen2.5"), &data("smollm2_golden.json"));
    assert_eq!(none.status.code(), Some(2));
    let message = String::from_utf8_lossy(&none.stderr);
    assert!(message.contains("has no tokenizer case for qwen2.5"));
}

#[test]
fn a_command_lists_the_known_random_shapes() {
    let output = lab(&["speed", "decode"], ["random:qwen"]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("random weights are made for qwen2.5-0.5b, qwen2.5-1.5b"),
        "{error}"
    );
}
