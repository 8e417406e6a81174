//! Settings that a server is started with, the settings that it says it has, and what two of them
//! have apart. An experiment that runs is not an experiment that measured what was meant: one who
//! compares two conditions has to show first that they differ, and in what alone.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use super::ours::{KEYS, NEVER_COUNTED, NEVER_SHOWN};

/// Settings to start a server with: names as in its settings file (`max_batch`), values as text.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ServerSettings(BTreeMap<String, String>);

/// A setting that is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no setting; accepted is NAME=VALUE, such as max_batch=8")]
pub struct NoSetting(String);

impl ServerSettings {
    /// The same with one setting more, or another value for it.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.insert(name.replace('-', "_"), value.into());
        self
    }

    /// The same with every setting of `other`, which wins.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let other = other.0.iter();
        self.0
            .extend(other.map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// Settings from command-line flags: `--max-batch=8`, `--max-batch 8`, or `--allow-anonymous`,
    /// which is `true`.
    ///
    /// # Errors
    ///
    /// [`NoSetting`] for a word that belongs to no flag.
    pub fn from_flags(flags: &[String]) -> Result<Self, NoSetting> {
        let mut settings = Self::default();
        let mut words = flags.iter().peekable();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| NoSetting(word.clone()))?;
            settings = match name.split_once('=') {
                Some((name, value)) => settings.with(name, value),
                None => match words.next_if(|next| !next.starts_with("--")) {
                    Some(value) => settings.with(name, value.as_str()),
                    None => settings.with(name, "true"),
                },
            };
        }
        Ok(settings)
    }

    /// The settings of a server's file, in TOML.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, in the parser's words.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let file: Map<String, Value> = toml::from_str(text).map_err(|error| error.to_string())?;
        let each = file
            .iter()
            .map(|(name, value)| (name.clone(), in_file(value)));
        Ok(Self(each.collect()))
    }

    /// What a server says that it has, but for what it leaves unset.
    pub fn of(effective: &Effective) -> Self {
        let set = effective.0.iter().filter(|(_, value)| !value.is_null());
        Self(
            set.map(|(name, value)| (name.clone(), shown(value)))
                .collect(),
        )
    }

    /// The value of a setting that is among them.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Name and value of each, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Command-line flags: `--max-batch=8`.
    pub fn flags(&self) -> impl Iterator<Item = String> {
        self.iter()
            .map(|(name, value)| format!("--{}={value}", name.replace('_', "-")))
    }

    /// Compares what was asked with what the server says that it has.
    ///
    /// # Errors
    ///
    /// [`NotAsAsked`] for the first setting that the server shows with another value or not at all.
    pub fn check(&self, effective: &Effective) -> Result<(), NotAsAsked> {
        for (name, asked) in self.iter().filter(|(name, _)| !NEVER_SHOWN.contains(name)) {
            let has = match name {
                KEYS => effective.0.get(name).map(names),
                _ => effective.0.get(name).map(shown),
            };
            let agrees = |has: &str| match name {
                // A server tells a key of itself and of no other.
                KEYS => has
                    .split(',')
                    .all(|key| asked.split(',').any(|one| one.trim() == key.trim())),
                _ => same(asked, has),
            };
            if !has.as_deref().is_some_and(agrees) {
                return Err(NotAsAsked {
                    name: name.to_owned(),
                    asked: asked.to_owned(),
                    has: has.unwrap_or_else(|| "nothing of that name".to_owned()),
                });
            }
        }
        Ok(())
    }
}

impl FromStr for ServerSettings {
    type Err = NoSetting;

    /// One `NAME=VALUE`.
    fn from_str(text: &str) -> Result<Self, NoSetting> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok(Self::default().with(name.trim().trim_start_matches('-'), value.trim()))
            }
            _ => Err(NoSetting(text.to_owned())),
        }
    }
}

impl FromIterator<Self> for ServerSettings {
    fn from_iter<T: IntoIterator<Item = Self>>(all: T) -> Self {
        all.into_iter()
            .fold(Self::default(), |settings, next| settings.and(&next))
    }
}

impl fmt::Display for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("defaults");
        }
        for (index, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}={value}", if index > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

/// A server that does not have what it was asked to have.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the server was started with {name}={asked}, and says that it has {has}")]
pub struct NotAsAsked {
    name: String,
    asked: String,
    has: String,
}

/// What a server says that it has, at `GET /v1/config`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Effective(pub Map<String, Value>);

/// One setting in which two servers differ.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The setting.
    pub name: String,
    /// What the one has.
    pub off: String,
    /// What the other has.
    pub on: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, off, on } = self;
        write!(f, "{name}: {off} -> {on}")
    }
}

/// Two conditions that are no experiment.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotOneApart {
    /// The setting that should have made the difference made none.
    #[error(
        "both conditions have the same effective settings; the experiment would measure nothing"
    )]
    Same,
    /// What is measured could come from either.
    #[error("the conditions differ in more than one setting: {}", list(.0))]
    Several(Vec<Difference>),
}

fn list(differences: &[Difference]) -> String {
    let all = differences.iter().map(ToString::to_string);
    all.collect::<Vec<_>>().join("; ")
}

impl Effective {
    /// What a setting is, as text; `null` for one that is not set, `None` for one that is not known.
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).map(shown)
    }

    /// The one setting in which the two differ.
    ///
    /// A setting that one of them does not have at all is a parameter of a policy that only the other
    /// has chosen (the window of static batches), and comes with that choice.
    ///
    /// # Errors
    ///
    /// [`NotOneApart`] when there is none, or more than one.
    pub fn one_apart(&self, other: &Self) -> Result<Difference, NotOneApart> {
        let names = self.0.keys().chain(other.0.keys());
        let names = names.filter(|name| !NEVER_COUNTED.contains(&name.as_str()));
        let value = |of: &Self, name: &str| of.get(name).unwrap_or_else(|| "null".to_owned());
        let mut differences = names
            .map(|name| Difference {
                name: name.clone(),
                off: value(self, name),
                on: value(other, name),
            })
            .filter(|difference| difference.off != difference.on)
            .collect::<Vec<_>>();
        differences.sort_by(|a, b| a.name.cmp(&b.name));
        differences.dedup();
        let of_both = |it: &&Difference| it.off != "null" && it.on != "null";
        let chosen = differences.iter().filter(of_both).cloned();
        let chosen = chosen.collect::<Vec<_>>();
        let counted = if chosen.is_empty() {
            differences
        } else {
            chosen
        };
        match <[Difference; 1]>::try_from(counted) {
            Ok([one]) => Ok(one),
            Err(none) if none.is_empty() => Err(NotOneApart::Same),
            Err(several) => Err(NotOneApart::Several(several)),
        }
    }
}

/// A value as one would set it: lists with commas, pairs with an equals sign.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(","),
        Value::Object(fields) => fields.values().map(shown).collect::<Vec<_>>().join("="),
        other => other.to_string(),
    }
}

/// The names of keys.
fn names(keys: &Value) -> String {
    let keys = keys.as_array().into_iter().flatten();
    let names = keys.filter_map(|key| key["name"].as_str());
    names.collect::<Vec<_>>().join(",")
}

/// A value of a file as one would set it: a table is pairs, `{ free = 64 }` is `free=64`.
fn in_file(value: &Value) -> String {
    match value {
        Value::Object(pairs) => {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(name, value)| format!("{name}={}", shown(value)));
            pairs.collect::<Vec<_>>().join(",")
        }
        other => shown(other),
    }
}

/// Whether two texts are the same value: `2` and `2.0` are.
fn same(asked: &str, has: &str) -> bool {
    let parts = |text: &str| {
        let parts = text.split([',', '=']);
        parts.map(|part| part.trim().to_owned()).collect::<Vec<_>>()
    };
    let equal = |(asked, has): (&String, &String)| {
        let numbers = (asked.parse::<f64>(), has.parse::<f64>());
        asked == has || matches!(numbers, (Ok(a), Ok(b)) if a == b)
    };
    let (asked, has) = (parts(asked), parts(has));
    asked.len() == has.len() && asked.iter().zip(&has).all(equal)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn effective(value: Value) -> Effective {
        serde_json::from_value(value).unwrap()
    }

    fn settings(all: &[&str]) -> ServerSettings {
        all.iter()
            .map(|text| text.parse::<ServerSettings>().unwrap())
            .collect()
    }

    #[test]
    fn what_was_asked_is_found_in_any_spelling_and_type() {
        let has = effective(json!({
            "max_batch": 8, "age_after": 2.0, "prefix_cache": false, "order": "aging-tiers",
            "class_queue_cap": [{"class": "free", "depth": 4}, {"class": "paid", "depth": 0}],
            "keys": [{"name": "light", "tenant": null}, {"name": "flood", "tenant": null}],
        }));
        let asked = settings(&[
            "max-batch=8",
            "age_after=2",
            "--prefix-cache=false",
            "order=aging-tiers",
            "class_queue_cap=free=4,paid=0",
            "config=serve.toml",
            "keys=light,flood",
        ]);
        assert_eq!(asked.check(&has), Ok(()));
        let wrong = settings(&["max_batch=9"]).check(&has).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "the server was started with max_batch=9, and says that it has 8"
        );
        let wrong = settings(&["class_queue_cap=free=4"])
            .check(&has)
            .unwrap_err();
        assert!(wrong.to_string().contains("free=4,paid=0"), "{wrong}");
        let wrong = settings(&["keys=light"]).check(&has).unwrap_err();
        assert!(wrong.to_string().ends_with("light,flood"), "{wrong}");
        let wrong = settings(&["batsch=1"]).check(&has).unwrap_err();
        assert!(
            wrong.to_string().ends_with("nothing of that name"),
            "{wrong}"
        );
    }

    #[test]
    fn one_setting_apart_is_one_choice_and_what_comes_with_it() {
        let off = json!({"port": 1, "max_batch": 16, "batch": "continuous", "batch_window": null});
        let on = json!({"port": 2, "max_batch": 16, "batch": "static", "batch_window": 0.01});
        let both = json!({"port": 2, "max_batch": 1, "batch": "static", "batch_window": 0.01});
        let kv = json!({"port": 2, "max_batch": 16, "batch": "continuous", "kv_tokens": 64});
        let off = effective(off);
        let apart = off.one_apart(&effective(on)).unwrap();
        assert_eq!(apart.to_string(), "batch: continuous -> static");
        let apart = off.one_apart(&effective(kv)).unwrap();
        assert_eq!(apart.to_string(), "kv_tokens: null -> 64");
        assert_eq!(off.one_apart(&off), Err(NotOneApart::Same));
        let several = off.one_apart(&effective(both)).unwrap_err().to_string();
        assert!(
            several.contains("batch: continuous -> static; max_batch: 16 -> 1"),
            "{several}"
        );
    }

    #[test]
    fn a_settings_file_says_what_flags_say() {
        let file =
            ServerSettings::from_toml("max_batch = 8\nmock_decode_us = [\"1=5\", \"4=6.5\"]\n");
        let flags = settings(&["max-batch=8", "mock-decode-us=1=5,4=6.5"]);
        assert_eq!(file.unwrap(), flags);
        let table = ServerSettings::from_toml("class_queue_cap = { free = 4, paid = 0 }").unwrap();
        assert_eq!(table.get("class_queue_cap"), Some("free=4,paid=0"));
        assert!(ServerSettings::from_toml("max_batch").is_err());
    }

    #[test]
    fn flags_become_settings() {
        let flags = [
            "--max-batch",
            "8",
            "--order=fifo",
            "--allow-anonymous",
            "--model",
            "a=b",
        ];
        let read = |words: &[&str]| {
            let words = words
                .iter()
                .map(|&word| word.to_owned())
                .collect::<Vec<_>>();
            ServerSettings::from_flags(&words)
        };
        let expected = settings(&[
            "max_batch=8",
            "order=fifo",
            "allow_anonymous=true",
            "model=a=b",
        ]);
        assert_eq!(read(&flags), Ok(expected));
        assert_eq!(read(&["8"]), Err(NoSetting("8".to_owned())));
        assert!(read(&["--"]).is_err());
    }

    #[test]
    fn settings_become_flags() {
        let all = settings(&["max-batch=8", "model=a=b"]);
        let flags = all.flags().collect::<Vec<_>>();
        assert_eq!(flags, ["--max-batch=8", "--model=a=b"]);
        assert_eq!(all.to_string(), "max_batch=8, model=a=b");
        assert!("=8".parse::<ServerSettings>().is_err());
        assert!("max_batch".parse::<ServerSettings>().is_err());
    }
}
