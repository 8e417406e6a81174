//! API keys in the settings file: which tenant each stands for, and what the tenant is due.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serve_core::{Class, TenantId};
use serve_http::auth::{Identity, KeyHash, Keys};

use crate::cli::Cli;
use crate::failure::Failure;
use crate::units::{RATE_ACCEPTED, Rate};

/// One `[[keys]]` of the settings file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeySettings {
    /// What the key is called; unique.
    name: String,
    /// Whom its requests are accounted to; the key's name where it is not said. Keys of one tenant
    /// share its weight and its rates.
    tenant: Option<String>,
    /// The key's hash.
    #[serde(skip_serializing)]
    sha256: String,
    /// The highest class that it may ask for; the lowest there is where it is not said.
    class: Option<String>,
    /// The tenant's share where others have one of 1.
    weight: Option<NonZeroU32>,
    /// Requests in a second; 0 is no limit.
    requests_per_s: Option<f64>,
    /// Tokens in a second, prompt and answer together; 0 is no limit.
    tokens_per_s: Option<f64>,
}

/// What the keys come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenants {
    pub(crate) keys: Keys,
    pub(crate) list: Vec<Tenant>,
}

/// One tenant. Its id is 1 + its place in the list; the anonymous one is not in it.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) id: TenantId,
    name: String,
    pub(crate) weight: Option<NonZeroU32>,
    pub(crate) requests_per_s: Option<Rate>,
    pub(crate) tokens_per_s: Option<Rate>,
}

impl Tenants {
    /// Checks the keys and numbers their tenants.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] that names the key and the field.
    pub(crate) fn of(cli: &Cli) -> Result<Self, Failure> {
        let mut tenants = Self::default();
        for (index, key) in cli.keys.iter().enumerate() {
            let wrong = |field: &str, cause: String| Failure::Usage {
                setting: format!("keys[{index}].{field}"),
                cause,
            };
            let same_name = |other: &KeySettings| other.name == key.name;
            if cli.keys[..index].iter().any(same_name) {
                return Err(wrong(
                    "name",
                    "there is another key of this name".to_owned(),
                ));
            }
            let hash: KeyHash = key
                .sha256
                .parse()
                .map_err(|error| wrong("sha256", format!("{error}")))?;
            let class = match &key.class {
                None => cli.requests.classes.len() - 1,
                Some(name) => cli.requests.class_rank(name).ok_or_else(|| {
                    wrong(
                        "class",
                        format!("it must be one of {}", cli.requests.classes.join(", ")),
                    )
                })?,
            };
            if key.weight.is_some() && cli.policy.order != "fair-tenants" {
                return Err(wrong("weight", "it needs --order fair-tenants".to_owned()));
            }
            let rate = |field, per_s: Option<f64>| match per_s {
                None => Ok(None),
                Some(per_s) => match Rate::new(per_s) {
                    Some(rate) => Ok(Some(rate)),
                    None => Err(wrong(field, format!("it must be {RATE_ACCEPTED}"))),
                },
            };
            let tenant = Tenant {
                id: TenantId::default(),
                name: key.tenant.as_ref().unwrap_or(&key.name).clone(),
                weight: key.weight,
                requests_per_s: rate("requests_per_s", key.requests_per_s)?,
                tokens_per_s: rate("tokens_per_s", key.tokens_per_s)?,
            };
            let id = tenants.join(tenant).map_err(|(field, name)| {
                let cause = format!("another key of the tenant {name:?} says something else");
                wrong(field, cause)
            })?;
            let identity = Identity {
                tenant: id,
                class: Class::new(u8::try_from(class).unwrap_or(u8::MAX)),
            };
            tenants.keys = std::mem::take(&mut tenants.keys).with(hash, identity);
        }
        Ok(tenants)
    }

    /// Adds what one key says of its tenant. The error is the field in which it contradicts another
    /// key, and the tenant's name.
    fn join(&mut self, said: Tenant) -> Result<TenantId, (&'static str, String)> {
        let Some(tenant) = self.list.iter_mut().find(|known| known.name == said.name) else {
            let id = TenantId::new(self.list.len() as u32 + 1);
            self.list.push(Tenant { id, ..said });
            return Ok(id);
        };
        let agree = merge(&mut tenant.weight, said.weight)
            .ok_or("weight")
            .and_then(|()| {
                merge(&mut tenant.requests_per_s, said.requests_per_s).ok_or("requests_per_s")
            })
            .and_then(|()| {
                merge(&mut tenant.tokens_per_s, said.tokens_per_s).ok_or("tokens_per_s")
            });
        match agree {
            Ok(()) => Ok(tenant.id),
            Err(field) => Err((field, said.name)),
        }
    }
}

/// Takes over what is said, unless something else is known.
fn merge<T: PartialEq>(known: &mut Option<T>, said: Option<T>) -> Option<()> {
    match (known.as_ref(), said) {
        (Some(known), Some(said)) if *known != said => None,
        (Some(_), _) | (None, None) => Some(()),
        (None, Some(said)) => {
            *known = Some(said);
            Some(())
        }
    }
}
