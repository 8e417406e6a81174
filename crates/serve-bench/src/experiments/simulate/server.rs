//! A pretended server, to be simulated or to be run in this process: device and policies, from
//! settings by the names that `serve` has for them. It takes what `serve` takes, and refuses in the same
//! words what `serve` refuses.

use serde_json::Value;
use serve_core::mock::{Mock, MockConfig};
use serve_core::{Backend, Span};
use serve_sched::Scheduler;
use serve_sched::settings::{CLASSES, QUEUE_TIMEOUT, REQUEST_TIMEOUT, Setting, SettingError};
use serve_sched::table::{find, table};
use thiserror::Error;

use crate::experiments::servers::ServerSettings;
use crate::experiments::servers::ours::WITHOUT_EFFECT;
use crate::store::manifest::Runtime;
use crate::transport::engine::Terms;

/// A pretended server. Without settings it is `serve --backend mock`.
#[derive(Clone, Debug, Default)]
pub struct ServerModel {
    /// What it was made from.
    pub settings: ServerSettings,
    scheduler: serve_sched::Settings,
}

/// A setting that a pretended server cannot have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ModelError {
    /// A setting cannot be had.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Nothing could ever run.
    #[error("{0}")]
    Impossible(String),
}

impl ServerModel {
    /// `serve --backend mock` with these settings.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the setting and what it takes.
    pub fn new(settings: &ServerSettings) -> Result<Self, ModelError> {
        let mut model = Self {
            settings: settings.clone(),
            ..Self::default()
        };
        for (name, value) in settings.iter() {
            match (find(name), WITHOUT_EFFECT.contains(&name)) {
                (Some(_), _) => model.scheduler.set_text(name, value)?,
                (None, true) => {}
                (None, false) => return Err(unknown(name).into()),
            }
        }
        model.scheduler()?;
        Ok(model)
    }

    /// A server of which [`ServerSettings::of`] tells all, also what makes no difference here.
    ///
    /// # Errors
    ///
    /// [`ModelError`] names the setting whose value cannot be had.
    pub(crate) fn of_server(settings: &ServerSettings) -> Result<Self, ModelError> {
        let known = settings.iter().filter(|(name, _)| find(name).is_some());
        let known = known.map(|(name, value)| ServerSettings::default().with(name, value));
        Self::new(&known.collect())
    }

    /// The pretended device.
    ///
    /// # Errors
    ///
    /// [`ModelError`] when its step times are no function of the batch, or nothing fits on it.
    pub(crate) fn device(&self) -> Result<Mock, ModelError> {
        Ok(Mock::new(self.scheduler.mock(&MockConfig::default())?))
    }

    /// A scheduler for that device.
    ///
    /// # Errors
    ///
    /// [`ModelError`] when settings contradict each other, or when nothing could ever run.
    pub(crate) fn scheduler(&self) -> Result<Scheduler, ModelError> {
        let policies = self.scheduler.policies()?;
        let scheduler = Scheduler::new(self.device()?.limits(), policies);
        scheduler.map_err(|error| ModelError::Impossible(error.to_string()))
    }

    /// What it knows of those who ask.
    pub(crate) fn terms(&self) -> Terms {
        let limit = |time: &Setting<Span>| {
            let time = self.scheduler.get(time);
            Some(time).filter(|time| !time.is_zero())
        };
        Terms {
            classes: self.scheduler.get(&CLASSES),
            request_timeout: limit(&REQUEST_TIMEOUT),
            queue_timeout: limit(&QUEUE_TIMEOUT),
            ..Terms::default()
        }
    }

    /// Layer 2 of a manifest: its settings.
    pub(crate) fn runtime(&self) -> Runtime {
        let settings = self.settings.iter();
        let settings = settings.map(|(name, value)| (name.to_owned(), Value::from(value)));
        Runtime {
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            config: Some(Value::Object(settings.collect())),
            ..Runtime::default()
        }
    }
}

fn unknown(name: &str) -> SettingError {
    let known = table().into_iter().map(|entry| entry.row.name);
    let mut known: Vec<&str> = known.chain(WITHOUT_EFFECT).collect();
    known.sort_unstable();
    SettingError::Unknown {
        name: name.to_owned(),
        known,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serve_core::{Class, StepLoad};

    use super::*;

    /// States or mentions every setting of `serve`; a test of `serve` sees to that.
    const EXAMPLE: &str = include_str!("../../../../../docs/serve.toml");

    fn model(all: &[&str]) -> Result<ServerModel, ModelError> {
        let settings = all
            .iter()
            .map(|text| text.parse::<ServerSettings>().unwrap());
        ServerModel::new(&settings.collect())
    }

    /// The names of the settings in the example: lines like `# log = "info"` and `# model: a folder`.
    fn of_serve() -> BTreeSet<&'static str> {
        let names = EXAMPLE.split("# [[keys]]").next().unwrap().lines();
        let names = names.filter_map(|line| {
            let line = line.strip_prefix("# ")?;
            let (name, _) = line.split_once(" = ").or_else(|| line.split_once(": "))?;
            let is_name = |b: u8| b.is_ascii_lowercase() || b == b'_';
            name.bytes().all(is_name).then_some(name)
        });
        names.chain(["config", "keys"]).collect()
    }

    #[test]
    fn every_setting_of_the_server_is_known_and_no_other() {
        let known = table().into_iter().map(|entry| entry.row.name);
        let known: BTreeSet<&str> = known.chain(WITHOUT_EFFECT).collect();
        assert_eq!(known, of_serve());
        assert!(WITHOUT_EFFECT.is_sorted());
        for name in WITHOUT_EFFECT {
            assert!(find(name).is_none(), "{name}");
            assert!(model(&[&format!("{name}=bf16")]).is_ok(), "{name}");
        }
    }

    #[test]
    fn without_settings_it_is_the_server_without_settings() {
        let model = ServerModel::default();
        assert_eq!(model.scheduler, serve_sched::Settings::default());
    }

    #[test]
    fn settings_are_those_of_the_server() {
        let model = model(&[
            "max_batch=4",
            "batch=static",
            "batch_window=0.02",
            "order=aging-tiers",
            "age_after=1.5",
            "classes=gold,tin",
            "class_queue_cap=tin=3",
            "kv_tokens=160",
            "deadline_admission=true",
            "deadline_margin=0.5",
            "mock_decode_us=1=100,4=200.5",
            "mock_prefill_us=2",
            "mock_speed=2",
            "prefix_cache=yes",
            "queue_timeout=3",
            "log=warn",
            "port=8000",
        ]);
        let model = model.unwrap();
        let terms = model.terms();
        assert_eq!(terms.class("tin"), Some(Class::new(1)));
        assert_eq!(terms.class("paid"), None);
        assert_eq!(terms.queue_timeout, Some(Span::from_secs(3)));
        assert_eq!(terms.request_timeout, None);
        let device = model.device().unwrap();
        assert_eq!(device.limits().usable_blocks(), 10);
        let load = StepLoad {
            segments: 4,
            prefill_tokens: 10,
            context_tokens: 0,
        };
        assert_eq!(
            device.config().cost.step(&load),
            Span::from_nanos((200_500 + 20_000) / 2)
        );
    }

    #[test]
    fn a_settings_file_of_the_server_is_taken_as_it_is() {
        let text = "precision = \"bf16\"\nmax_batch = 4\nprefix_cache = \"yes\"\n\
                    class_queue_cap = { free = 4, paid = 0 }\nclasses = [\"paid\", \"free\"]\n\
                    mock_decode_us = []\n[[keys]]\nname = \"a\"\n";
        let model = ServerModel::new(&ServerSettings::from_toml(text).unwrap()).unwrap();
        let given = model.scheduler;
        assert!(given.is_given("class_queue_cap") && given.is_given("max_batch"));
    }

    #[test]
    fn what_the_server_says_of_itself_can_be_simulated() {
        let effective = serde_json::json!({
            "max_batch": 8, "order": "aging-tiers", "age_after": 2.0, "wait_max": null,
            "class_queue_cap": [{"class": "free", "depth": 4}], "mock_decode_us": [],
            "classes": ["paid", "free"], "queue_timeout": 0.0, "host": "::", "tomorrow": 1,
        });
        let effective = serde_json::from_value(effective).unwrap();
        let model = ServerModel::of_server(&ServerSettings::of(&effective)).unwrap();
        assert!(model.scheduler.is_given("age_after") && !model.scheduler.is_given("wait_max"));
    }

    #[test]
    fn what_cannot_be_is_refused_in_the_words_of_the_server() {
        let table: &[(&[&str], &str)] = &[
            (
                &["max_btach=8"],
                "max_btach is not a setting; known are age_after, allow_anonymous",
            ),
            (
                &["batch=statik"],
                "one of continuous, one-at-a-time, static",
            ),
            (&["max_batch=0"], "a whole number from 1 up"),
            (
                &["order=aging-tiers", "age_after=1e9"],
                "a number of seconds from 0 to 86400",
            ),
            (&["prefix_cache=perhaps"], "true or false"),
            (
                &["wait_max=5"],
                "--wait-max: it needs --order response-ratio",
            ),
            (
                &["deadline_margin=5"],
                "--deadline-margin: it needs --deadline-admission",
            ),
            (
                &["class_queue_cap=gold=1"],
                "there is no class \"gold\"; known are paid, free",
            ),
            (
                &["classes=a,a"],
                "--classes: it must be 1 to 16 different names",
            ),
            (
                &["queue_timeout=5", "request_timeout=5"],
                "--queue-timeout: it must be below --request-timeout",
            ),
            (
                &["batch=static", "batch_window=1", "batch_window_max=0.1"],
                "--batch-window-max: it must not be below --batch-window",
            ),
            (&["kv_tokens=3"], "--kv-tokens: it must be at least 16"),
            (&["mock_decode_us=2=5,1=3"], "does not increase"),
        ];
        for (all, part) in table {
            let message = model(all).unwrap_err().to_string();
            assert!(message.contains(part), "{all:?}: {message}");
        }
    }
}
