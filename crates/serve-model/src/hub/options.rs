//! Where the hub and its cache are, who asks, and how patiently.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HubError;

/// How to reach the hub. The only place that reads the environment is [`HubOptions::from_env`].
#[derive(Clone, PartialEq, Eq)]
pub struct HubOptions {
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// The token that private and gated models need.
    pub token: Option<String>,
    /// The cache folder, in the layout that Hugging Face's own tools share.
    pub cache_dir: PathBuf,
    /// Whether to use the cache only.
    pub offline: bool,
    /// How often to try again after a failure that may pass. Each attempt goes on where the one
    /// before it stopped.
    pub retries: u32,
    /// The pause before the first retry; each later one is twice as long, up to 30 s.
    pub backoff: Duration,
    /// How long a connection may be silent, and in how long 256 KiB of a file must come: 60 s. The list of
    /// files must come in five times that. What takes longer has failed, and may be retried.
    pub patience: Duration,
}

/// The longest pause before a retry.
pub(super) const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The longest pause that the hub is granted by its `Retry-After`: the hub's own windows are of five minutes.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Bytes of a file that must come within the patience: 4 KiB/s for the default.
pub(super) const SLOW_BYTES: u64 = 256 << 10;

const ENDPOINT: &str = "https://huggingface.co";

impl HubOptions {
    /// The public hub without a token, with the cache in `cache_dir`.
    pub fn new(cache_dir: PathBuf) -> Self {
        Self {
            endpoint: ENDPOINT.to_owned(),
            token: None,
            cache_dir,
            offline: false,
            retries: 5,
            backoff: Duration::from_secs(1),
            patience: Duration::from_secs(60),
        }
    }

    /// Reads what Hugging Face's own tools read: `HF_ENDPOINT`, `HF_TOKEN` (else the file at
    /// `HF_TOKEN_PATH`, else `token` in `HF_HOME`), `HF_HUB_CACHE` (else `hub` in `HF_HOME`), `HF_HOME`
    /// (else `huggingface` in `XDG_CACHE_HOME` or `~/.cache`) and `HF_HUB_OFFLINE`.
    ///
    /// # Errors
    ///
    /// [`HubError::NoCache`] if nothing says where the cache is.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Like [`HubOptions::from_env`], of variables that `get` looks up.
    ///
    /// # Errors
    ///
    /// [`HubError::NoCache`] if nothing says where the cache is.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let get = |name| get(name).filter(|value| !value.trim().is_empty());
        let path = |name| get(name).map(PathBuf::from);
        let cache_home =
            || path("XDG_CACHE_HOME").or_else(|| path("HOME").map(|home| home.join(".cache")));
        let home = path("HF_HOME").or_else(|| cache_home().map(|cache| cache.join("huggingface")));
        let in_home = |name| home.as_ref().map(|home| home.join(name));

        let cache_dir = path("HF_HUB_CACHE").or_else(|| in_home("hub"));
        let mut options = Self::new(cache_dir.ok_or(HubError::NoCache)?);
        if let Some(endpoint) = get("HF_ENDPOINT") {
            options.endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        }
        options.token = match get("HF_TOKEN") {
            Some(token) => Some(token.trim().to_owned()),
            None => path("HF_TOKEN_PATH")
                .or_else(|| in_home("token"))
                .and_then(|path| token_in(&path)),
        };
        options.offline = get("HF_HUB_OFFLINE").is_some_and(|value| {
            let value = value.trim().to_ascii_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        });
        Ok(options)
    }
}

/// The token that a login has left; a login is optional, so an unreadable file is none.
fn token_in(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let token = text.trim();
    (!token.is_empty()).then(|| token.to_owned())
}

/// Never shows the token.
impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "(set)"))
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .field("retries", &self.retries)
            .field("backoff", &self.backoff)
            .field("patience", &self.patience)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(variables: &[(&str, &str)]) -> Result<HubOptions, HubError> {
        HubOptions::from_variables(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn cache(variables: &[(&str, &str)]) -> PathBuf {
        options(variables).unwrap().cache_dir
    }

    #[test]
    fn the_cache_is_where_other_tools_look() {
        assert_eq!(
            cache(&[("HOME", "/people/ada")]),
            Path::new("/people/ada/.cache/huggingface/hub")
        );
        let xdg = ("XDG_CACHE_HOME", "/cache");
        assert_eq!(
            cache(&[("HOME", "/people/ada"), xdg]),
            Path::new("/cache/huggingface/hub")
        );
        let home = ("HF_HOME", "/hf");
        assert_eq!(cache(&[xdg, home]), Path::new("/hf/hub"));
        let hub = ("HF_HUB_CACHE", "/models");
        assert_eq!(cache(&[home, hub]), Path::new("/models"));
        assert!(matches!(options(&[]), Err(HubError::NoCache)));
    }

    #[test]
    fn an_empty_variable_is_no_variable() {
        let home = ("HF_HOME", "/no/such/folder");
        let plain = options(&[home]).unwrap();
        assert_eq!(plain, HubOptions::new("/no/such/folder/hub".into()));
        let empty = [
            home,
            ("HF_ENDPOINT", " "),
            ("HF_TOKEN", ""),
            ("HF_HUB_OFFLINE", ""),
        ];
        assert_eq!(options(&empty).unwrap(), plain);
    }

    #[test]
    fn endpoint_offline_and_token_are_read() {
        let home = ("HF_HOME", "/no/such/folder");
        let set = options(&[
            home,
            ("HF_ENDPOINT", "http://hub.example/"),
            ("HF_HUB_OFFLINE", "true"),
            ("HF_TOKEN", "hf_secret"),
        ])
        .unwrap();
        assert_eq!(set.endpoint, "http://hub.example");
        assert!(set.offline);
        assert_eq!(set.token.as_deref(), Some("hf_secret"));
        assert!(!format!("{set:?}").contains("secret"));
        assert!(!options(&[home, ("HF_HUB_OFFLINE", "0")]).unwrap().offline);
    }

    #[test]
    fn a_login_leaves_its_token_in_the_home_folder() {
        let home = std::env::temp_dir().join(format!("serve-model-token-{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("token"), "hf_file\n").unwrap();
        let home_variable = home.display().to_string();
        let variables = [("HF_HOME", home_variable.as_str())];
        let found = options(&variables).unwrap().token;
        let overridden = options(&[variables[0], ("HF_TOKEN", "hf_variable")]).unwrap();
        std::fs::remove_dir_all(&home).unwrap();
        assert_eq!(found.as_deref(), Some("hf_file"));
        assert_eq!(overridden.token.as_deref(), Some("hf_variable"));
    }
}
