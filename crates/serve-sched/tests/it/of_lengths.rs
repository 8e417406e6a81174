//! Requests that are lengths alone: a dispatcher serves them like any other, and no backend sees one.

use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend, Limit, Refusal, Request, RequestId, StepPlan, Time, TokenId};
use serve_sched::limit::Fixed;
use serve_sched::order::FairTenants;
use serve_sched::{Dispatcher, Policies, Scheduler};

fn of_lengths(id: u64) -> Request {
    Request::of_lengths(RequestId::new(id), Time::ZERO, 40, 5).unwrap()
}

#[test]
fn a_scheduler_refuses_at_submit_what_its_backend_could_not_run() {
    let mock = Mock::new(MockConfig::default());
    let mut scheduler = Scheduler::new(mock.limits(), Policies::default()).unwrap();
    let refusal = scheduler.submit(Time::ZERO, of_lengths(1)).unwrap_err();
    let limit = Limit::NoTokens;
    assert_eq!(refusal, Refusal::Never { limit });
    assert_eq!(refusal.code().status, 400);

    // It has left nothing behind: the id is free, and the other kind is taken.
    let tokens = vec![TokenId::new(1); 40];
    let whole = Request::new(RequestId::new(1), Time::ZERO, tokens, 5).unwrap();
    scheduler.submit(Time::ZERO, whole).unwrap();
    let mut plan = StepPlan::default();
    scheduler.plan_into(Time::ZERO, &mut plan);
    assert!(plan.starts().iter().all(|request| request.has_tokens()));
    let counters = scheduler.stats().counters;
    assert_eq!((counters.arrived, counters.refused), (2, 1));
}

#[test]
fn a_dispatcher_sends_them_in_the_same_order_as_those_with_tokens() {
    let sent = |of_lengths: bool| {
        let order = Box::new(FairTenants::default());
        let mut dispatcher = Dispatcher::new(Vec::new(), order, Box::new(Fixed::new(64)));
        for id in 0..32_u64 {
            let (prompt, output) = (1 + id as u32 * 7 % 50, 1 + id as u32 * 3 % 20);
            let id = RequestId::new(id);
            let request = if of_lengths {
                Request::of_lengths(id, Time::ZERO, prompt, output)
            } else {
                let tokens = vec![TokenId::new(1); prompt as usize];
                Request::new(id, Time::ZERO, tokens, output)
            };
            let tenant = serve_core::TenantId::new(id.get() as u32 % 3);
            dispatcher
                .submit(Time::ZERO, request.unwrap().with_tenant(tenant))
                .unwrap();
        }
        let next = std::iter::from_fn(|| dispatcher.next(Time::ZERO));
        next.map(|request| request.id()).collect::<Vec<_>>()
    };
    assert_eq!(sent(true).len(), 32);
    assert_eq!(sent(true), sent(false));
}
