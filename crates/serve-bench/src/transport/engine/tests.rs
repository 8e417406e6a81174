//! The engine in virtual time: every number is exact, and a simulation says the same.

use std::time::Duration;

use proptest::prelude::*;
use serve_core::mock::{Faults, Mock, MockConfig};
use serve_core::{BackendError, Limits, Span, StepOutcome, StepPlan, Time};
use serve_sched::driver::{Clock, Turn};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::*;
use crate::experiments::servers::ServerSettings;
use crate::experiments::simulate::{ServerModel, simulate};
use crate::store::record::{Outcome, Record};
use crate::transport::drive::testing::{any_workload, balance, rows_until, workload};
use crate::workload::Workload;

/// Steps of 10 ms, and 1 ms for each prompt token.
const DEVICE: &str = "mock_decode_us=1=10000 mock_prefill_us=1000 mock_context_us=0";

fn model(settings: &str) -> ServerModel {
    let settings = settings.split_whitespace();
    let settings = settings.map(|text| text.parse::<ServerSettings>().unwrap());
    ServerModel::new(&settings.collect()).unwrap()
}

fn start(model: &ServerModel) -> Engine {
    let device = model.device().unwrap();
    start_on(model, device)
}

/// The engine as a task of the runtime, whose time tests move.
fn start_on(model: &ServerModel, backend: impl Backend + Send + 'static) -> Engine {
    let scheduler = model.scheduler().unwrap();
    let clock = Arc::new(TaskClock {
        origin: Instant::now(),
        bell: Notify::new(),
    });
    let stepped = Stepped::default();
    let (thread, mut runner) =
        EngineThread::new(scheduler, backend, Arc::clone(&clock) as _, stepped.clone());
    tokio::spawn(async move {
        loop {
            match runner.turn() {
                Turn::Sleep(until) => sleep_until(clock.at(until)).await,
                Turn::Wait(None) => clock.bell.notified().await,
                Turn::Wait(Some(until)) => tokio::select! {
                    biased;
                    () = clock.bell.notified() => {}
                    () = sleep_until(clock.at(until)) => {}
                },
                Turn::Over => return,
            }
        }
    });
    Engine::over(thread, stepped, model.terms())
}

/// The runtime's clock.
struct TaskClock {
    origin: Instant,
    bell: Notify,
}

impl TaskClock {
    fn at(&self, time: Time) -> Instant {
        self.origin + time.since(Time::ZERO).into()
    }
}

impl Clock for TaskClock {
    fn now(&self) -> Time {
        Time::ZERO + Span::from(self.origin.elapsed())
    }

    fn wake(&self) {
        self.bell.notify_one();
    }
}

/// The rows of a workload, in the order of its requests.
async fn rows_of(engine: &Engine, workload: &Workload) -> Vec<Record> {
    let (_keep, stop) = watch::channel(false);
    rows_until(workload, engine.client(workload.spec()).unwrap(), stop).await
}

const ONE_SIZE: &str =
    "[[prompts]]\nname = \"one\"\ntokens = { fixed = 10 }\noutput_tokens = { fixed = 4 }\n";

fn class(rest: &str) -> String {
    format!("{ONE_SIZE}[[classes]]\nname = \"paid\"\n{rest}\n")
}

/// What a simulation and an engine must agree on, in ms.
type Seen = (u64, u64, Vec<u64>, u64, Outcome, Option<String>);

fn seen(row: &Record) -> Seen {
    let ms = |ns: u64| ns / 1_000_000;
    let chunks = row.chunks.iter().map(|chunk| ms(chunk.at_ns)).collect();
    let (sent, end) = (row.sent_ns.unwrap(), row.end_ns.unwrap());
    (
        ms(row.scheduled_ns),
        ms(sent),
        chunks,
        ms(end),
        row.outcome,
        row.cause.clone(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_closed_loop_of_one_is_computed_by_hand() {
    let spec = format!(
        "requests = 3\n[arrivals.closed]\nclients = 1\nthink_ms = {{ fixed = 5 }}\n{ONE_SIZE}"
    );
    let engine = start(&model(DEVICE));
    let rows = rows_of(&engine, &workload(&spec)).await;
    // Prefill 10 + 10, three steps of 10, think 5.
    let expected = [
        (0, 0, vec![20, 30, 40, 50], 50, Outcome::Ok, None),
        (55, 55, vec![75, 85, 95, 105], 105, Outcome::Ok, None),
        (110, 110, vec![130, 140, 150, 160], 160, Outcome::Ok, None),
    ];
    assert_eq!(rows.iter().map(seen).collect::<Vec<_>>(), expected);
    let first = &rows[0];
    assert!(rows.iter().all(|row| row.source == Source::InProcess));
    assert_eq!(
        (first.prompt_tokens, first.output_tokens),
        (Some(10), Some(4))
    );
    assert_eq!(
        (first.status, first.finish_reason.as_deref()),
        (Some(200), Some("length"))
    );
    let timings = first.timings.unwrap();
    let told = (timings.queue_ms, timings.prefill_ms, timings.decode_ms);
    assert_eq!(told, (Some(0.0), Some(20.0), Some(30.0)));
}

/// Requests, waits, refusals, deadlines and clients that leave: the engine under a clock and the
/// simulation without one say the same of each attempt, to the millisecond.
#[tokio::test(start_paused = true)]
async fn a_simulation_says_the_same_as_the_engine_under_a_clock() {
    let waves = "requests = 12\n[arrivals.waves]\nsize = 6\nevery_s = 0.333\n";
    let odd = "requests = 9\n[arrivals.waves]\nsize = 1\nevery_s = 0.037\n"; // never when a step ends
    let closed = "requests = 9\n[arrivals.closed]\nclients = 3\n";
    let leave = |after| class(&format!("cancel = {{ probability = 1, {after} }}"));
    for (arrivals, rest, settings) in [
        (waves, ONE_SIZE.to_owned(), "max_batch=4"),
        (waves, ONE_SIZE.to_owned(), "max_batch=2 queue_cap=2"),
        (
            waves,
            ONE_SIZE.to_owned(),
            "max_batch=1 batch=one-at-a-time",
        ),
        (
            waves,
            ONE_SIZE.to_owned(),
            "max_batch=4 batch=static batch_window=0.02",
        ),
        (waves, class("deadline_ms = 73"), "max_batch=2"),
        (waves, leave("after_ms = { fixed = 37 }"), "max_batch=2"),
        (waves, leave("after_tokens = { fixed = 2 }"), "max_batch=2"),
        (waves, leave("after_tokens = { fixed = 4 }"), "max_batch=2"),
        (odd, ONE_SIZE.to_owned(), "max_batch=3"),
        (odd, leave("after_tokens = { fixed = 3 }"), "max_batch=2"),
        (
            odd,
            format!("{ONE_SIZE}[request]\nstream = false\n"),
            "max_batch=2",
        ),
        (odd, ONE_SIZE.to_owned(), "queue_timeout=0.033 max_batch=1"),
        (
            odd,
            ONE_SIZE.to_owned(),
            "request_timeout=0.087 max_batch=1",
        ),
        (odd, ONE_SIZE.to_owned(), "context=8"),
        (odd, TALK.to_owned(), "max_batch=3"),
        (closed, ONE_SIZE.to_owned(), "max_batch=2"),
        (closed, TALK.to_owned(), "max_batch=2"),
        (closed, leave("after_tokens = { fixed = 1 }"), "max_batch=2"),
    ] {
        let spec = workload(&format!("{arrivals}{rest}"));
        let model = model(&format!("{DEVICE} {settings}"));
        let real = rows_of(&start(&model), &spec).await;
        let mut virtual_rows = Vec::new();
        simulate(&spec, &model, Default::default(), |row| {
            virtual_rows.push(row)
        })
        .unwrap();
        virtual_rows.sort_by_key(|row| (row.request, row.attempt));
        let real_seen = real.iter().map(seen).collect::<Vec<_>>();
        let virtual_seen = virtual_rows.iter().map(seen).collect::<Vec<_>>();
        assert_eq!(real_seen, virtual_seen, "{settings}\n{rest}");
        let said = |row: &Record| {
            let tokens = (row.prompt_tokens, row.output_tokens, row.cached_tokens);
            // Whole microseconds: an arrival at 37 ms may be a nanosecond off in one of the two.
            let us = |ms: f64| (ms * 1e3).round() as u64;
            let timings = row.timings.map(|it| {
                let spans = [it.queue_ms, it.prefill_ms, it.decode_ms];
                (spans.map(|ms| ms.map(us)), it.preemptions)
            });
            (row.status, row.error.clone(), tokens, timings)
        };
        for (real, simulated) in real.iter().zip(&virtual_rows) {
            assert_eq!(said(real), said(simulated), "{settings}\n{rest}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_leaves_nothing_behind() {
    let spec = class("cancel = { probability = 1, after_ms = { fixed = 25 } }");
    let spec = format!("requests = 20\n[arrivals.waves]\nsize = 5\nevery_s = 0.1\n{spec}");
    let engine = start(&model(&format!("{DEVICE} max_batch=2 prefix_cache=false")));
    let rows = rows_of(&engine, &workload(&spec)).await;
    assert!(rows.iter().all(|row| row.outcome == Outcome::Cancelled));
    tokio::time::sleep(Duration::from_secs(1)).await; // the step in flight ends
    let after = engine.sample(7);
    assert_eq!(
        (after.at_ns, after.in_flight, after.kv_held),
        (7, Some(0.0), Some(0.0))
    );
    assert!(after.steps > Some(0.0) && after.step_seconds > Some(0.0));
}

const TALK: &str = "[[prompts]]\nname = \"talk\"\ntokens = { fixed = 20 }\noutput_tokens = { fixed = 17 }\n\
    conversation = { turns = { fixed = 3 }, think_ms = { fixed = 7 } }\n";

#[tokio::test(start_paused = true)]
async fn a_later_turn_carries_the_answer_and_finds_it_cached() {
    let talk = "requests = 2\n[arrivals.constant]\nrate_per_s = 1\n\
        [[prompts]]\nname = \"talk\"\ntokens = { fixed = 32 }\noutput_tokens = { fixed = 17 }\n\
        conversation = { turns = { fixed = 2 } }\n";
    let rows = rows_of(&start(&model(DEVICE)), &workload(talk)).await;
    // Of the first turn 32 + 16 positions were run, which are three blocks of 16.
    assert_eq!(rows[1].prompt_tokens, Some(32 + 17 + 32));
    assert_eq!(rows[1].cached_tokens, Some(48));
}

/// A device that fails its tenth step.
struct Failing {
    mock: Mock,
    steps: u32,
    how: fn() -> BackendError,
}

impl Failing {
    fn in_tenth_step(model: &ServerModel, how: fn() -> BackendError) -> Self {
        Self {
            mock: model.device().unwrap(),
            steps: 0,
            how,
        }
    }
}

impl Backend for Failing {
    fn limits(&self) -> Limits {
        self.mock.limits()
    }

    fn execute(&mut self, plan: &StepPlan, outcome: &mut StepOutcome) -> Result<(), BackendError> {
        // A plan without segments only lets the backend forget requests.
        self.steps += u32::from(!plan.segments().is_empty());
        match self.steps == 10 && !plan.segments().is_empty() {
            true => Err((self.how)()),
            false => self.mock.execute(plan, outcome),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_fails_has_rows_with_its_cause_and_the_engine_goes_on() {
    let spec = format!("requests = 6\n[arrivals.constant]\nrate_per_s = 10\n{ONE_SIZE}");
    let model = model(DEVICE);
    let backend = Failing::in_tenth_step(&model, || BackendError::Step {
        cause: "no luck".to_owned(),
    });
    let rows = rows_of(&start_on(&model, backend), &workload(&spec)).await;
    let failed = rows.iter().filter(|row| row.outcome == Outcome::Failed);
    let failed = failed.collect::<Vec<_>>();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].cause.as_deref(), Some("backend_error"));
    assert_eq!(failed[0].error.as_deref(), Some("no luck"));
    // The text before it had come with a status.
    assert_eq!((failed[0].status, failed[0].chunks.len()), (Some(200), 1));
    assert_eq!(
        rows.iter().filter(|row| row.outcome == Outcome::Ok).count(),
        5
    );
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_panics_has_a_row_for_everybody() {
    let spec = format!("requests = 6\n[arrivals.constant]\nrate_per_s = 10\n{ONE_SIZE}");
    let model = model(DEVICE);
    let backend = Failing::in_tenth_step(&model, || panic!("the device has caught fire"));
    let rows = rows_of(&start_on(&model, backend), &workload(&spec)).await;
    balance(&rows, 6).unwrap();
    let stopped = rows
        .iter()
        .filter(|row| row.cause.as_deref() == Some("engine_stopped"));
    assert_eq!(stopped.count(), 4);
}

#[test]
fn what_only_a_server_understands_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let _inside = runtime.enter();
    let engine = start(&model(DEVICE));
    for (part, key) in [
        ("[request.extra]\nbest_of = 2\n", "request.extra"),
        (
            "[[classes]]\nname = \"free\"\nextra = { priority = 1 }\n",
            "classes[0].extra",
        ),
        (
            "[[classes]]\nname = \"gold\"\n",
            "no class \"gold\"; it has [\"paid\", \"free\"]",
        ),
        ("[request]\ntemperature = 200.0\n", "request.temperature"),
    ] {
        let spec = workload(&format!("[arrivals.poisson]\nrate_per_s = 1\n{part}"));
        let error = engine.client(spec.spec()).err().unwrap();
        assert!(error.to_string().contains(key), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever is asked, however the device fails and whenever the run is stopped: every attempt has
    /// a row with one end, and afterwards the engine holds nothing.
    #[test]
    fn every_attempt_is_accounted_for(
        text in any_workload(),
        batch in 1..4_u32,
        queue_cap in 1..6_u32,
        errors_per_million in prop_oneof![Just(0_u32), Just(100_000)],
        stop_after_ms in proptest::option::of(0..12_000_u64),
    ) {
        let workload = workload(&text);
        let settings = format!("{DEVICE} classes=c max_batch={batch} queue_cap={queue_cap}");
        let model = model(&settings);
        let own = model.device().unwrap();
        let faults = Faults { errors_per_million, ..Faults::NONE };
        let device = Mock::new(MockConfig { faults, ..own.config().clone() });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (rows, after) = runtime.block_on(async {
            let (sender, stop) = watch::channel(false);
            tokio::spawn(async move {
                if let Some(ms) = stop_after_ms {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    sender.send(true).unwrap();
                }
                std::future::pending::<()>().await;
            });
            let engine = start_on(&model, device);
            let rows = rows_until(&workload, engine.client(workload.spec()).unwrap(), stop).await;
            tokio::time::sleep(Duration::from_secs(5)).await; // the step in flight ends
            (rows, engine.sample(0))
        });
        balance(&rows, workload.requests())?;
        prop_assert_eq!((after.in_flight, after.kv_held), (Some(0.0), Some(0.0)));
    }
}
