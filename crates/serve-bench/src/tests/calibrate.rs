//! A calibration without a clock: the loads of a plan through the simulation of a device whose step
//! times are known, observed and fitted as if they had been measured.

use std::path::Path;

use crate::experiments::calibrate::{Fit, Observation, Range, Verdict, observe, settings_file};
use crate::experiments::servers::ServerSettings;
use crate::experiments::simulate::{ServerModel, Simulation, run};
use crate::store::record::Record;
use crate::workload::Workload;
use crate::workload::spec::{Spec, Vocabulary};
use serve_core::Span;

const TRUTH: &str = "max_batch = 8\nmock_decode_us = [\"1=9000\", \"2=9400\", \"4=10000\", \"8=13000\"]\n\
    mock_prefill_us = 80\nmock_context_us = 1.5\n";

fn range() -> Range {
    Range {
        batches: vec![1, 2, 4, 8],
        context_max: 640,
        step_tokens: 512,
        vocabulary: Vocabulary {
            min: 256,
            max: 1_000,
        },
        rounds: 2,
        seed: 3,
    }
}

fn rows(spec: Spec, settings: &str, edge: Span) -> Vec<Record> {
    let settings = ServerSettings::from_toml(settings)
        .unwrap()
        .with("prefix_cache", "false");
    let model = ServerModel::new(&settings).unwrap();
    let workload = Workload::new(spec, Path::new("")).unwrap();
    let how = Simulation { edge, folder: None };
    run(&workload, &model, &how).unwrap().0.records
}

fn observations(edge: Span) -> Vec<Observation> {
    let range = range();
    let each = range.loads().into_iter().flat_map(|load| {
        let rows = rows(load.spec, TRUTH, edge);
        match load.id.starts_with("prefill") {
            true => observe::from_first_tokens(&rows, range.step_tokens),
            false => observe::from_tokens(&rows, load.batch),
        }
    });
    each.collect()
}

#[test]
fn a_known_device_is_found_again_and_predicts_a_load_that_was_not_measured() {
    let edge = Span::from_micros(400);
    let observations = observations(edge);
    let fit = Fit::of(&observations, &range().batches).unwrap();
    let close = |found: Span, true_us: f64| {
        let found_us = found.as_nanos() as f64 / 1e3;
        assert!(
            (found_us / true_us - 1.0).abs() < 0.02,
            "{found_us} is not {true_us}: {fit:?}"
        );
    };
    for ((_, found), true_us) in fit
        .decode
        .iter()
        .zip([9_000.0, 9_400.0, 10_000.0, 13_000.0])
    {
        close(*found, true_us);
    }
    close(fit.prefill_per_token, 80.0);
    close(fit.context_per_token, 1.5);
    close(fit.edge, 400.0);

    let unseen = range().unseen(20.0, 400).unwrap();
    let measured = rows(unseen.clone(), TRUTH, edge);
    let fitted = settings_file(&fit, 8, "a test");
    let predicted = rows(unseen.clone(), &fitted, fit.edge);
    let verdict = Verdict::of(&measured, &predicted);
    assert_eq!(verdict.answers, (400, 400));
    assert!(verdict.holds(), "{verdict:?}");

    // A device that is a fifth slower is not taken for this one.
    let slower =
        "max_batch = 8\nmock_decode_us = [\"1=10800\", \"8=15600\"]\nmock_prefill_us = 80\n";
    let verdict = Verdict::of(&rows(unseen, slower, edge), &predicted);
    assert!(!verdict.holds(), "{verdict:?}");
}
