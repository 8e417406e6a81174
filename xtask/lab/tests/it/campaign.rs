//! A small campaign for each of a few seeds.

use std::collections::BTreeMap;

use lab::campaign::{CampaignPlan, campaign, quiet_panics};

/// All in one test: a campaign looks at the memory and the tasks of the whole process.
#[test]
fn whatever_clients_and_device_do_nothing_is_lost_or_left_behind() {
    quiet_panics();
    let mut totals = BTreeMap::new();
    for seed in 1..=5 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let settings = CampaignPlan {
            requests: 800,
            seed,
        };
        let outcome = runtime.block_on(campaign(settings)).unwrap();
        assert!(
            outcome.broken.is_empty(),
            "seed {seed}: {:#?}",
            outcome.broken
        );
        for figure in outcome.figures {
            let value = figure.number().unwrap();
            *totals.entry(figure.name).or_insert(0.0) += value;
        }
    }
    // Whatever is promised of it has happened.
    for happened in [
        "life_1_left",
        "life_2_finished",
        "life_2_refused",
        "life_2_cancelled",
        "life_2_failed",
        "life_2_after_drain",
        "panics",
        "steps_failed",
    ] {
        assert!(totals[happened] > 0.0, "{happened}: {totals:#?}");
    }
}
