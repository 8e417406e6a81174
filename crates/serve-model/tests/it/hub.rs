//! Fetching a model from a hub: what is fetched, what is kept, and what survives a bad network.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serve_model::hub::{HubError, HubOptions, Progress, fetch};

use crate::stand_in_hub::{COMMIT, Fault, Lie, MODEL, StandInHub};

const WEIGHTS: &[u8] = &[7; 300_000];
const FILES: [(&str, &[u8]); 6] = [
    ("config.json", b"{\"model_type\": \"qwen2\"}"),
    ("tokenizer.json", b"{}"),
    ("tokenizer_config.json", b"{\"eos_token\": \"x\"}"),
    ("model.safetensors", WEIGHTS),
    ("pytorch_model.bin", b"not wanted"),
    ("README.md", b"not wanted"),
];
const INDEX: &str = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}}"#;

/// A cache folder that is removed when the test ends.
struct CacheFolder(PathBuf);

impl CacheFolder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("serve-model-hub-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn options(&self, endpoint: String) -> HubOptions {
        HubOptions {
            endpoint,
            retries: 3,
            backoff: Duration::from_millis(1),
            ..HubOptions::new(self.0.clone())
        }
    }
}

impl Drop for CacheFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn quietly(options: &HubOptions) -> Result<PathBuf, HubError> {
    fetch(MODEL, "main", options, &mut |_| {})
}

fn assert_weights(folder: &Path) {
    let found = std::fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(found.len(), WEIGHTS.len());
    assert!(found == WEIGHTS, "the weights differ");
}

#[test]
fn a_model_lands_in_the_shared_cache_and_stays_there() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let options = cache.options(hub.endpoint());
    let folder = quietly(&options).unwrap();
    let expected = format!("models--tiny-org--tiny.model-1/snapshots/{COMMIT}");
    assert_eq!(folder, cache.0.join(expected));
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(std::fs::read(folder.join(file)).unwrap(), hub.file(file));
    }
    assert_weights(&folder);
    assert!(!folder.join("pytorch_model.bin").exists());
    assert!(
        !hub.requests()
            .iter()
            .any(|request| request.path.contains("README"))
    );

    hub.requests().clear();
    assert_eq!(quietly(&options).unwrap(), folder);
    assert_eq!(
        hub.requests().len(),
        1,
        "only the list of files is asked for"
    );
}

#[test]
fn progress_counts_bytes_up_to_the_whole_file() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let mut seen: Vec<(String, u64, u64)> = Vec::new();
    let mut report = |progress: Progress<'_>| {
        let Progress {
            file,
            bytes_done,
            bytes_total,
        } = progress;
        seen.push((file.to_owned(), bytes_done, bytes_total));
    };
    fetch(MODEL, "main", &cache.options(hub.endpoint()), &mut report).unwrap();
    let weights = seen.iter().filter(|(file, ..)| file == "model.safetensors");
    let done: Vec<u64> = weights.clone().map(|&(_, done, _)| done).collect();
    assert!(done.is_sorted() && done.len() > 2, "{done:?}");
    assert_eq!(done.last(), Some(&(WEIGHTS.len() as u64)));
    assert!(
        weights
            .clone()
            .all(|&(_, _, total)| total == WEIGHTS.len() as u64)
    );
    assert_eq!(seen[0].0, "config.json");
}

#[test]
fn all_shards_of_the_index_are_fetched() {
    let files = [
        FILES[0],
        FILES[1],
        ("model.safetensors.index.json", INDEX.as_bytes()),
        ("model-00001-of-00002.safetensors", b"one"),
        ("model-00002-of-00002.safetensors", b"two"),
        ("model-00003-of-00002.safetensors", b"not in the index"),
    ];
    let hub = StandInHub::serve(&files, None);
    let cache = CacheFolder::new();
    let folder = quietly(&cache.options(hub.endpoint())).unwrap();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("model-00001-of-00002.safetensors"), b"one");
    assert_eq!(read("model-00002-of-00002.safetensors"), b"two");
    assert!(!folder.join("model-00003-of-00002.safetensors").exists());
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    hub.fail("/store/model.safetensors", Fault::CutAfter(100_000), 1);
    // The next attempt asks from the start, then for the rest.
    hub.fail("/store/model.safetensors", Fault::CutAfter(0), 1);
    hub.fail("/store/model.safetensors", Fault::Status(503), 1);
    let folder = quietly(&cache.options(hub.endpoint())).unwrap();
    assert_weights(&folder);
    let requests = hub.requests();
    let ranges = requests
        .iter()
        .filter(|request| request.path.contains("/store/"));
    let ranges: Vec<&str> = ranges
        .filter_map(|request| request.range.as_deref())
        .collect();
    assert!(ranges.contains(&"bytes=100000-"), "{ranges:?}");
    assert_eq!(ranges.last(), Some(&"bytes=100000-"), "{ranges:?}");
}

#[test]
fn a_later_run_goes_on_where_a_failed_one_stopped() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let options = HubOptions {
        retries: 0,
        ..cache.options(hub.endpoint())
    };
    hub.fail("/store/model.safetensors", Fault::CutAfter(200_000), 1);
    let error = quietly(&options).unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
    let message = error.to_string();
    for part in ["model.safetensors", MODEL, &hub.endpoint(), "(attempts: 1)"] {
        assert!(message.contains(part), "{message}");
    }
    assert_weights(&quietly(&options).unwrap());
    let last = hub.requests().last().cloned().unwrap();
    assert_eq!(last.range.as_deref(), Some("bytes=200000-"));
}

#[test]
fn an_answer_that_ends_early_without_an_error_is_noticed() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    hub.fail(
        "/store/model.safetensors",
        Fault::CutSilentlyAfter(100_000),
        1,
    );
    assert_weights(&quietly(&cache.options(hub.endpoint())).unwrap());
}

#[test]
fn a_whole_file_where_the_rest_was_asked_for_is_noticed() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    hub.fail("/store/model.safetensors", Fault::CutAfter(100_000), 1);
    hub.fail("/store/model.safetensors", Fault::CutAfter(0), 1);
    hub.fail("/store/model.safetensors", Fault::IgnoreRange, 1);
    assert_weights(&quietly(&cache.options(hub.endpoint())).unwrap());
}

#[test]
fn a_part_that_does_not_fit_its_file_is_dropped() {
    for left_over in [WEIGHTS.len(), WEIGHTS.len() + 1] {
        let hub = StandInHub::serve(&FILES, None);
        let cache = CacheFolder::new();
        let blobs = cache.0.join("models--tiny-org--tiny.model-1/blobs");
        std::fs::create_dir_all(&blobs).unwrap();
        let part = blobs.join("etag-of-model-safetensors.incomplete");
        std::fs::write(part, vec![1; left_over]).unwrap();
        assert_weights(&quietly(&cache.options(hub.endpoint())).unwrap());
    }
}

#[test]
fn a_broken_file_of_the_cache_is_fetched_again() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let options = cache.options(hub.endpoint());
    let folder = quietly(&options).unwrap();
    std::fs::write(folder.join("model.safetensors"), b"short").unwrap();
    assert_weights(&quietly(&options).unwrap());
    let blob = folder.join("model.safetensors").canonicalize().unwrap();
    std::fs::remove_file(blob).unwrap();
    assert_weights(&quietly(&options).unwrap());
}

#[test]
fn a_hub_that_keeps_failing_is_given_up() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    hub.fail("/resolve/", Fault::Status(503), 4);
    let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
    let expected = format!(
        "{} failed on config.json of {MODEL} (attempts: 4): HTTP 503",
        hub.endpoint()
    );
    assert_eq!(error.to_string(), expected);
    // Three failures are within the retries.
    hub.fail("/api/", Fault::Status(500), 3);
    assert_weights(&quietly(&cache.options(hub.endpoint())).unwrap());
}

#[test]
fn a_refusal_speaks_of_the_token_and_is_not_repeated() {
    let hub = StandInHub::serve(&FILES, Some("hf_right"));
    let cache = CacheFolder::new();
    let options = cache.options(hub.endpoint());
    let message = quietly(&options).unwrap_err().to_string();
    assert!(
        message.contains("HTTP 401") && message.contains("set HF_TOKEN"),
        "{message}"
    );
    assert_eq!(hub.requests().len(), 1);
    let with = |token: &str| HubOptions {
        token: Some(token.to_owned()),
        ..options.clone()
    };
    let message = quietly(&with("hf_wrong")).unwrap_err().to_string();
    assert!(
        message.contains("the token given (HF_TOKEN) does not open it"),
        "{message}"
    );
    assert!(!message.contains("hf_wrong"));
    assert_weights(&quietly(&with("hf_right")).unwrap());
}

#[test]
fn what_the_hub_does_not_have_is_named() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let options = cache.options(hub.endpoint());
    let error = fetch("tiny-org/other", "main", &options, &mut |_| {}).unwrap_err();
    let endpoint = hub.endpoint();
    assert_eq!(
        error.to_string(),
        format!("tiny-org/other (revision main) was not found at {endpoint}")
    );
    let error = fetch(MODEL, "v2", &options, &mut |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{MODEL} (revision v2) was not found at {endpoint}")
    );
}

#[test]
fn a_model_without_what_is_needed_is_refused_before_its_weights() {
    for (files, missing) in [
        (&[FILES[0], FILES[1], FILES[4]][..], "model.safetensors"),
        (&[FILES[1], FILES[3]], "config.json"),
        (&[FILES[0], FILES[3]], "tokenizer.json"),
    ] {
        let hub = StandInHub::serve(files, None);
        let cache = CacheFolder::new();
        let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
        let expected = format!("{MODEL} has no {missing}, which is needed");
        assert_eq!(error.to_string(), expected);
        let requests = hub.requests();
        assert!(
            !requests
                .iter()
                .any(|request| request.path.contains("safetensors"))
        );
    }
}

#[test]
fn an_index_cannot_name_files_elsewhere() {
    let index = br#"{"weight_map": {"a": "../../../../etc/passwd"}}"#;
    let files = [
        FILES[0],
        FILES[1],
        ("model.safetensors.index.json", &index[..]),
    ];
    let hub = StandInHub::serve(&files, None);
    let cache = CacheFolder::new();
    let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("\"../../../../etc/passwd\" is no file name"),
        "{error}"
    );
}

#[test]
fn without_the_hub_the_cache_serves_what_it_has_whole() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let options = cache.options(hub.endpoint());
    let offline = HubOptions {
        offline: true,
        ..options.clone()
    };
    let message = quietly(&offline).unwrap_err().to_string();
    let expected = format!("has no config.json of {MODEL} (revision main)");
    assert!(
        message.starts_with("HF_HUB_OFFLINE is set and "),
        "{message}"
    );
    assert!(message.ends_with(&expected), "{message}");
    assert!(hub.requests().is_empty());

    let folder = quietly(&options).unwrap();
    hub.requests().clear();
    assert_eq!(quietly(&offline).unwrap(), folder);
    assert!(hub.requests().is_empty());

    drop(hub);
    assert_eq!(quietly(&options).unwrap(), folder);
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    let message = quietly(&options).unwrap_err().to_string();
    assert!(message.contains("could not be reached"), "{message}");
    let message = quietly(&offline).unwrap_err().to_string();
    assert!(message.contains("has no model.safetensors of"), "{message}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    std::fs::write(&cache.0, b"a file, not a folder").unwrap();
    let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
    let _ = std::fs::remove_file(&cache.0);
    assert!(matches!(error, HubError::Disk { .. }), "{error}");
    let message = error.to_string();
    let expected = format!("cannot write to the model cache {}: ", cache.0.display());
    assert!(message.starts_with(&expected), "{message}");
}

/// The options of a user with a token and little time.
fn with_token(cache: &CacheFolder, hub: &StandInHub) -> HubOptions {
    HubOptions {
        token: Some("hf_right".to_owned()),
        retries: 1,
        patience: Duration::from_millis(200),
        ..cache.options(hub.endpoint())
    }
}

/// Every file below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.is_dir() {
        true => files_below(&path),
        false => vec![path],
    };
    paths.flat_map(below).collect()
}

#[test]
fn names_from_the_hub_cannot_lead_out_of_the_cache() {
    let long = "a".repeat(300);
    for etag in [
        "../../../../pwn",
        "/tmp/pwn",
        "..",
        ".hidden",
        "a/b",
        "a b",
        "",
        &long,
    ] {
        let hub = StandInHub::serve(&FILES, None);
        let outer = CacheFolder::new();
        let cache = CacheFolder(outer.0.join("a/b/c/d"));
        hub.lie(Lie::Etag(etag.to_owned()));
        let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
        assert!(error.to_string().contains("ETag"), "{etag}: {error}");
        let written = files_below(&outer.0);
        assert!(written.is_empty(), "{etag}: {written:?}");
    }
    for commit in ["../../pwn", "/tmp/pwn", "..", "", "a/b"] {
        let hub = StandInHub::serve(&FILES, None);
        let outer = CacheFolder::new();
        let cache = CacheFolder(outer.0.join("a/b/c/d"));
        hub.lie(Lie::Commit(commit.to_owned()));
        let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
        assert!(error.to_string().contains("it names no commit"), "{error}");
        assert!(files_below(&outer.0).is_empty());
    }
}

#[test]
fn a_note_of_the_cache_cannot_lead_out_of_it() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    let options = cache.options(hub.endpoint());
    quietly(&options).unwrap();
    let note = cache.0.join("models--tiny-org--tiny.model-1/refs/main");
    assert_eq!(std::fs::read_to_string(&note).unwrap(), COMMIT);
    std::fs::write(&note, format!("../snapshots/{COMMIT}")).unwrap();
    let offline = HubOptions {
        offline: true,
        ..options
    };
    let error = quietly(&offline).unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let store = StandInHub::serve(&FILES, None);
    let hub = StandInHub::serve(&FILES, Some("hf_right"));
    let cache = CacheFolder::new();
    hub.lie(Lie::Store(store.endpoint()));
    assert_weights(&quietly(&with_token(&cache, &hub)).unwrap());
    assert!(
        hub.requests()
            .iter()
            .all(|request| request.authorization.is_some())
    );
    let asked = store.requests();
    assert!(!asked.is_empty());
    assert!(asked.iter().all(|request| request.authorization.is_none()));
}

#[test]
fn a_model_that_was_given_another_name_is_found() {
    let hub = StandInHub::serve(&FILES, Some("hf_right"));
    let cache = CacheFolder::new();
    hub.lie(Lie::Moved);
    assert_weights(&quietly(&with_token(&cache, &hub)).unwrap());
}

#[test]
fn a_redirect_without_an_end_or_into_nowhere_is_given_up() {
    for (store, says) in [
        ("loop", "it redirects without end"),
        ("ftp://127.0.0.1", "it redirects to where it is not https"),
        ("not an address", "an address that is none"),
    ] {
        let hub = StandInHub::serve(&FILES, None);
        let cache = CacheFolder::new();
        hub.lie(Lie::Store(store.to_owned()));
        let error = quietly(&cache.options(hub.endpoint())).unwrap_err();
        assert!(error.to_string().contains(says), "{store}: {error}");
    }
}

#[test]
fn what_is_not_what_the_hub_says_is_thrown_away() {
    // By the list of files, and by the hub's ETag.
    for in_list in [true, false] {
        let hub = StandInHub::serve(&FILES, None);
        let cache = CacheFolder::new();
        hub.lie(Lie::Hashes { in_list });
        let options = cache.options(hub.endpoint());
        assert_weights(&quietly(&options).unwrap());

        let cache = CacheFolder::new();
        let options = HubOptions {
            retries: 1,
            ..cache.options(hub.endpoint())
        };
        hub.fail("/store/model.safetensors", Fault::Flip(200_000), 1);
        // The second attempt brings the right ones.
        assert_weights(&quietly(&options).unwrap());
        let cache = CacheFolder::new();
        let options = HubOptions {
            retries: 1,
            ..cache.options(hub.endpoint())
        };
        hub.fail("/store/model.safetensors", Fault::Flip(200_000), 2);
        let message = quietly(&options).unwrap_err().to_string();
        assert!(message.contains("SHA-256"), "{message}");
        let kept = files_below(&cache.0);
        let large = |path: &&PathBuf| std::fs::metadata(path).unwrap().len() > 1_000;
        assert_eq!(kept.iter().find(large), None);
    }
}

/// Whatever the hub has said of the weights, their hash or only their length.
#[test]
fn what_stands_for_a_large_file_is_not_taken_for_it() {
    for hashes in [None, Some(true), Some(false)] {
        let hub = StandInHub::serve(&FILES, None);
        let cache = CacheFolder::new();
        if let Some(in_list) = hashes {
            hub.lie(Lie::Hashes { in_list });
        }
        let options = HubOptions {
            retries: 1,
            ..cache.options(hub.endpoint())
        };
        hub.fail("/store/model.safetensors", Fault::Pointer, 2);
        let error = quietly(&options).unwrap_err().to_string();
        assert!(error.contains("model.safetensors"), "{hashes:?}: {error}");
        // A wrong length is not asked for twice, a wrong hash is.
        hub.heal();
        assert_weights(&quietly(&options).unwrap());
    }
}

#[test]
fn a_hub_that_asks_for_patience_is_asked_again() {
    for retry_after in ["0", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        let hub = StandInHub::serve(&FILES, None);
        let cache = CacheFolder::new();
        for part in ["/api/", "/resolve/", "/store/"] {
            hub.fail(part, Fault::BusyFor(retry_after), 2);
        }
        assert_weights(&quietly(&cache.options(hub.endpoint())).unwrap());
    }
}

#[test]
fn a_part_of_something_else_does_not_become_a_part_of_the_file() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    hub.lie(Lie::Hashes { in_list: true });
    let blobs = cache.0.join("models--tiny-org--tiny.model-1/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join("etag-of-model-safetensors.incomplete");
    std::fs::write(&part, vec![1; 1_000]).unwrap();
    assert_weights(&quietly(&cache.options(hub.endpoint())).unwrap());
    assert!(!part.exists());
}

#[test]
fn a_hub_that_is_silent_or_never_ends_is_given_up() {
    // Silent before its answer, in the middle of it, and so slow that it would never end.
    for (part, fault) in [
        ("/api/", Fault::SilentAfter(0)),
        ("/store/model.safetensors", Fault::SilentAfter(0)),
        ("/store/model.safetensors", Fault::SilentAfter(1_000)),
        ("/store/model.safetensors", Fault::Trickle),
    ] {
        let hub = StandInHub::serve(&FILES, None);
        let cache = CacheFolder::new();
        hub.fail(part, fault, 4);
        let error = quietly(&with_token(&cache, &hub)).unwrap_err();
        assert!(
            matches!(error, HubError::Network { .. }),
            "{fault:?}: {error}"
        );
    }
}

#[test]
fn more_than_was_promised_is_not_taken() {
    let hub = StandInHub::serve(&FILES, None);
    let cache = CacheFolder::new();
    hub.lie(Lie::Size(1_000));
    let message = quietly(&cache.options(hub.endpoint()))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("it has 300000 bytes and the list of files says 1000"),
        "{message}"
    );
    hub.lie(Lie::EndlessList);
    let message = quietly(&cache.options(hub.endpoint()))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("it has more than 16777216 bytes"),
        "{message}"
    );
}

#[test]
fn names_that_are_no_names_are_refused() {
    let cache = CacheFolder::new();
    let options = cache.options("http://127.0.0.1:1".to_owned());
    for repo in [
        "gpt2", "a/b/c", "../x", "a/..", "a/", "/b", "a b/c", "a/b?c", "",
    ] {
        let error = fetch(repo, "main", &options, &mut |_| {}).unwrap_err();
        assert!(
            matches!(error, HubError::InvalidRepo { .. }),
            "{repo}: {error}"
        );
    }
    for revision in ["", "a/../b", "/", "a b", "x#y"] {
        let error = fetch(MODEL, revision, &options, &mut |_| {}).unwrap_err();
        assert!(
            matches!(error, HubError::InvalidRevision { .. }),
            "{revision}: {error}"
        );
    }
    for endpoint in [
        "",
        "hub.example",
        "ftp://hub.example",
        "https://",
        "http://a b",
    ] {
        let options = cache.options(endpoint.to_owned());
        let error = quietly(&options).unwrap_err();
        assert!(
            matches!(error, HubError::InvalidEndpoint { .. }),
            "{endpoint}: {error}"
        );
    }
}
