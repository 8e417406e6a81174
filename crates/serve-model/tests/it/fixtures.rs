//! Tiny random models and the embedded one, each with golden data from transformers.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serve_core::{Request, RequestId, Time, TokenId};
use serve_model::decode::DeviceKind;
use serve_model::load::{LoadOptions, Model, Source, load};

/// Every model folder under `tests/fixtures`.
pub(crate) fn names() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
    names.sort_unstable();
    assert!(names.len() >= 9, "fixtures are missing: {names:?}");
    names
}

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Small blocks, so that short prompts span several.
pub(crate) fn options() -> LoadOptions {
    LoadOptions {
        sequences_max: 16,
        step_tokens_max: 512,
        context_max: Some(256),
        block_size: 8,
        kv_tokens: Some(4_096),
        device: DeviceKind::Cpu,
        ..LoadOptions::default()
    }
}

pub(crate) fn fixture(name: &str) -> Model {
    load(&Source::Folder(folder(name)), &options(), &mut |_| ()).unwrap()
}

#[derive(Debug, Deserialize)]
pub(crate) struct Golden {
    pub(crate) prompts: Vec<Prompt>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Prompt {
    #[serde(alias = "text")]
    pub(crate) name: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    pub(crate) last_logits: Vec<f32>,
    pub(crate) all_logits: Option<Vec<Vec<f32>>>,
    pub(crate) continuation: Option<String>,
}

impl Golden {
    pub(crate) fn of(folder: &Path) -> Self {
        let text = std::fs::read_to_string(folder.join("golden.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn prompt(&self, name: &str) -> &Prompt {
        let found = self.prompts.iter().find(|prompt| prompt.name == name);
        found.unwrap_or_else(|| panic!("no golden prompt {name}"))
    }
}

impl Prompt {
    /// The logits that are known of it, and beside each what was found; `rows` are those after each of its tokens.
    pub(crate) fn beside<'a>(
        &'a self,
        rows: &'a [Vec<f32>],
    ) -> impl Iterator<Item = (&'a Vec<f32>, &'a Vec<f32>)> {
        let last = std::iter::once((&self.last_logits, rows.last().unwrap()));
        self.all_logits.iter().flatten().zip(rows).chain(last)
    }

    pub(crate) fn tokens(&self) -> Vec<TokenId> {
        tokens(&self.ids)
    }

    /// A greedy request for as many tokens as are known.
    pub(crate) fn request(&self, id: u64) -> Request {
        let outputs = self.greedy.len() as u32;
        Request::new(RequestId::new(id), Time::ZERO, self.tokens(), outputs).unwrap()
    }
}

pub(crate) fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId::new).collect()
}
