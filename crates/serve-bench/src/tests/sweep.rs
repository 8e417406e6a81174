//! The search for the last passing load: against the simulation of a device whose capacity is known, and
//! through folders against a server.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use crate::analysis::delivered::Delivered;
use crate::analysis::{Analysis, AnalysisOptions};
use crate::experiments::series::{Series, Servers};
use crate::experiments::servers::ServerSettings;
use crate::experiments::simulate::{self, ServerModel, Simulation};
use crate::experiments::sweep::search::{Goal, Judged, Measured, Search, Why};
use crate::experiments::sweep::simulated::{Pretended, SweepError};
use crate::experiments::sweep::{Axis, Loads, Results, Sweep, last_passing, paths};
use crate::workload::Workload;
use crate::workload::spec::Spec;
use serve_core::Span;
use tokio::sync::watch;

use crate::tests::server::{Server, end, head, text};

fn goal(from_per_s: f64) -> Goal {
    Goal {
        from_per_s,
        least_per_s: from_per_s / 1e3,
        most_per_s: 10_000.0,
        resolution: 0.05,
        pass_share: 0.99,
        repeats: 1,
        repeats_max: 3,
    }
}

/// What a simulated run at a load says, on a device that does steps of eight answers.
fn simulated(load: f64, repeat: u32) -> Measured {
    const DEVICE: &str = "max_batch = 8\nmock_decode_us = [\"1=10000\", \"8=10000\"]\nmock_prefill_us = 0\n\
         mock_context_us = 0\nqueue_cap = 0\nprefix_cache = false\n";
    let text = format!(
        "seed = {repeat}\nrequests = 2000\n[arrivals.constant]\nrate_per_s = {load}\n[[prompts]]\n\
         name = \"one\"\ntokens = {{ fixed = 4 }}\noutput_tokens = {{ fixed = 20 }}\n\
         [request]\nendpoint = \"token_ids\"\nvocabulary = {{ min = 256, max = 1000 }}\n\
         ignore_eos = true\n[slo]\ne2e_ms = 600\n"
    );
    let workload = Workload::new(Spec::parse("test", &text).unwrap(), Path::new("")).unwrap();
    let model = ServerModel::new(&ServerSettings::from_toml(DEVICE).unwrap()).unwrap();
    let how = Simulation {
        edge: Span::ZERO,
        folder: None,
    };
    let (run, _) = simulate::run(&workload, &model, &how).unwrap();
    let void = !Delivered::of_run(&run).void.is_empty();
    let analysis = Analysis::of(&[run], &AnalysisOptions::default());
    Measured {
        good: analysis.all().good,
        requests: analysis.all().requests.scheduled(),
        answers_per_s: analysis.rates.answers_per_s,
        void,
    }
}

#[test]
fn the_known_capacity_of_a_simulated_device_is_found_from_below_and_from_above() {
    // Eight answers of 20 steps of 10 ms each: 40 a second. The objective leaves room for a queue of
    // 400 ms, 16 requests, of 2,000: a load that is 1% too high fails.
    let capacity = 40.0;
    for from in [1.0, 38.0, 3_000.0] {
        let mut search = Search::new(goal(from));
        while let Some(next) = search.next() {
            search.saw(next, simulated(next.load, next.repeat));
        }
        let found = search.found();
        let (passes, stops) = (found.passes.unwrap(), found.stops_at.unwrap());
        assert!(
            passes <= 1.01 * capacity && capacity / 1.05 <= passes,
            "{found:?}"
        );
        assert!(stops.0 <= 1.051 * passes, "{found:?}");
        assert_eq!(stops.1, Judged::Fails);
        assert!(search.path().len() <= 16, "{:?}", search.path());
    }
}

fn out(name: &str) -> PathBuf {
    let out = super::scratch(name);
    // Left by an earlier run of this test.
    let _ = std::fs::remove_dir_all(&out);
    out
}

/// A search of a few requests at each load; its client is never too late.
fn sweep(limits: &str) -> Sweep {
    let text = format!(
        "requests = 4\n[arrivals.constant]\nrate_per_s = 1\n[slo]\ne2e_ms = 600000\n\
         [measure.delivery]\n{limits}"
    );
    Sweep {
        spec: Spec::parse("test", &text).unwrap(),
        axes: Vec::new(),
        loads: Loads::Search(Goal {
            most_per_s: 400.0,
            ..goal(200.0)
        }),
        repeats: 1,
        pass_share: 0.99,
    }
}

async fn run(sweep: &Sweep, server: &Server, out: &Path) -> (Results, usize) {
    let (_keep, stop) = watch::channel(false);
    let servers = Servers::Running {
        url: server.url(),
        model: Some("m".to_owned()),
        api_key: None,
    };
    let mut series = Series::new(servers, out, Path::new(""), stop);
    let mut changes = 0;
    let results = sweep.run(&mut series, |_| changes += 1).await.unwrap();
    (results, changes)
}

#[tokio::test]
async fn a_search_measures_into_folders_says_its_path_and_goes_on_where_it_was() {
    let server = Server::start(vec![vec![head(), text(0, "a"), end(1)]]).await;
    let out = out("sweep-search");
    let patient = "rate_share_min = 0\nlag_p99_ms_max = 1e9\ngap_distance_max = 2\n";
    let (results, changes) = run(&sweep(patient), &server, &out).await;
    assert!(results.whole && !results.is_void());
    let [searched] = &results.searches[..] else {
        panic!("{results:?}");
    };
    let path = searched.path.iter().map(|step| (step.load, step.why));
    let expected = [(200.0, Why::First), (400.0, Why::Up), (400.0, Why::Confirm)];
    assert_eq!(path.collect::<Vec<_>>(), expected);
    assert_eq!(changes, 1 + expected.len());
    let loads = results
        .lines
        .iter()
        .map(|line| line.load)
        .collect::<Vec<_>>();
    assert_eq!(loads, [Some(200.0), Some(400.0)]);
    assert_eq!(results.lines[1].folders, ["load=400_r0", "load=400_r1"]);
    assert_eq!(results.lines[1].analysis.all().requests.scheduled(), 8);
    let table = last_passing(&results).text();
    assert!(table.contains("all pass"), "{table}");
    let table = paths(&results.searches)[0].text();
    assert!(table.contains("again: an end of the answer"), "{table}");

    let sent = server.bodies.lock().unwrap().len();
    let (again, _) = run(&sweep(patient), &server, &out).await;
    assert_eq!(again.searches[0].path, searched.path);
    assert_eq!(server.bodies.lock().unwrap().len(), sent, "nothing is sent");
}

#[tokio::test]
async fn a_load_that_the_client_never_delivered_passes_nowhere() {
    let server = Server::start(vec![vec![head(), text(0, "a"), end(1)]]).await;
    // No client is on time to the nanosecond.
    let mut sweep = sweep("lag_p99_ms_max = 0\n");
    if let Loads::Search(goal) = &mut sweep.loads {
        goal.least_per_s = 100.0;
    }
    let (results, _) = run(&sweep, &server, &out("sweep-void")).await;
    assert!(results.is_void());
    let found = results.searches[0].found;
    assert_eq!(found.passes, None);
    assert_eq!(found.stops_at, Some((100.0, Judged::Void)));
    assert!(
        results
            .lines
            .iter()
            .all(|line| line.judged == Some(Judged::Void))
    );
    assert!(results.lines.iter().all(|line| line.folders.len() == 3));
    let table = last_passing(&results).text();
    assert!(table.contains("none passes"), "{table}");
}

#[test]
fn a_simulated_sweep_says_the_same_on_any_number_of_threads() {
    let text = "seed = 1\nrequests = 60\n[arrivals.poisson]\nrate_per_s = 10\n[[prompts]]\n\
         name = \"one\"\ntokens = { fixed = 4 }\noutput_tokens = { fixed = 20 }\n\
         [request]\nendpoint = \"token_ids\"\nvocabulary = { min = 256, max = 1000 }\n\
         ignore_eos = true\n[slo]\ne2e_ms = 600\n";
    let axis = Axis {
        name: "max_batch".to_owned(),
        values: vec!["1".to_owned(), "8".to_owned()],
    };
    let mut sweep = Sweep {
        spec: Spec::parse("test", text).unwrap(),
        axes: vec![axis],
        loads: Loads::Rates(vec![1.0, 5.0, 40.0]),
        repeats: 2,
        pass_share: 0.99,
    };
    let folder = std::env::temp_dir().join(format!("simulated-sweep-{}", std::process::id()));
    let on = |sweep: &Sweep, threads: usize| {
        let out = folder.join(threads.to_string());
        let how = Pretended {
            base: ServerSettings::default().with("queue_cap", "5"),
            out: &out,
            files: Path::new(""),
            threads: NonZeroUsize::new(threads).unwrap(),
        };
        sweep.simulate(&how)
    };
    let said = |results: &Results| serde_json::to_string(results).unwrap();
    let alone = on(&sweep, 1).unwrap();
    let names = alone.lines.iter().map(|line| line.folders[1].as_str());
    let expected = [
        "1_load=1",
        "1_load=5",
        "1_load=40",
        "8_load=1",
        "8_load=5",
        "8_load=40",
    ];
    let expected = expected.map(|point| format!("max_batch={point}_r1"));
    assert!(names.eq(expected.iter()), "{alone:?}");
    let good = |line: usize| alone.lines[line].analysis.all().good;
    assert!(
        good(2) < good(5),
        "a batch of eight keeps more of 40 requests/s in time"
    );
    for threads in [2, 5, 100] {
        assert_eq!(
            said(&on(&sweep, threads).unwrap()),
            said(&alone),
            "{threads}"
        );
    }
    sweep.loads = Loads::Search(goal(10.0));
    assert!(matches!(on(&sweep, 2), Err(SweepError::Search)));
    std::fs::remove_dir_all(folder).unwrap();
}
