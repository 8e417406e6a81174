//! API keys of the tenants of a server that is started for a measurement.
//!
//! The setting `keys=light,flood` names tenants. Each gets a key that follows from its name, and the server a settings
//! file with their hashes. Such a server lives on this machine alone and for the measurement alone, so that nothing
//! is given away by a key that can be guessed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::ServerSettings;
use super::ours::{FILE, KEYS};
use crate::hex::hex;

/// The key of a tenant.
pub fn key_of(tenant: &str) -> String {
    format!("serve-bench-{tenant}")
}

/// A key of a server with these settings, whichever; `None` where it needs none.
pub(crate) fn any_key(settings: &ServerSettings) -> Option<String> {
    tenants(settings)?.next().map(key_of)
}

/// The key of one tenant of a server with these settings; `None` where it has no key of this name.
pub(crate) fn key_in(settings: &ServerSettings, tenant: &str) -> Option<String> {
    tenants(settings)?
        .any(|name| name == tenant)
        .then(|| key_of(tenant))
}

fn tenants(settings: &ServerSettings) -> Option<impl Iterator<Item = &str>> {
    let names = settings.get(KEYS)?.split(',').map(str::trim);
    Some(names.filter(|name| !name.is_empty()))
}

/// The settings as flags of `serve`: keys stand in a file beside its log, which is written here.
pub(super) fn in_file(settings: &ServerSettings, log: &Path) -> io::Result<ServerSettings> {
    let Some(names) = tenants(settings) else {
        return Ok(settings.clone());
    };
    if settings.get(FILE).is_some() {
        return Err(io::Error::other(
            "keys are written to a settings file of their own; list them in that of config instead",
        ));
    }
    let path: PathBuf = log.with_extension("keys.toml");
    let key = |name: &str| {
        let hash = hex(&Sha256::digest(key_of(name)));
        let name = toml::Value::from(name);
        format!("[[keys]]\nname = {name}\nsha256 = \"{hash}\"\n")
    };
    fs::write(&path, names.map(key).collect::<String>())?;
    let others = settings.iter().filter(|(name, _)| *name != KEYS);
    let others = others.fold(ServerSettings::default(), |all, (name, value)| {
        all.with(name, value)
    });
    Ok(others.with(FILE, path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_a_hash_for_each_tenant_and_flags_name_it() {
        let log = std::env::temp_dir().join(format!("keys-{}.log", std::process::id()));
        let settings = ServerSettings::default()
            .with("max_batch", "8")
            .with(KEYS, "light, flood");
        let flags = in_file(&settings, &log).unwrap();
        let path = flags.get("config").unwrap();
        let text = fs::read_to_string(path).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(flags.iter().count(), 2, "{flags}");
        let file: toml::Table = toml::from_str(&text).unwrap();
        let keys = file["keys"].as_array().unwrap();
        let names = keys.iter().map(|key| key["name"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>(), ["light", "flood"]);
        assert!(!text.contains("serve-bench-"), "{text}");
        assert_eq!(key_in(&settings, "flood").unwrap(), key_of("flood"));
        assert_eq!(key_in(&settings, "nobody"), None);
        assert_eq!(any_key(&settings).unwrap(), key_of("light"));
    }

    #[test]
    fn any_name_can_be_read_again_and_a_file_of_the_users_own_is_not_replaced() {
        let log = std::env::temp_dir().join(format!("names-{}.log", std::process::id()));
        for name in [
            "it's",
            "a \"b\"",
            "c\\d",
            "e\u{301}\u{7f}\tf",
            "[x]\nsha256 = 1",
        ] {
            let settings = ServerSettings::default().with(KEYS, name);
            let flags = in_file(&settings, &log).unwrap();
            let text = fs::read_to_string(flags.get("config").unwrap()).unwrap();
            let file: toml::Table = toml::from_str(&text).unwrap();
            assert_eq!(file["keys"][0]["name"].as_str(), Some(name), "{text}");
        }
        fs::remove_file(log.with_extension("keys.toml")).unwrap();
        let both = ServerSettings::default()
            .with(KEYS, "light")
            .with("config", "own.toml");
        let error = in_file(&both, &log).unwrap_err().to_string();
        assert!(
            error.contains("keys") && error.contains("config"),
            "{error}"
        );
    }

    #[test]
    fn without_keys_nothing_is_written() {
        let settings = ServerSettings::default().with("max_batch", "8");
        assert_eq!(
            in_file(&settings, Path::new("/nowhere/log")).unwrap(),
            settings
        );
        assert_eq!(any_key(&settings), None);
    }
}
