//! The committed example: rows of a real run, from which everything that is said of them is computed
//! again. A number that drifts fails here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serve_bench::analysis::definitions::Metric;
use serve_bench::analysis::histograms::Histograms;
use serve_bench::analysis::summary;
use serve_bench::analysis::table::Table;
use serve_bench::analysis::{Analysis, AnalysisOptions};
use serve_bench::store::folder::{Run, RunFolder, sha256};
use serve_bench::store::manifest::{Manifest, Source};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples-data/batching")
        .join(name)
}

fn bench(args: &[&str], paths: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_serve-bench"));
    command.args(args).args(paths).output().unwrap()
}

fn printed(args: &[&str], paths: &[&Path]) -> String {
    let output = bench(args, paths);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn runs(name: &str) -> Vec<Run> {
    let folders = RunFolder::all_in(&example(name)).unwrap();
    folders
        .iter()
        .map(|folder| folder.open().unwrap())
        .collect()
}

/// A copy of the example in a folder of its own, which is gone afterwards.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("serve-bench-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        for side in ["batch-1", "batch-8"] {
            for folder in RunFolder::all_in(&example(side)).unwrap() {
                let to = path.join(side).join(folder.path().file_name().unwrap());
                fs::create_dir_all(&to).unwrap();
                for file in [folder.rows(), folder.manifest()] {
                    fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
                }
            }
        }
        Self(path)
    }

    /// Changes every manifest.
    fn edit(&self, edit: impl Fn(&mut Manifest)) {
        for side in ["batch-1", "batch-8"] {
            for folder in RunFolder::all_in(&self.0.join(side)).unwrap() {
                let mut manifest = Manifest::read(&folder.manifest()).unwrap();
                edit(&mut manifest);
                manifest.write(&folder.manifest()).unwrap();
            }
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_tables_are_computed_again_to_the_digit() {
    for side in ["batch-1", "batch-8"] {
        let expected = fs::read_to_string(example(&format!("{side}.txt"))).unwrap();
        let found = printed(&["analyse"], &[&example(side)]);
        assert_eq!(
            found, expected,
            "serve-bench analyse examples-data/batching/{side}"
        );
    }
    let expected = fs::read_to_string(example("compare.txt")).unwrap();
    let found = printed(&["compare"], &[&example("batch-1"), &example("batch-8")]);
    assert_eq!(found, expected, "serve-bench compare batch-1 batch-8");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (one, eight) = (example("batch-1"), example("batch-8"));
    let specs = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs/chat.toml");
    let commands: [(&[&str], &[&Path]); 5] = [
        (&["analyse"], &[&one]),
        (&["analyse", "--json"], &[&one]),
        (&["compare"], &[&one, &eight]),
        (&["workload", "--print", "100000"], &[&specs]),
        (&["simulate"], &[&specs]),
    ];
    for (args, paths) in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_serve-bench"));
        command.args(args).args(paths);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && error.is_empty(),
            "{args:?}: {error}"
        );
    }
}

#[test]
fn accounting_holds_in_every_run() {
    for run in ["batch-1", "batch-8"].into_iter().flat_map(runs) {
        let analysis = Analysis::of(std::slice::from_ref(&run), &AnalysisOptions::default());
        let all = analysis.all();
        for counts in [all.requests, all.attempts] {
            assert_eq!(counts.scheduled(), counts.sent() + counts.not_sent);
            let ends = counts.ok + counts.refused + counts.failed + counts.cancelled;
            assert_eq!(counts.sent(), ends);
        }
        assert_eq!(all.attempts.scheduled(), run.records.len() as u64);
        assert_eq!(all.requests.scheduled(), run.manifest.workload.requests);
    }
}

#[test]
fn a_changed_row_is_noticed_and_changes_the_numbers() {
    let copy = Copy::new("drift");
    let before = printed(&["analyse"], &[&copy.0.join("batch-8")]);
    let folder = RunFolder::all_in(&copy.0.join("batch-8"))
        .unwrap()
        .remove(0);
    let rows = fs::read_to_string(folder.rows()).unwrap();
    let changed = rows.replacen("\"outcome\":\"ok\"", "\"outcome\":\"failed\"", 1);
    assert_ne!(rows, changed);
    fs::write(folder.rows(), changed).unwrap();
    let refused = bench(&["analyse"], &[folder.path()]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.contains("these are not the rows of that run"),
        "{error}"
    );

    let mut manifest = Manifest::read(&folder.manifest()).unwrap();
    manifest.artifact.rows_sha256 = sha256(&folder.rows()).unwrap();
    manifest.write(&folder.manifest()).unwrap();
    assert_ne!(printed(&["analyse"], &[&copy.0.join("batch-8")]), before);
}

#[test]
fn a_report_holds_every_number_of_the_tables_and_nothing_foreign() {
    let copy = Copy::new("report");
    let one = RunFolder::all_in(&copy.0.join("batch-1"))
        .unwrap()
        .remove(0);
    printed(&["report"], &[one.path()]);
    let html = fs::read_to_string(one.report()).unwrap();
    let analysis = Analysis::of(&[one.open().unwrap()], &AnalysisOptions::default());
    holds(&html, &summary::times(&analysis));
    holds(&html, &summary::parts(&analysis).unwrap());
    for title in [
        "Where the time goes for one request",
        "In flight",
        "TTFT: distribution",
    ] {
        assert!(html.contains(title), "{title}");
    }
    printed(&["report"], &[&copy.0]);
    let html = fs::read_to_string(copy.0.join("report.html")).unwrap();
    let sides = ["batch-1", "batch-8"];
    let analyses = sides.map(|side| Analysis::of(&runs(side), &AnalysisOptions::default()));
    holds(&html, &summary::beside(sides.into_iter().zip(&analyses)));
    assert!(
        html.contains("B (batch-8) against A (batch-1): better"),
        "the verdict"
    );
    for foreign in ["http://www", "https://", "<script", "src=", "url("] {
        assert!(!html.contains(foreign), "{foreign}");
    }
}

fn holds(html: &str, table: &Table) {
    for cell in table.columns.iter().chain(table.rows.iter().flatten()) {
        let cell = cell.replace('/', "&#x2f;");
        let found = ["td", "th"]
            .iter()
            .any(|tag| html.contains(&format!(">{cell}</{tag}>")));
        assert!(found, "{cell}");
    }
}

#[test]
fn simulated_rows_are_labelled_everywhere() {
    let copy = Copy::new("simulated");
    copy.edit(|manifest| manifest.source = Source::Simulated);
    let sides = ["batch-1", "batch-8"].map(|side| copy.0.join(side));
    let [a, b] = [&*sides[0], &*sides[1]];
    let text = printed(&["analyse"], &[a]);
    assert!(text.starts_with("SIMULATED"), "{text}");
    let text = printed(&["compare"], &[a, b]);
    assert!(text.starts_with("SIMULATED"), "{text}");
    for json in [
        printed(&["analyse", "--json"], &[a]),
        printed(&["compare", "--json"], &[a, b]),
    ] {
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["source"], "simulated");
    }
    for report in [&copy.0, &RunFolder::all_in(a).unwrap()[0].path().to_owned()] {
        printed(&["report"], &[report]);
        let html = fs::read_to_string(report.join("report.html")).unwrap();
        assert!(html.contains("<b>SIMULATED</b>"));
        let titles = html.matches("<figure>").count();
        assert_eq!(html.matches(" (simulated)</h3>").count(), titles);
        assert!(titles > 1);
    }
    // One simulated row is enough, whatever the manifest says.
    copy.edit(|manifest| manifest.source = Source::Http);
    assert!(printed(&["analyse"], &[a]).starts_with("requests"));
    let mut run = runs("batch-1").remove(0);
    run.records[3].source = Source::Simulated;
    let analysis = Analysis::of(&[run], &AnalysisOptions::default());
    assert_eq!(analysis.source, Source::Simulated);
}

#[test]
fn runs_of_several_sources_each_say_what_they_are() {
    let named = |source| {
        let mut run = runs("batch-8").remove(0);
        run.manifest.source = source;
        Analysis::of(&[run], &AnalysisOptions::default())
    };
    let [http, inside] = [Source::Http, Source::InProcess].map(named);
    let alone = summary::beside([("a", &http)]).text();
    assert!(!alone.contains("(http)"), "{alone}");
    let both = summary::beside([("a", &http), ("b", &inside)]).text();
    assert!(
        both.contains("a (http)") && both.contains("b (in process)"),
        "{both}"
    );
    let text = summary::text(&inside);
    assert!(text.starts_with("IN PROCESS"), "{text}");
}

#[test]
fn what_may_not_be_compared_is_named() {
    let copy = Copy::new("incomparable");
    let [a, b] = ["batch-1", "batch-8"].map(|side| copy.0.join(side));
    for folder in RunFolder::all_in(&b).unwrap() {
        let mut manifest = Manifest::read(&folder.manifest()).unwrap();
        manifest.model.name = "another".to_owned();
        manifest.write(&folder.manifest()).unwrap();
    }
    let refused = bench(&["compare"], &[&a, &b]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        error.contains("model: name is \"mock\" in A and \"another\" in B"),
        "{error}"
    );
    assert!(error.contains("--allow model"), "{error}");
    let text = printed(&["compare", "--allow", "model"], &[&a, &b]);
    assert!(text.contains("B is better"), "{text}");
    let mixed = bench(&["analyse"], &[&a, &b]);
    let error = String::from_utf8_lossy(&mixed.stderr).into_owned();
    assert!(
        error.contains("no repeats of each other: model: name"),
        "{error}"
    );
}

#[test]
fn histograms_of_two_runs_add_up_to_those_of_both() {
    let runs = runs("batch-8");
    let copy = Copy::new("histograms");
    let folders = RunFolder::all_in(&copy.0.join("batch-8")).unwrap();
    let mut sum = Histograms::default();
    for (run, folder) in runs.iter().zip(&folders) {
        Histograms::keep(run, folder).unwrap();
        sum.merge(&Histograms::read(&fs::read(folder.histograms()).unwrap()).unwrap());
    }
    let analysis = Analysis::of(&runs, &AnalysisOptions::default());
    let exact = analysis.all().distribution(Metric::E2e).unwrap();
    let classes = ["paid", "free"].map(|class| sum.get(Metric::E2e, Some(class)).unwrap());
    assert_eq!(
        classes.iter().map(|it| it.len()).sum::<u64>(),
        exact.count as u64
    );
    let most = classes.iter().map(|it| it.max()).max().unwrap() as f64 / 1e3;
    assert!((most / exact.max_ms.unwrap() - 1.0).abs() < 1e-3);
}
#[test]
fn the_docs_define_the_same_words() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serve-bench.md");
    let page = fs::read_to_string(page).unwrap();
    let table = summary::definitions().markdown();
    assert!(
        page.contains(&table),
        "docs/serve-bench.md must hold this table:\n{table}"
    );
}
