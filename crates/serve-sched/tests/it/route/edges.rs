//! Numbers that lie.

use proptest::prelude::*;
use serve_core::RequestId;
use serve_sched::route::{LeastLoaded, Route, View};

use super::*;

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX - 1),
        Just(u64::MAX)
    ]
}

proptest! {
    /// An upstream that says that it has more than there can be is full, not empty, and nothing overflows.
    #[test]
    fn an_upstream_that_lies_of_its_load_is_taken_at_its_word(
        (in_flight, waiting, waiting_tokens, running_tokens) in
            (extreme(), extreme(), extreme(), extreme()),
        tokens in prop::sample::select(vec![0, 1, 100, u32::MAX]),
    ) {
        for policy in [Box::new(PredictedEnd) as Box<dyn Route>, Box::new(LeastLoaded)] {
            let mut router = Router::new(policy, RouterSettings::default());
            [A, B].iter().for_each(|&id| router.join(id, Terms::default()));
            let view = View {
                at: at(10),
                in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
                waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
                waiting_tokens,
                running_tokens,
            };
            router.report(at(10), A, &view);
            for id in 0..8_u64 {
                let request = RequestId::new(id);
                let sent = router.send(at(11 + id), request, &Work::new(tokens, tokens)).unwrap();
                if in_flight > 8 && waiting > 8 && waiting_tokens > u64::from(u32::MAX) {
                    prop_assert!(sent.upstream == B || tokens == u32::MAX);
                }
                if id % 2 == 0 {
                    router.first_token(at(12 + id), request);
                    router.ended(at(12 + id), request, answered(tokens));
                }
            }
        }
    }
}
