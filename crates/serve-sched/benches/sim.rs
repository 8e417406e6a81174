//! What simulated requests cost, for each ten thousand.

#[path = "../src/bin/speed-sched/cases.rs"]
#[expect(
    dead_code,
    reason = "shared with the scheduler benches and the speed binary"
)]
mod cases;
#[path = "../src/bin/speed-sched/trace.rs"]
#[expect(
    dead_code,
    reason = "shared with the scheduler benches and the speed binary"
)]
mod trace;

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
