//! From settings to the policies of a scheduler.

use std::hash::{BuildHasher, RandomState};

use serve_core::{Class, Span};
use serve_sched::kv::KvSettings;
use serve_sched::victim::Preemption;
use serve_sched::{Policies, Settings, TenantSettings, UnknownPolicy};

use crate::cli::Cli;
use crate::tenants::Tenants;
use crate::units::{Rate, Seconds};

/// The policies that the settings ask for.
///
/// # Errors
///
/// [`UnknownPolicy`]; the settings have been checked, so only a family that has changed since.
pub(crate) fn policies(cli: &Cli, tenants: &Tenants) -> Result<Policies, UnknownPolicy> {
    settings(cli, tenants).policies()
}

fn settings(cli: &Cli, tenants: &Tenants) -> Settings {
    let said = &cli.policy;
    let usual = Settings::default();
    let or = |said: Option<Seconds>, usual: Span| said.map_or(usual, Seconds::span);
    let margin = said.deadline_margin.map_or(Span::ZERO, Seconds::span);
    let class_queue_caps = said.class_queue_cap.iter().map(|of_class| {
        let rank = cli.requests.class_rank(&of_class.class).unwrap_or_default();
        (class_of(rank), of_class.depth)
    });
    let tenants = tenants.list.iter().map(|tenant| TenantSettings {
        id: tenant.id,
        weight: tenant.weight,
        requests_per_s: tenant.requests_per_s.map(Rate::get),
        tokens_per_s: tenant.tokens_per_s.map(Rate::get),
        ..TenantSettings::default()
    });
    Settings {
        max_batch: cli.max_batch,
        order: said.order.clone(),
        age_after: or(said.age_after, usual.age_after),
        wait_max: or(said.wait_max, usual.wait_max),
        input_weight: said.input_weight.unwrap_or(usual.input_weight),
        output_weight: said.output_weight.unwrap_or(usual.output_weight),
        queue_cap: said.queue_cap,
        class_queue_caps: class_queue_caps.collect(),
        concurrency_limit: said.concurrency_limit,
        requests_per_s: said.requests_per_s.get(),
        tokens_per_s: said.tokens_per_s.get(),
        tenant_requests_per_s: said.tenant_requests_per_s.get(),
        tenant_tokens_per_s: said.tenant_tokens_per_s.get(),
        rate_burst: said.rate_burst.span(),
        deadline_margin: said.deadline_admission.then_some(margin),
        token_backlog: said.token_backlog.span(),
        latency_budget: said.latency_budget.span(),
        batch: said.batch.clone(),
        batch_window: said.window_min().span(),
        batch_window_max: said.batch_window_max.map(Seconds::span),
        victim: said.victim.clone(),
        preemption: Preemption {
            times_max: said.preemptions_max,
            by_class: said.preempt_by_class,
        },
        kv: KvSettings {
            reuse_prefixes: said.prefix_cache,
            isolate_tenants: !said.prefix_shared,
            watermark_blocks: said.watermark_blocks,
            hash_key: secret(),
        },
        tenants: tenants.collect(),
        ..usual
    }
}

fn class_of(rank: usize) -> Class {
    Class::new(u8::try_from(rank).unwrap_or(u8::MAX))
}

/// Another one in each process, so that nobody can craft prompts that collide in the prefix cache.
fn secret() -> u128 {
    let half = |salt: u8| u128::from(RandomState::new().hash_one(salt));
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn a_simulation_without_settings_is_of_a_server_without_settings() {
        let cli = Cli::try_parse_from(["serve"]).unwrap();
        let mut own = settings(&cli, &Tenants::default());
        own.kv.hash_key = Settings::default().kv.hash_key;
        assert_eq!(own, Settings::default());
    }
}
