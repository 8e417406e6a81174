//! Traces: a few lines in, the plan log out.

use insta::assert_snapshot;
use serve_core::Limits;
use serve_sched::Policies;
use serve_sched::admit::QueueCap;
use serve_sched::batch::{OneAtATime, Static};
use serve_sched::kv::KvSettings;
use serve_sched::victim::Preemption;

use crate::support::{LIMITS, check, journal};

#[test]
fn a_prompt_longer_than_the_budget_is_cut_and_decodes_go_first() {
    let trace = "
        0 submit r1 prompt=4 out=4
        5 submit r2 prompt=40 out=2
    ";
    assert_snapshot!(check(LIMITS, Policies::default(), trace), @r"
    0s s0: r1[0..4]*
    14ms s1: r1[4..5]* r2[0..31]
    55ms s2: r1[5..6]* r2[31..40]*
    74ms s3: r1[6..7]* r2[40..41]*
      84ms r1 finished (length), 4 tokens
      84ms r2 finished (length), 2 tokens
    84ms s4: -r1 -r2
    ");
}

#[test]
fn an_input_during_a_step_counts_from_the_next_one() {
    let trace = "
        0 submit r1 prompt=4 out=2
        1 submit r2 prompt=4 out=2
        2 submit r3 prompt=4 out=2
        3 cancel r2
    ";
    assert_snapshot!(check(LIMITS, Policies::default(), trace), @r"
    0s s0: r1[0..4]*
      3ms r2 cancelled (Client), 0 tokens
    14ms s1: r1[4..5]* r3[0..4]*
      28ms r1 finished (length), 2 tokens
    28ms s2: r3[4..5]* -r1
      38ms r3 finished (length), 2 tokens
    38ms s3: -r3
    ");
}

#[test]
fn a_shared_prefix_is_run_once_and_the_last_token_again() {
    let trace = "
        0 submit r1 prompt=12 out=2
        100 submit r2 prompt=12 out=2 like=1
        200 submit r3 prompt=9 out=1 like=1 tenant=1
    ";
    assert_snapshot!(check(LIMITS, Policies::default(), trace), @r"
    0s s0: r1[0..12]*
    22ms s1: r1[12..13]*
      32ms r1 finished (length), 2 tokens
    32ms s2: -r1
    100ms s3: r2[8..12]*
    114ms s4: r2[12..13]*
      124ms r2 finished (length), 2 tokens
    124ms s5: -r2
    200ms s6: r3[0..9]*
      219ms r3 finished (length), 1 tokens
    219ms s7: -r3
    ");
}

#[test]
fn the_newest_is_preempted_when_blocks_run_out_and_resumes_from_its_own_prefix() {
    let limits = Limits {
        blocks: 8,
        ..LIMITS
    };
    let trace = "
        0 submit r1 prompt=8 out=9
        1 submit r2 prompt=12 out=6
    ";
    assert_snapshot!(check(limits, Policies::default(), trace), @r"
    0s s0: r1[0..8]*
    18ms s1: r1[8..9]* r2[0..12]*
    40ms s2: r1[9..10]* r2[12..13]*
    50ms s3: r1[10..11]* r2[13..14]*
    60ms s4: r1[11..12]* r2[14..15]*
    70ms s5: r1[12..13]*
    80ms s6: r1[13..14]*
    90ms s7: r1[14..15]*
    100ms s8: r1[15..16]*
      110ms r1 finished (length), 9 tokens
    110ms s9: r2[12..16]* -r1
    124ms s10: r2[16..17]*
      134ms r2 finished (length), 6 tokens
    134ms s11: -r2
    ");
    assert_snapshot!(journal(limits, Policies::default(), trace), @r"
    0s r1 admitted: c0 t0, 1 waiting
    0s r1 joined: waited 0s, 8 positions, 0 cached, 2 blocks, 1 running
    1ms r2 admitted: c0 t0, 1 waiting
    18ms r2 joined: waited 17ms, 12 positions, 0 cached, 3 blocks, 2 running
    70ms r2 preempted: r1 needs a block, 15 positions lost, 4 blocks, 1 times
    80ms r2 deferred: needs 1 blocks of 0 available
    110ms r1 finished: length, 9 tokens
    110ms r2 joined: waited 40ms, 16 positions, 12 cached, 4 blocks, 1 running, preempted 1 times
    134ms r2 finished: length, 6 tokens
    ");
}

#[test]
fn a_higher_class_makes_a_lower_one_yield() {
    let policies = || Policies {
        preemption: Preemption {
            by_class: true,
            ..Preemption::default()
        },
        batch: Box::new(OneAtATime),
        ..Policies::default()
    };
    let trace = "
        0 submit r1 prompt=4 out=4 class=1
        1 submit r2 prompt=4 out=2 class=0
    ";
    assert_snapshot!(journal(LIMITS, policies(), trace), @r"
    0s r1 admitted: c1 t0, 1 waiting
    0s r1 joined: waited 0s, 4 positions, 0 cached, 1 blocks, 1 running
    1ms r2 admitted: c0 t0, 1 waiting
    14ms r1 preempted: r2 of c0 waits, 4 positions lost, 2 blocks, 1 times
    14ms r2 joined: waited 13ms, 4 positions, 0 cached, 1 blocks, 1 running
    14ms r1 deferred: 1 of 1 slots are taken
    38ms r2 finished: length, 2 tokens
    38ms r1 joined: waited 24ms, 5 positions, 4 cached, 2 blocks, 1 running, preempted 1 times
    68ms r1 finished: length, 4 tokens
    ");
}

#[test]
fn a_static_batch_waits_for_its_window_and_lets_nobody_join() {
    let policies = Policies {
        batch: Box::new(Static::default()),
        ..Policies::default()
    };
    let trace = "
        0 submit r1 prompt=4 out=2
        4 submit r2 prompt=4 out=3
        15 submit r3 prompt=4 out=1
    ";
    assert_snapshot!(check(LIMITS, policies, trace), @r"
    10ms s0: r1[0..4]* r2[0..4]*
    28ms s1: r1[4..5]* r2[4..5]*
      38ms r1 finished (length), 2 tokens
    38ms s2: r2[5..6]* -r1
      48ms r2 finished (length), 3 tokens
    48ms s3: r3[0..4]* -r2
      62ms r3 finished (length), 1 tokens
    62ms s4: -r3
    ");
}

#[test]
fn a_failed_step_fails_its_requests_and_no_others() {
    let trace = "
        0 submit r1 prompt=4 out=2
        0 submit r2 prompt=4 out=2
        1 fail
        2 submit r3 prompt=4 out=2
    ";
    assert_snapshot!(check(LIMITS, Policies::default(), trace), @r"
    0s s0: r1[0..4]* r2[0..4]*
      18ms r1 failed (fault), 0 tokens
      18ms r2 failed (fault), 0 tokens
    18ms s1: r3[0..4]* -r1 -r2
    32ms s2: r3[4..5]*
      42ms r3 finished (length), 2 tokens
    42ms s3: -r3
    ");
}

#[test]
fn a_lost_device_fails_what_has_started_and_keeps_what_waits() {
    let limits = Limits {
        sequences_max: 1,
        ..LIMITS
    };
    let trace = "
        0 submit r1 prompt=4 out=3
        0 submit r2 prompt=4 out=1
        1 lose
    ";
    assert_snapshot!(check(limits, Policies::default(), trace), @r"
    0s s0: r1[0..4]*
      14ms r1 failed (gone), 0 tokens
    14ms s1: r2[0..4]* -r1
      28ms r2 finished (length), 1 tokens
    28ms s2: -r2
    ");
}

#[test]
fn a_deadline_is_answered_on_time_while_waiting_and_at_the_boundary_while_running() {
    let limits = Limits {
        sequences_max: 1,
        ..LIMITS
    };
    let trace = "
        0 submit r1 prompt=4 out=9 deadline=30
        0 submit r2 prompt=4 out=1 deadline=20
        0 submit r3 prompt=4 out=1
    ";
    assert_snapshot!(check(limits, Policies::default(), trace), @r"
    0s s0: r1[0..4]*
    14ms s1: r1[4..5]*
    24ms s2: r1[5..6]*
      24ms r2 cancelled (Deadline), 0 tokens
    34ms s3: r3[0..4]* -r1
      34ms r1 cancelled (Deadline), 3 tokens
      48ms r3 finished (length), 1 tokens
    48ms s4: -r3
    ");
}

#[test]
fn what_can_never_fit_is_refused_at_once_and_what_has_no_room_now_later() {
    let policies = Policies {
        admit: vec![Box::new(QueueCap::new(1))],
        kv: KvSettings {
            watermark_blocks: Some(0),
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    let limits = Limits {
        context_max: 100,
        sequences_max: 1,
        ..LIMITS
    };
    let trace = "
        0 submit r1 prompt=99 out=3
        0 submit r2 prompt=60 out=2
        0 submit r3 prompt=60 out=1
        0 submit r4 prompt=4 out=1
        0 submit r6 prompt=4 out=1
        0 drain
        0 submit r5 prompt=4 out=1
    ";
    assert_snapshot!(check(limits, policies, trace), @r"
    0s r1 refused: prompt and output limit need 101 positions and the context holds 100
    0s r2 refused: the request can need 16 KV blocks and the pool holds 15
    0s r6 refused for now: 1 requests are waiting and at most 1 may
    0s r5 refused for now: the server is shutting down
    0s s0: r3[0..32]
    42ms s1: r3[32..60]*
      80ms r3 finished (length), 1 tokens
    80ms s2: r4[0..4]* -r3
      94ms r4 finished (length), 1 tokens
    94ms s3: -r4
    ");
}

#[test]
fn a_preempted_request_goes_back_before_those_that_wait() {
    let limits = Limits {
        blocks: 8,
        sequences_max: 2,
        ..LIMITS
    };
    let trace = "
        0 submit r1 prompt=8 out=9
        1 submit r2 prompt=12 out=6
        2 submit r3 prompt=4 out=1
    ";
    assert_snapshot!(journal(limits, Policies::default(), trace), @r"
    0s r1 admitted: c0 t0, 1 waiting
    0s r1 joined: waited 0s, 8 positions, 0 cached, 2 blocks, 1 running
    1ms r2 admitted: c0 t0, 1 waiting
    2ms r3 admitted: c0 t0, 2 waiting
    18ms r2 joined: waited 17ms, 12 positions, 0 cached, 3 blocks, 2 running
    18ms r3 deferred: 2 of 2 slots are taken
    70ms r2 preempted: r1 needs a block, 15 positions lost, 4 blocks, 1 times
    80ms r2 deferred: needs 1 blocks of 0 available
    110ms r1 finished: length, 9 tokens
    110ms r2 joined: waited 40ms, 16 positions, 12 cached, 4 blocks, 1 running, preempted 1 times
    110ms r3 joined: waited 108ms, 4 positions, 0 cached, 1 blocks, 2 running
    128ms r3 finished: length, 1 tokens
    138ms r2 finished: length, 6 tokens
    ");
}

#[test]
fn of_a_cached_prefix_the_end_is_evicted_before_the_beginning() {
    let limits = Limits {
        blocks: 8,
        ..LIMITS
    };
    // r1 leaves three blocks cached and four free; r2 needs five of the seven.
    let trace = "
        0 submit r1 prompt=12 out=1
        100 submit r2 prompt=20 out=1
        200 submit r3 prompt=12 out=1 like=1
    ";
    assert_snapshot!(check(limits, Policies::default(), trace), @r"
    0s s0: r1[0..12]*
      22ms r1 finished (length), 1 tokens
    22ms s1: -r1
    100ms s2: r2[0..20]*
      130ms r2 finished (length), 1 tokens
    130ms s3: -r2
    200ms s4: r3[8..12]*
      214ms r3 finished (length), 1 tokens
    214ms s5: -r3
    ");
}

#[test]
fn who_joins_a_running_batch_leaves_the_watermark_and_who_runs_alone_does_not() {
    let limits = Limits {
        blocks: 8,
        ..LIMITS
    };
    let policies = Policies {
        kv: KvSettings {
            watermark_blocks: Some(4),
            ..KvSettings::default()
        },
        ..Policies::default()
    };
    let trace = "
        0 submit r1 prompt=4 out=2
        1 submit r2 prompt=16 out=1
    ";
    assert_snapshot!(journal(limits, policies, trace), @r"
    0s r1 admitted: c0 t0, 1 waiting
    0s r1 joined: waited 0s, 4 positions, 0 cached, 1 blocks, 1 running
    1ms r2 admitted: c0 t0, 1 waiting
    14ms r2 deferred: needs 4 blocks of 1 available
    24ms r1 finished: length, 2 tokens
    24ms r2 joined: waited 23ms, 16 positions, 0 cached, 4 blocks, 1 running
    50ms r2 finished: length, 1 tokens
    ");
}
