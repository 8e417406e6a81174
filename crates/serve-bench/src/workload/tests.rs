//! What a workload promises as a whole.

use super::*;

fn workload(text: &str) -> Workload {
    Workload::new(Spec::parse("test", text).unwrap(), Path::new(".")).unwrap()
}

fn poisson(rate: f64, rest: &str) -> Workload {
    workload(&format!(
        "seed = 7\nrequests = 300\n{rest}\n[arrivals.poisson]\nrate_per_s = {rate}\n"
    ))
}

fn without_times(workload: &Workload) -> Vec<Conversation> {
    let plan = workload.plan();
    plan.map(|conversation| Conversation {
        due: None,
        ..conversation
    })
    .collect()
}

const EVERYTHING: &str = r#"
seed = 3
requests = 400
[request]
history = "scripted"
[arrivals.gamma]
rate_per_s = 20
cv = 3
[[prompts]]
name = "talk"
tokens = { lognormal = { median = 20, p99 = 200, max = 300 } }
output_tokens = { uniform = { min = 1, max = 40 } }
prefix = { tokens = 50, variants = 3 }
conversation = { turns = { uniform = { min = 1, max = 4 } }, think_ms = { fixed = 250 } }
[[prompts]]
name = "one"
share = 2
tokens = { empirical = [5, 6, 90] }
output_tokens = { fixed = 8 }
[[tenants]]
name = "a"
[[tenants]]
name = "b"
share = 0.2
[[classes]]
name = "paid"
deadline_ms = 2_000
[[classes]]
name = "free"
cancel = { probability = 0.3, after_tokens = { uniform = { min = 1, max = 5 } } }
"#;

#[test]
fn the_same_seed_sends_the_same_bytes_and_another_seed_others() {
    let first = workload(EVERYTHING);
    // Fixes what a seed means: if this changes, old runs cannot be paired with new ones.
    let expected = "36523b96aebec224eaa4b7ad3a5c0fc822f61844ad5b76fbc2121c9926a2dc3d";
    assert_eq!(first.sha256(), workload(EVERYTHING).sha256());
    assert_eq!(first.sha256(), expected);
    let other = EVERYTHING.replace("seed = 3", "seed = 4");
    assert_ne!(first.sha256(), workload(&other).sha256());
}

#[test]
fn another_rate_or_another_kind_of_arrival_sends_the_same_requests() {
    let slow = without_times(&poisson(2.0, ""));
    assert_eq!(slow, without_times(&poisson(90.0, "")));
    let closed = workload("seed = 7\nrequests = 300\n[arrivals.closed]\nclients = 4\n");
    assert_eq!(slow, without_times(&closed));
}

#[test]
fn a_new_tenant_or_class_changes_nobodys_words() {
    let with = "[[tenants]]\nname = \"a\"\n[[classes]]\nname = \"x\"\n\
        cancel = { probability = 1, after_ms = { fixed = 5 } }\n";
    let text = format!("seed = 7\nrequests = 300\n[arrivals.poisson]\nrate_per_s = 2\n{with}");
    let words = |workload: &Workload| {
        let plan = workload.plan().flat_map(|conversation| conversation.turns);
        plan.map(|turn| (turn.prompt, turn.output_tokens_max, turn.seed))
            .collect::<Vec<_>>()
    };
    let with = workload(&text);
    assert_eq!(words(&with), words(&poisson(2.0, "")));
    assert!(
        with.plan().all(
            |conversation| conversation.turns[0].hang_up == Some(HangUp::AfterNanos(5_000_000))
        )
    );
}

#[test]
fn requests_are_counted_turn_by_turn_and_the_last_conversation_is_cut() {
    let workload = workload(EVERYTHING);
    let conversations = workload.plan().collect::<Vec<_>>();
    let turns = conversations
        .iter()
        .flat_map(|conversation| &conversation.turns);
    assert!(turns.map(|turn| turn.index).eq(0..400));
    let longest = conversations
        .iter()
        .map(|conversation| conversation.turns.len())
        .max();
    assert_eq!(longest, Some(4));
    for talk in conversations
        .iter()
        .filter(|conversation| conversation.is_session)
    {
        assert!(talk.shared.is_some());
        for pair in talk.turns.windows(2) {
            let grown = pair[0].prompt_tokens + pair[0].output_tokens_max;
            assert!(
                pair[1].prompt_tokens > grown,
                "a later turn carries the earlier ones"
            );
            assert_eq!(pair[1].think_ns, 250_000_000);
            assert!(pair[0].scripted_answer.is_some());
        }
    }
    let shared = conversations
        .iter()
        .filter_map(|conversation| conversation.shared.clone());
    let shared = shared
        .map(|prompt| format!("{prompt:?}"))
        .collect::<std::collections::BTreeSet<_>>();
    assert_eq!(shared.len(), 3);
}

#[test]
fn a_duration_cuts_the_schedule_off() {
    let workload = workload("duration_s = 10\n[arrivals.constant]\nrate_per_s = 3\n");
    assert_eq!(workload.requests(), 30);
    let last = workload.plan().last().unwrap();
    assert!(last.due.unwrap() < Span::from_secs(10));
    let spec = Spec::parse(
        "test",
        "duration_s = 0.001\n[arrivals.poisson]\nrate_per_s = 0.1\n",
    );
    let error = Workload::new(spec.unwrap(), Path::new(".")).unwrap_err();
    assert!(error.to_string().contains("duration_s"), "{error}");
}

#[test]
fn a_constant_rate_does_not_drift_and_waves_come_at_once() {
    let constant = workload("requests = 300001\n[arrivals.constant]\nrate_per_s = 3\n");
    assert_eq!(
        constant.times().nth(300_000),
        Some(Some(Span::from_secs(100_000)))
    );
    let waves = workload("requests = 192\n[arrivals.waves]\nsize = 64\nevery_s = 30\n");
    let times = waves
        .plan()
        .filter_map(|conversation| conversation.due)
        .collect::<Vec<_>>();
    for (wave, at) in [(0, 0), (1, 30), (2, 60)] {
        assert!(
            times[wave * 64..(wave + 1) * 64]
                .iter()
                .all(|due| *due == Span::from_secs(at))
        );
    }
}

/// Mean and coefficient of variation of the gaps.
fn gaps(arrivals: &str) -> (f64, f64) {
    let workload = workload(&format!(
        "seed = 11\nrequests = 100000\n[arrivals.{arrivals}\n"
    ));
    let times = workload
        .times()
        .flatten()
        .take(100_000)
        .map(Span::as_secs_f64)
        .collect::<Vec<_>>();
    let gaps = times
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect::<Vec<_>>();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    (mean, variance.sqrt() / mean)
}

#[test]
fn arrivals_have_their_rate_and_their_burstiness() {
    let (mean, cv) = gaps("poisson]\nrate_per_s = 50");
    assert!(
        (mean * 50.0 - 1.0).abs() < 0.02 && (cv - 1.0).abs() < 0.02,
        "{mean} {cv}"
    );
    for expected in [0.5, 3.0] {
        let (mean, cv) = gaps(&format!("gamma]\nrate_per_s = 50\ncv = {expected}"));
        assert!(
            (mean * 50.0 - 1.0).abs() < 0.05 && (cv / expected - 1.0).abs() < 0.05,
            "{mean} {cv}"
        );
    }
    // 18 arrivals in 5 s on average.
    let bursts = "bursts]\nrate_per_s = 2\nburst_rate_per_s = 10\nburst_s = 1\nevery_s = 5";
    let (mean, cv) = gaps(bursts);
    assert!(
        (mean * 18.0 / 5.0 - 1.0).abs() < 0.02 && cv > 1.1,
        "{mean} {cv}"
    );
}

#[test]
fn a_trace_is_replayed_with_its_lengths_and_its_shared_blocks() {
    let folder = std::env::temp_dir().join(format!("serve-bench-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let trace = "{\"timestamp\":0,\"input_length\":1030,\"output_length\":5,\"hash_ids\":[0,1,2]}\n\
        {\"timestamp\":3000,\"input_length\":1100,\"output_length\":9,\"hash_ids\":[0,1,7]}\n";
    std::fs::write(folder.join("m.jsonl"), trace).unwrap();
    std::fs::write(folder.join("l.csv"), "n,tokens\n1,40\n2,41\n").unwrap();
    let text = "[arrivals.mooncake]\nfile = \"m.jsonl\"\n";
    let workload = Workload::new(Spec::parse("test", text).unwrap(), &folder).unwrap();
    assert_eq!(workload.requests(), 2);
    let prompts = workload
        .plan()
        .map(|conversation| match &conversation.turns[0].prompt {
            Prompt::Text(text) => text.split(' ').map(str::to_owned).collect::<Vec<_>>(),
            Prompt::Ids(_) => Vec::new(),
        });
    let prompts = prompts.collect::<Vec<_>>();
    assert_eq!([prompts[0].len(), prompts[1].len()], [1_030, 1_100]);
    assert_eq!(prompts[0][..1_024], prompts[1][..1_024]);
    assert_ne!(prompts[0][1_024..], prompts[1][1_024..1_030]);
    assert!(workload.files_sha256()["m.jsonl"].len() == 64);

    let text = "[arrivals.poisson]\nrate_per_s = 1\n[[prompts]]\nname = \"a\"\n\
        tokens = { empirical_csv = { file = \"l.csv\", column = \"tokens\" } }\noutput_tokens = { fixed = 1 }\n";
    let spec = Spec::parse("test", text).unwrap();
    let workload = Workload::new(spec, &folder).unwrap();
    assert!(files::is_resolved(workload.spec()));
    let lengths = workload
        .plan()
        .map(|conversation| conversation.turns[0].prompt_tokens);
    assert!(
        lengths
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .eq([40, 41])
    );
    let text = text.replace("column = \"tokens\"", "column = \"size\"");
    let error = Workload::new(Spec::parse("test", &text).unwrap(), &folder).unwrap_err();
    assert!(
        error.to_string().contains("l.csv:1: no column \"size\""),
        "{error}"
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_example_specifications_can_be_sent() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("specs");
    let files = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let specs = files.filter(|path| path.extension().is_some_and(|end| end == "toml"));
    let mut names = Vec::new();
    for path in specs {
        let workload = Workload::new(Spec::read(&path).unwrap(), &folder).unwrap();
        let turns = workload
            .plan()
            .map(|conversation| conversation.turns.len() as u64)
            .sum::<u64>();
        assert_eq!(turns, workload.requests(), "{}", path.display());
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert_eq!(workload.spec().name, stem);
        names.push(stem);
    }
    names.sort_unstable();
    let expected = [
        "capacity",
        "chat",
        "conversations",
        "overload",
        "replay-azure",
        "replay-mooncake",
        "three-ways",
        "waves",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_tenant_alone_asks_for_what_it_asks_for_beside_the_others() {
    for text in [
        EVERYTHING.to_owned(),
        EVERYTHING.replace("requests = 400", "duration_s = 15"),
    ] {
        let all = workload(&text);
        let alone = workload(&format!("only_tenant = \"b\"\n{text}"));
        let own = all.plan().filter(|it| it.tenant == Some(1));
        let mut expected = own.collect::<Vec<_>>();
        let turns = expected.iter_mut().flat_map(|it| &mut it.turns);
        // Places in a workload have no gaps.
        for (place, turn) in (0..).zip(turns) {
            turn.index = place;
        }
        assert!(expected.len() > 3 && alone.requests() < all.requests() / 3);
        assert_eq!(alone.plan().collect::<Vec<_>>(), expected);
        let turns = expected.iter().map(|it| it.turns.len() as u64);
        assert_eq!(turns.sum::<u64>(), alone.requests());
        let warm_up = alone.warm_up(5).unwrap();
        assert_eq!((warm_up.requests(), warm_up.plan().count() > 0), (5, true));
    }
}

#[test]
fn a_tenant_for_whom_nothing_is_asked_is_no_workload() {
    let text = "requests = 2\nonly_tenant = \"light\"\n[arrivals.poisson]\nrate_per_s = 1\n\
        [[tenants]]\nname = \"light\"\nshare = 1e-9\n[[tenants]]\nname = \"flood\"\n";
    let wrong = Workload::new(Spec::parse("test", text).unwrap(), Path::new(".")).unwrap_err();
    assert!(wrong.to_string().contains("\"light\""), "{wrong}");
}
