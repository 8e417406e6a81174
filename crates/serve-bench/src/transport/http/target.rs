//! The server to measure: its address, its model, and what it says of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, SERVER};
use hyper::{Request, Uri};
use serde_json::Value;
use thiserror::Error;

use super::chain;
use super::connection::{Body, Connections, Dial};
use crate::store::command::without_secrets;
use crate::store::manifest::{Model, Runtime};
use crate::workload::spec::Tenant;

/// How long a server may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that cannot be measured.
#[derive(Debug, Error)]
pub enum TargetError {
    /// The address is of another kind.
    #[error(
        "{0} is no server address; accepted is http://HOST:PORT, without a user, a password or a query (a key goes into \
         OPENAI_API_KEY)"
    )]
    Address(String),
    /// The server does not say which models it has.
    #[error("GET {url} gave no model ({cause}); is the server up? Or name one with --model")]
    Models {
        /// What was asked.
        url: String,
        /// What came of it.
        cause: String,
    },
    /// A key holds what a header cannot.
    #[error("the API key of {0} has characters that a header cannot hold")]
    Key(String),
    /// A tenant's key is missing.
    #[error("tenant {tenant} takes its API key from ${variable}, which is not set")]
    NoKey {
        /// The tenant.
        tenant: String,
        /// The environment variable.
        variable: String,
    },
    /// A class has a name that a header cannot hold.
    #[error("class {0:?} cannot stand in a header; accepted is a name of visible ASCII characters")]
    Class(String),
}

/// A server, and the model to ask for.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(super) connections: Connections,
    pub(super) host: HeaderValue,
    pub(super) key: Option<HeaderValue>,
    /// Keys of tenants that the server was started with, by the tenant's name.
    keys: BTreeMap<String, HeaderValue>,
    pub(super) model: String,
    url: String,
    is_local: bool,
    models: Option<Value>,
}

/// What a server says of itself, for the manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Described {
    /// Layer 1.
    pub model: Model,
    /// Layer 2.
    pub runtime: Runtime,
}

impl Target {
    /// The server at `address`, such as `http://127.0.0.1:8000`; a trailing `/v1` is accepted. Without
    /// a `model`, the first one that the server lists.
    ///
    /// # Errors
    ///
    /// [`TargetError`] when the address is no HTTP address or the server lists no model.
    pub(crate) async fn new(
        address: &str,
        model: Option<String>,
        key: Option<String>,
    ) -> Result<Self, TargetError> {
        Self::over(None, address, model, key).await
    }

    /// The same server, reached by `dial` instead of TCP.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub(crate) async fn over(
        dial: Option<Dial>,
        address: &str,
        model: Option<String>,
        key: Option<String>,
    ) -> Result<Self, TargetError> {
        let wrong = || TargetError::Address(without_secrets(address));
        let base = address.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let uri = base.parse::<Uri>().map_err(|_| wrong())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let bare = uri.path() == "/" && uri.query().is_none();
        let authority = authority.filter(|it| bare && !it.as_str().contains('@'));
        let authority = authority.ok_or_else(wrong)?;
        let name = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let is_local = name == "localhost" || name == "::1" || name.starts_with("127.");
        let port = authority.port_u16().unwrap_or(80);
        let mut target = Self {
            is_local,
            connections: Connections::new(dial.unwrap_or_else(|| Dial::tcp(name, port))),
            host: HeaderValue::from_str(authority.as_str()).map_err(|_| wrong())?,
            key: key
                .map(|key| bearer("the command line", &key))
                .transpose()?,
            keys: BTreeMap::new(),
            model: String::new(),
            url: base.to_owned(),
            models: None,
        };
        let models = target.get("/v1/models").await;
        target.models = models.as_ref().ok().map(|(_, models)| models.clone());
        target.model = match model {
            Some(model) => model,
            None => {
                let first = models.and_then(|(_, models)| {
                    let id = models["data"][0]["id"].as_str().map(str::to_owned);
                    id.ok_or_else(|| "the list is empty".to_owned())
                });
                let url = format!("{base}/v1/models");
                first.map_err(|cause| TargetError::Models { url, cause })?
            }
        };
        Ok(target)
    }

    /// The same server, which knows these tenants by these keys.
    ///
    /// # Errors
    ///
    /// [`TargetError::Key`] when a key cannot stand in a header.
    pub(crate) fn with_keys(
        mut self,
        keys: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, TargetError> {
        for (tenant, key) in keys {
            let key = bearer(&tenant, &key)?;
            self.keys.insert(tenant, key);
        }
        Ok(self)
    }

    /// What a tenant sends: the key in its environment variable, or the one that the server was started with, or that
    /// of the command line.
    pub(super) fn key_of(&self, tenant: &Tenant) -> Result<Option<HeaderValue>, TargetError> {
        match &tenant.api_key_env {
            Some(variable) => in_environment(&tenant.name, variable).map(Some),
            None => Ok(self.keys.get(&tenant.name).or(self.key.as_ref()).cloned()),
        }
    }

    /// The model that is asked for.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The base address, without `/v1`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the server has a loopback address.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Tokens of a prompt and its answer together, where the server says how many the model takes.
    pub(crate) fn context_max(&self) -> Option<u32> {
        let entry = self.entry()?;
        // As this project names it, and as vLLM does.
        let names = ["context_length", "max_model_len"].into_iter();
        let tokens = names.filter_map(|name| entry.get(name)?.as_u64()).next();
        tokens.and_then(|tokens| u32::try_from(tokens).ok())
    }

    /// Asks the server what it is. Whatever it does not say is absent.
    pub(crate) async fn describe(&self) -> Described {
        let config = self.get("/v1/config").await.ok();
        let entry = self.entry();
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let setting = |name: &str| text(config.as_ref().and_then(|(_, config)| config.get(name)));
        Described {
            model: Model {
                name: self.model.clone(),
                revision: text(entry.and_then(|entry| entry.get("revision")))
                    .or_else(|| setting("revision")),
                described: entry.cloned(),
            },
            runtime: Runtime {
                url: self.url.clone(),
                server: config.as_ref().and_then(|(server, _)| server.clone()),
                version: setting("version"),
                config: config.map(|(_, config)| config),
                command: None,
            },
        }
    }

    /// What the server's list says of the model.
    fn entry(&self) -> Option<&Value> {
        let entries = self.models.as_ref()?["data"].as_array()?;
        entries.iter().find(|entry| entry["id"] == *self.model)
    }

    /// The `Server` header and the JSON body of a path.
    async fn get(&self, path: &str) -> Result<(Option<String>, Value), String> {
        let asked = tokio::time::timeout(PATIENCE, self.ask(path)).await;
        asked.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
    }

    async fn ask(&self, path: &str) -> Result<(Option<String>, Value), String> {
        let mut request = Request::get(path).header(HOST, self.host.clone());
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        let request = request
            .body(Body::new(Bytes::new()))
            .map_err(|error| error.to_string())?;
        let mut connection = self.connections.open().await?;
        let response = connection
            .send(request)
            .await
            .map_err(|error| error.cause)?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status()));
        }
        let server = response
            .headers()
            .get(SERVER)
            .and_then(|server| server.to_str().ok());
        let server = server.map(str::to_owned);
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| chain(&error))?;
        let value = serde_json::from_slice(&body.to_bytes()).map_err(|error| error.to_string())?;
        Ok((server, value))
    }
}

/// The key of a tenant in an environment variable.
fn in_environment(tenant: &str, variable: &str) -> Result<HeaderValue, TargetError> {
    let key = std::env::var(variable).ok().filter(|key| !key.is_empty());
    let missing = || TargetError::NoKey {
        tenant: tenant.to_owned(),
        variable: variable.to_owned(),
    };
    bearer(tenant, &key.ok_or_else(missing)?)
}

fn bearer(whose: &str, key: &str) -> Result<HeaderValue, TargetError> {
    let value = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut value = value.map_err(|_| TargetError::Key(whose.to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn target(address: &str) -> Result<Target, TargetError> {
        Target::new(address, Some("m".to_owned()), None).await
    }

    #[tokio::test]
    async fn an_address_of_another_kind_is_refused() {
        for address in [
            "https://example.org",
            "127.0.0.1:8000",
            "http://",
            "",
            "http://h/path",
            "http://user:s3cr3t@127.0.0.1:1",
            "http://user:s3cr3t@127.0.0.1:1/v1",
            "http://s3cr3t@127.0.0.1:1",
            "http://127.0.0.1:1?key=s3cr3t",
            "http://127.0.0.1:1/?s3cr3t",
            "https://user:s3cr3t@127.0.0.1:1",
            "user:s3cr3t@127.0.0.1:1",
        ] {
            let error = target(address).await.unwrap_err();
            assert!(matches!(error, TargetError::Address(_)), "{address}");
            assert!(!error.to_string().contains("s3cr3t"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_base_with_or_without_its_version_is_the_same_server() {
        for address in [
            "http://127.0.0.1:1",
            "http://127.0.0.1:1/",
            "http://127.0.0.1:1/v1",
            "http://127.0.0.1:1/v1/",
        ] {
            let target = target(address).await.unwrap();
            assert_eq!(target.url(), "http://127.0.0.1:1");
            assert!(target.is_local());
        }
    }
}
