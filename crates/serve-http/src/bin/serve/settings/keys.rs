//! API keys in the settings file: which tenant each stands for, and what the tenant is due.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use serve_core::{Class, TenantId};
use serve_http::auth::{Identity, KeyHash, Keys};
use serve_sched::order::ORDER;
use serve_sched::settings::{CLASSES, GroupId, Kind};
use serve_sched::victim::VICTIM;
use serve_sched::{Settings, TenantSettings};

use super::Cli;
use crate::failure::Failure;

/// The hash that the example of a settings file once had.
const SAMPLE: &str = "8f434346648f6b96df89dda901c5176b10a6d83961dd3c1ac88b59b2dc327aa4";

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
    /// The group that the tenant belongs to: among groups it is one, however many tenants it has.
    group: Option<String>,
    /// The group's share where others have one of 1.
    group_weight: Option<NonZeroU32>,
    /// Requests that may wait and run together; 0 is no limit.
    in_flight: Option<u32>,
    /// Tokens of the KV cache that its requests may come to hold together; 0 is no limit.
    kv_tokens: Option<u32>,
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
    pub(crate) groups: Vec<Group>,
}

/// One tenant. Its id is 1 + its place in the list; the anonymous one is not in it.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    name: String,
    /// Whether a key names it; one that had a key once keeps its number.
    is_present: bool,
    pub(crate) settings: TenantSettings,
}

/// One group of tenants. Its id is 1 + its place in the list.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    name: String,
    pub(crate) weight: Option<NonZeroU32>,
}

impl Tenants {
    /// Checks the keys and numbers their tenants.
    ///
    /// # Errors
    ///
    /// [`Failure::Usage`] that names the key and the field.
    pub(crate) fn of(cli: &Cli) -> Result<Self, Failure> {
        Self::default().again(cli)
    }

    /// The same where these are known already: a tenant that is still there keeps its number, and a number of
    /// somebody who has gone is not given to another, because requests of his may still run.
    ///
    /// # Errors
    ///
    /// As [`of`](Self::of).
    pub(crate) fn again(&self, cli: &Cli) -> Result<Self, Failure> {
        let mut tenants = self.numbers();
        let settings = cli.settings();
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
            if key.sha256.eq_ignore_ascii_case(SAMPLE) {
                let cause = "this hash stood in an example, and its key is known to everybody; `serve \
                             hash-key --generate` makes a key";
                return Err(wrong("sha256", cause.to_owned()));
            }
            let class = match &key.class {
                None => lowest(settings),
                Some(name) => settings.class(name).ok_or_else(|| {
                    let known = settings.get(&CLASSES).join(", ");
                    wrong("class", format!("it must be one of {known}"))
                })?,
            };
            if cli.upstream.is_on() && key.kv_tokens.is_some() {
                let cause = "the engine behind the gate has its own KV cache";
                return Err(wrong("kv_tokens", cause.to_owned()));
            }
            if let Some((field, needs)) = key.without_effect(settings) {
                return Err(wrong(field, format!("it needs {needs}")));
            }
            let rate = |field, per_s: Option<f64>| match per_s {
                None => Ok(None),
                Some(per_s) => match Kind::Rate.parse(&per_s.to_string()) {
                    Ok(_) => Ok(Some(per_s)),
                    Err(accepted) => Err(wrong(field, format!("it must be {accepted}"))),
                },
            };
            let tenant = Tenant {
                is_present: true,
                name: key.tenant.as_ref().unwrap_or(&key.name).clone(),
                settings: TenantSettings {
                    id: TenantId::default(),
                    weight: key.weight,
                    group: tenants.group(key).map_err(|name| {
                        let cause =
                            format!("another key of the group {name:?} says something else");
                        wrong("group_weight", cause)
                    })?,
                    in_flight: key.in_flight,
                    kv_tokens: key.kv_tokens.map(u64::from),
                    requests_per_s: rate("requests_per_s", key.requests_per_s)?,
                    tokens_per_s: rate("tokens_per_s", key.tokens_per_s)?,
                },
            };
            let name = tenant.name.clone();
            let id = tenants.join(tenant).map_err(|(field, name)| {
                let cause = format!("another key of the tenant {name:?} says something else");
                wrong(field, cause)
            })?;
            let identity = Identity { tenant: id, class };
            tenants.keys =
                std::mem::take(&mut tenants.keys).with_named(&key.name, &name, hash, identity);
        }
        Ok(tenants)
    }

    /// What scheduler and policies are told.
    pub(crate) fn settings(&self, cli: &Cli) -> Settings {
        let present = self.list.iter().filter(|tenant| tenant.is_present);
        let present = present.map(|tenant| tenant.settings.clone()).collect();
        let mut settings = cli.settings().clone().with_tenants(present);
        settings.groups = self.group_shares().collect();
        settings
    }

    /// Names and numbers alone.
    fn numbers(&self) -> Self {
        let tenants = self.list.iter().map(|tenant| Tenant {
            name: tenant.name.clone(),
            is_present: false,
            settings: TenantSettings {
                id: tenant.settings.id,
                ..TenantSettings::default()
            },
        });
        let groups = self.groups.iter().map(|group| Group {
            name: group.name.clone(),
            weight: None,
        });
        Self {
            keys: Keys::default(),
            list: tenants.collect(),
            groups: groups.collect(),
        }
    }

    /// The group of a key's tenant, if it is said. The error is the name of a group that another key
    /// gives another weight.
    fn group(&mut self, key: &KeySettings) -> Result<Option<GroupId>, String> {
        let Some(name) = &key.group else {
            return Ok(None);
        };
        let known = self.groups.iter().position(|group| group.name == *name);
        let index = known.unwrap_or_else(|| {
            self.groups.push(Group {
                name: name.clone(),
                weight: None,
            });
            self.groups.len() - 1
        });
        let merged = merge(&mut self.groups[index].weight, key.group_weight);
        merged.ok_or_else(|| name.clone())?;
        Ok(Some(group_id(index)))
    }

    /// The share of each group.
    pub(crate) fn group_shares(&self) -> impl Iterator<Item = (GroupId, NonZeroU32)> + '_ {
        let groups = self.groups.iter().enumerate();
        groups.map(|(index, group)| (group_id(index), group.weight.unwrap_or(NonZeroU32::MIN)))
    }

    /// Adds what one key says of its tenant. The error is the field in which it contradicts another
    /// key, and the tenant's name.
    fn join(&mut self, said: Tenant) -> Result<TenantId, (&'static str, String)> {
        let Some(tenant) = self.list.iter_mut().find(|known| known.name == said.name) else {
            let id = TenantId::new(self.list.len() as u32 + 1);
            let settings = TenantSettings {
                id,
                ..said.settings
            };
            self.list.push(Tenant { settings, ..said });
            return Ok(id);
        };
        tenant.is_present = true;
        let (known, said_of) = (&mut tenant.settings, said.settings);
        let merged = [
            ("weight", merge(&mut known.weight, said_of.weight)),
            ("group", merge(&mut known.group, said_of.group)),
            ("in_flight", merge(&mut known.in_flight, said_of.in_flight)),
            ("kv_tokens", merge(&mut known.kv_tokens, said_of.kv_tokens)),
            (
                "requests_per_s",
                merge(&mut known.requests_per_s, said_of.requests_per_s),
            ),
            (
                "tokens_per_s",
                merge(&mut known.tokens_per_s, said_of.tokens_per_s),
            ),
        ];
        match merged.into_iter().find(|(_, agree)| agree.is_none()) {
            None => Ok(known.id),
            Some((field, _)) => Err((field, said.name)),
        }
    }
}

impl KeySettings {
    /// A share that no policy reads, and what would read it.
    fn without_effect(&self, settings: &Settings) -> Option<(&'static str, &'static str)> {
        let order = settings.get(&ORDER);
        let among_tenants = order.split('/').any(|part| part == "fair-tenants");
        let is_fair = among_tenants || order.split('/').any(|part| part == "fair-groups");
        let of_victim = settings.get(&VICTIM) == "over-share-first";
        // Among groups, a tenant without one is a group by itself.
        let of_order = among_tenants || is_fair && self.group.is_none();
        if self.weight.is_some() && !of_order && !of_victim {
            return Some(("weight", "--order fair-tenants"));
        }
        if self.group.is_some() && !is_fair {
            return Some(("group", "--order fair-tenants"));
        }
        (self.group_weight.is_some() && self.group.is_none()).then_some(("group_weight", "a group"))
    }
}

fn group_id(index: usize) -> GroupId {
    GroupId::new(u32::try_from(index + 1).unwrap_or(u32::MAX))
}

/// The class of a key that says nothing of it.
fn lowest(settings: &Settings) -> Class {
    let rank = settings.get(&CLASSES).len().saturating_sub(1);
    Class::new(u8::try_from(rank).unwrap_or(u8::MAX))
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
