//! What a layer costs each request, one after the other through a service that answers at once: none,
//! tower's limit and load shedding, and a dispatcher.

use std::convert::Infallible;
use std::hint::black_box;

use axum::body::Body;
use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use http::{Request, Response};
use serve_core::TenantId;
use serve_sched::Dispatcher;
use serve_sched::adapter::{Ask, AsyncDispatcher};
use serve_sched::admit::QueueCap;
use serve_sched::limit::{Fixed, Gradient};
use serve_sched::order::{FairTenants, Fifo};
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

const SLOTS: u32 = 64;

fn service() -> impl Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone {
    service_fn(|_: Request<Body>| std::future::ready(Ok(Response::new(Body::empty()))))
}

fn through<S, R>(criterion: &mut Criterion, name: &str, service: &S)
where
    S: Service<Request<Body>, Response = Response<R>> + Clone,
{
    criterion.bench_function(&format!("layer/{name}"), |bench| {
        bench.iter(|| {
            let answer = service.clone().oneshot(Request::new(Body::empty()));
            black_box(answer.now_or_never().is_some_and(|answer| answer.is_ok()))
        });
    });
}

fn layers(criterion: &mut Criterion) {
    through(criterion, "none", &service());
    let limit = ConcurrencyLimitLayer::new(SLOTS as usize);
    through(criterion, "tower limit", &limit.layer(service()));
    through(
        criterion,
        "tower limit + load shed",
        &LoadShedLayer::new().layer(limit.layer(service())),
    );

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .expect("a runtime");
    let _entered = runtime.enter();
    let ask = |_: &Request<Body>| Ask::new(100, 20).with_tenant(TenantId::new(3));
    let plain = Dispatcher::new(Vec::new(), Box::new(Fifo), Box::new(Fixed::new(SLOTS)));
    let plain = AsyncDispatcher::spawn(plain).layer(ask);
    through(criterion, "dispatcher, fifo", &plain.layer(service()));
    let full = Dispatcher::new(
        vec![Box::new(QueueCap::default())],
        Box::new(FairTenants::default()),
        Box::new(Gradient::default()),
    );
    let full = AsyncDispatcher::spawn(full).layer(ask);
    through(
        criterion,
        "dispatcher, cap, fair tenants, adaptive",
        &full.layer(service()),
    );
}

criterion_group!(benches, layers);
criterion_main!(benches);
