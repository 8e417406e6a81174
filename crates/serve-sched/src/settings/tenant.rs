//! What is said of tenants and of their groups.

use std::num::NonZeroU32;

use serve_core::TenantId;

/// What is said of one tenant; what is absent is as for everybody.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TenantSettings {
    /// Which one.
    pub id: TenantId,
    /// Its share under a fair order, where others have one of 1: among all, or in its group.
    pub weight: Option<NonZeroU32>,
    /// The group that it belongs to; absent, it is one by itself.
    pub group: Option<GroupId>,
    /// Requests that it may have in flight at once; zero is no limit.
    pub in_flight: Option<u32>,
    /// Positions that its requests may come to hold in the KV cache; zero is no limit.
    pub kv_tokens: Option<u64>,
    /// Its requests in a second; zero is no limit.
    pub requests_per_s: Option<f64>,
    /// Its tokens in a second; zero is no limit.
    pub tokens_per_s: Option<f64>,
}

/// A group of tenants that are served as one: the keys of an organisation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct GroupId(u32);

impl GroupId {
    /// The group of all tenants that nobody has named.
    pub const UNNAMED: Self = Self(0);

    /// The group with this number.
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
