//! What a decision costs: with a million requests waiting, and with a full batch decoding.

#[expect(
    dead_code,
    reason = "shared with the simulation benches and `cargo xtask speed`"
)]
mod cases;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use cases::{Crowd, Decoding};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use serve_core::{Request, RequestId};

/// A million waiting requests, of which one leaves for each that comes.
struct Turnover {
    crowd: Crowd,
    /// Who leaves when; those who were there at first are all over the queue.
    leavers: VecDeque<RequestId>,
}

impl Turnover {
    fn new() -> Self {
        let waiting = 1_000_000;
        let mut crowd = Crowd::new(waiting);
        let leavers = crowd.some_ids(waiting).into();
        Self { crowd, leavers }
    }

    /// A request that is to come.
    fn fresh(&mut self) -> Arc<Request> {
        let request = self.crowd.requests(1).remove(0);
        self.leavers.push_back(request.id());
        request
    }

    /// A waiting request that is to leave.
    fn leaver(&mut self) -> RequestId {
        self.leavers.pop_front().expect("a million wait")
    }
}

fn queue(criterion: &mut Criterion) {
    let turnover = RefCell::new(Turnover::new());
    criterion.bench_function("submit_1m_waiting", |bench| {
        let setup = || {
            let mut turnover = turnover.borrow_mut();
            let leaver = turnover.leaver();
            turnover.crowd.cancel(leaver);
            turnover.fresh()
        };
        let submit = |request| turnover.borrow_mut().crowd.submit(request);
        bench.iter_batched(setup, submit, BatchSize::SmallInput);
    });
    turnover.replace(Turnover::new());
    criterion.bench_function("cancel_1m_waiting", |bench| {
        let setup = || {
            let mut turnover = turnover.borrow_mut();
            let fresh = turnover.fresh();
            turnover.crowd.submit(fresh);
            turnover.leaver()
        };
        let cancel = |id| turnover.borrow_mut().crowd.cancel(id);
        bench.iter_batched(setup, cancel, BatchSize::SmallInput);
    });
}

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    for running in [16, 256, 1_024] {
        group.throughput(Throughput::Elements(u64::from(running)));
        group.bench_function(format!("step_{running}_running_100k_waiting"), |bench| {
            let decoding = RefCell::new(Decoding::new(running, 100_000, 128));
            let steps = Cell::new(0);
            // Contexts of 128 to 1,128 positions.
            let setup = || {
                steps.set(steps.get() + 1);
                if steps.get() % 1_000 == 0 {
                    decoding.replace(Decoding::new(running, 100_000, 128));
                }
            };
            let step = |()| decoding.borrow_mut().step();
            bench.iter_batched(setup, step, BatchSize::SmallInput);
        });
    }
    group.finish();
}

criterion_group!(benches, queue, steps);
criterion_main!(benches);
