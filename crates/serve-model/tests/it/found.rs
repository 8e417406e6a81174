//! Folders as they are found: what other implementations serve is served, and what is not done is said.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use serve_core::conformance::Driver;
use serve_core::{Request, RequestId, Sampling, Time};
use serve_model::load::{Model, Source, load};

use crate::damaged::Copy;
use crate::fixtures::{Golden, options};
use crate::golden::{finish, of};

fn loaded(copy: &Copy) -> Model {
    load(&Source::Folder(copy.0.clone()), &options(), &mut |_| ()).unwrap()
}

/// Changes a JSON file of the folder.
fn change(copy: &Copy, file: &str, change: impl FnOnce(&mut Value)) {
    let text = fs::read_to_string(copy.path(file)).unwrap();
    let mut json = serde_json::from_str(&text).unwrap();
    change(&mut json);
    fs::write(copy.path(file), json.to_string()).unwrap();
}

#[test]
fn a_template_that_cannot_be_compiled_stops_chats_alone() {
    for (template, says) in [
        (json!("{% if %}"), "has a syntax error in line 1"),
        (json!("{{ messages"), "has a syntax error in line 1"),
        (
            json!([{"name": "rag", "template": "x"}]),
            "the model has no default chat template; it has rag",
        ),
    ] {
        let copy = Copy::of("tiny-qwen2", "template");
        change(&copy, "tokenizer_config.json", |json| {
            json["chat_template"] = template
        });
        let mut model = loaded(&copy);
        let error = model.chat_template.unwrap().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(model.warnings, [format!("chats are refused: {error}")]);
        let prompt = model.tokenizer.encode("the").unwrap();
        assert!(!model.backend.prompt_logits(&prompt).unwrap().is_empty());
    }
    let copy = Copy::of("tiny-qwen2", "template-file");
    fs::write(copy.path("chat_template.json"), "{").unwrap();
    let model = loaded(&copy);
    assert!(model.chat_template.unwrap().is_err());
}

#[test]
fn what_changes_nothing_is_no_reason_to_refuse() {
    let copy = Copy::of("tiny-qwen2", "neutral");
    change(&copy, "config.json", |json| {
        for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
            json[key] = json!(0);
        }
    });
    change(&copy, "generation_config.json", |json| {
        json["do_sample"] = json!(true);
        json["top_k"] = json!(-1);
    });
    let model = loaded(&copy);
    assert_eq!(model.generation.sampling().unwrap().top_k(), None);
    assert_eq!(model.warnings, Vec::<String>::new());
}

#[test]
fn a_scaling_that_is_not_applied_is_said() {
    let copy = Copy::of("tiny-qwen2", "rope-warning");
    for (rope, says) in [
        (json!({"factor": 4.0}), "has a factor and no type"),
        (
            json!({"type": "dynamic", "factor": 4.0}),
            "longer contexts are not served",
        ),
    ] {
        change(&copy, "config.json", |json| json["rope_scaling"] = rope);
        let warnings = loaded(&copy).warnings.join("\n");
        assert!(warnings.contains(says), "{warnings}");
    }
}

/// A row of the embedding behind the last token is what makes its size round.
#[test]
fn a_row_without_a_token_is_never_chosen() {
    const TOKENS: usize = 381;
    for fixture in ["tiny-llama", "tiny-qwen2", "tiny-qwen3-untied-bf16"] {
        let copy = Copy::of(fixture, &format!("padded-{fixture}"));
        change(&copy, "tokenizer.json", |json| {
            json["added_tokens"] = json!([])
        });
        let mut model = loaded(&copy);
        assert_eq!(model.tokenizer.ids_end(), TOKENS);
        let golden = Golden::of(&copy.0);
        let prompt = &golden.prompts[0];
        let logits = model.backend.prompt_logits(&prompt.tokens()).unwrap();
        let last = logits.last().unwrap();
        assert_eq!(last.len(), TOKENS);
        let same = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-2;
        assert!(last.iter().zip(&prompt.last_logits).all(same), "{fixture}");

        let mut driver = Driver::new(model.backend, 3).unwrap();
        // Hot, so that every row that can be drawn is.
        let sampling = Sampling::GREEDY.with_temperature(100.0).unwrap();
        let requests: Vec<Request> = (0..16)
            .map(|id| {
                Request::new(RequestId::new(id), Time::ZERO, prompt.tokens(), 100)
                    .unwrap()
                    .with_sampling(sampling.with_seed(id))
            })
            .collect();
        let all: Vec<_> = requests.iter().map(of).collect();
        for request in requests {
            driver.start(request);
        }
        finish(&mut driver, &all, u32::MAX);
        let mut drawn: Vec<u32> = all
            .iter()
            .flat_map(|(id, _)| driver.outputs(*id))
            .map(|token| token.get())
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert!(drawn.len() > TOKENS * 9 / 10, "{} of them", drawn.len());
        assert!(drawn.iter().all(|&token| (token as usize) < TOKENS));
    }
}

/// Whether the file lists its added tokens as such alone, or among its own as well.
#[test]
fn a_token_without_a_row_is_refused_where_a_text_has_it() {
    for listed_twice in [false, true] {
        let copy = Copy::of("tiny-qwen2", &format!("surplus-{listed_twice}"));
        change(&copy, "tokenizer.json", |json| {
            let mut token = json["added_tokens"][0].clone();
            token["id"] = json!(384);
            token["content"] = json!("<extra>");
            json["added_tokens"].as_array_mut().unwrap().push(token);
            if listed_twice {
                for token in json["added_tokens"].as_array().unwrap().clone() {
                    let name = token["content"].as_str().unwrap();
                    json["model"]["vocab"][name] = token["id"].clone();
                }
            }
        });
        check_surplus(&copy);
    }
}

/// As in transformers, which looks at no vocabulary until it meets an id without a row.
#[test]
fn a_vocabulary_of_more_own_tokens_than_rows_is_served_and_texts_beyond_it_are_refused() {
    let copy = Copy::of("tiny-qwen2", "vocabulary");
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/austen-2m/tokenizer.json");
    fs::copy(tokenizer, copy.path("tokenizer.json")).unwrap();
    let model = loaded(&copy);
    let warned = "the tokenizer has tokens up to 2047 and the model's vocabulary holds 384";
    assert!(
        model.warnings[0].starts_with(warned),
        "{:?}",
        model.warnings
    );
    assert_eq!(model.tokenizer.ids_end(), 384);
    let (mut taken, mut refused) = (0, 0);
    for text in [
        "a",
        "b c",
        "It is a truth universally acknowledged",
        "x y z",
        "Mr. Darcy",
    ] {
        match model.tokenizer.encode(text) {
            Ok(tokens) => {
                taken += 1;
                assert!(tokens.iter().all(|token| token.get() < 384), "{text}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.to_string().ends_with("has no row"), "{text}: {error}");
            }
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} {refused}");
}

fn check_surplus(copy: &Copy) {
    let model = loaded(copy);
    assert_eq!(
        model.warnings,
        [
            "the tokenizer has tokens up to 384 and the model's vocabulary holds 384: a text with one of the others is \
          refused"
        ]
    );
    assert_eq!(model.tokenizer.ids_end(), 384);
    assert!(model.tokenizer.encode("the end<|im_end|>").is_ok());
    for encoded in [
        model.tokenizer.encode("the <extra> end"),
        model.tokenizer.encode_with_special("<extra>"),
    ] {
        assert_eq!(
            encoded.unwrap_err().to_string(),
            "the text has the token \"<extra>\" (id 384), for which the model's vocabulary of 384 has no row"
        );
    }
}
