//! What simulated requests cost, for each ten thousand.

#[expect(
    dead_code,
    reason = "shared with the scheduler benches and `cargo xtask speed`"
)]
mod cases;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn simulation(criterion: &mut Criterion) {
    let requests = 10_000;
    let mut group = criterion.benchmark_group("sim");
    group.throughput(Throughput::Elements(requests as u64));
    group.sample_size(20);
    group.bench_function("sim_poisson_10k", |bench| {
        bench.iter(|| cases::simulate_poisson(requests, true));
    });
    group.finish();
}

criterion_group!(benches, simulation);
criterion_main!(benches);
