//! Who is known: the shares of tenants, the groups that they belong to, and the groups' shares.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serve_core::{Request, TenantId};

use crate::demand::Demand;
use crate::order::Served;
use crate::settings::{GroupId, Settings};

/// The tenants of whom something is known. A tenant with a share and without a group is a group by
/// itself. All others together are the group [`GroupId::UNNAMED`], so that an id that a client makes
/// up wins it nothing against those who are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    tenants: BTreeMap<TenantId, Member>,
    groups: BTreeMap<GroupId, u32>,
    /// The share of each lane but 0, which is that of the unnamed.
    shares: Vec<NonZeroU32>,
    unnamed_share: Option<NonZeroU32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    share: NonZeroU32,
    group: Option<GroupId>,
    /// Its lane as a group by itself.
    lane: u32,
}

/// Where a tenant is served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::order) struct Seat {
    /// Its group, by number.
    pub(in crate::order) lane: u32,
    /// The share of the group.
    pub(in crate::order) group_share: NonZeroU32,
    /// Its own share inside of the group.
    pub(in crate::order) share: NonZeroU32,
    /// Whether it is a group by itself.
    pub(in crate::order) alone: bool,
}

impl Members {
    /// Those of whom the settings say something.
    pub fn of(settings: &Settings) -> Self {
        Self::new().with_all(settings)
    }

    fn with_all(self, settings: &Settings) -> Self {
        let mut members = self;
        for tenant in &settings.tenants {
            members = members.with_share(tenant.id, tenant.weight.unwrap_or(NonZeroU32::MIN));
            if let Some(group) = tenant.group {
                members = members.with_group(tenant.id, group);
            }
        }
        for &(group, share) in &settings.groups {
            members = members.with_group_share(group, share);
        }
        members
    }

    /// Takes what the settings say instead of what is known. A tenant that is known in both keeps the lane, and
    /// no lane is given to somebody else: what was counted in it is of who had it.
    pub(in crate::order) fn change(&mut self, settings: &Settings) {
        let mut to = Self {
            shares: vec![NonZeroU32::MIN; self.shares.len()],
            ..Self::new()
        };
        let named = settings.tenants.iter().map(|tenant| tenant.id);
        for tenant in named {
            if let Some(&Member { lane, .. }) = self.tenants.get(&tenant) {
                let member = Member {
                    share: NonZeroU32::MIN,
                    group: None,
                    lane,
                };
                to.tenants.insert(tenant, member);
            }
        }
        // A group that nobody is in any more costs its lane and no more.
        to.groups = std::mem::take(&mut self.groups);
        *self = to.with_all(settings);
    }

    /// Nobody is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `tenant` a share of `share` where others have one of 1: among all, or inside of its
    /// group if it has one.
    #[must_use]
    pub fn with_share(mut self, tenant: TenantId, share: NonZeroU32) -> Self {
        let member = self.member(tenant);
        member.share = share;
        let lane = member.lane;
        self.set_share(lane, share);
        self
    }

    /// Makes `tenant` a member of `group`.
    #[must_use]
    pub fn with_group(mut self, tenant: TenantId, group: GroupId) -> Self {
        self.group(group);
        self.member(tenant).group = Some(group);
        self
    }

    /// Gives all members of `group` together a share of `share` where others have one of 1.
    #[must_use]
    pub fn with_group_share(mut self, group: GroupId, share: NonZeroU32) -> Self {
        let lane = self.group(group);
        self.set_share(lane, share);
        self
    }

    /// Where `tenant` is served from. O(log tenants named).
    pub(in crate::order) fn seat(&self, tenant: TenantId) -> Seat {
        let member = self.tenants.get(&tenant);
        let group = member.and_then(|member| member.group);
        let alone = member.filter(|_| group.is_none());
        let group = group.and_then(|group| self.groups.get(&group));
        let lane = alone.map_or(group.copied().unwrap_or(0), |member| member.lane);
        Seat {
            lane,
            group_share: self.lane_share(lane),
            share: member.map_or(NonZeroU32::MIN, |member| member.share),
            alone: alone.is_some(),
        }
    }

    /// The tenants and the lanes that are known.
    pub(in crate::order) fn known(&self) -> (Vec<TenantId>, u32) {
        let tenants = self.tenants.keys().copied().collect();
        (tenants, self.shares.len() as u32)
    }

    /// The share of the group with this lane.
    pub(in crate::order) fn lane_share(&self, lane: u32) -> NonZeroU32 {
        let share = match lane {
            0 => self.unnamed_share,
            lane => self.shares.get(lane as usize - 1).copied(),
        };
        share.unwrap_or(NonZeroU32::MIN)
    }

    fn set_share(&mut self, lane: u32, share: NonZeroU32) {
        match lane {
            0 => self.unnamed_share = Some(share),
            lane => self.shares[lane as usize - 1] = share,
        }
    }

    fn member(&mut self, tenant: TenantId) -> &mut Member {
        let shares = &mut self.shares;
        self.tenants.entry(tenant).or_insert_with(|| Member {
            share: NonZeroU32::MIN,
            group: None,
            lane: next(shares),
        })
    }

    fn group(&mut self, id: GroupId) -> u32 {
        let shares = &mut self.shares;
        *self.groups.entry(id).or_insert_with(|| match id {
            GroupId::UNNAMED => 0,
            _ => next(shares),
        })
    }
}

/// A lane of its own.
fn next(shares: &mut Vec<NonZeroU32>) -> u32 {
    shares.push(NonZeroU32::MIN);
    shares.len() as u32
}

/// What a token costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::order) struct Weights {
    pub(in crate::order) input: u32,
    pub(in crate::order) output: u32,
}

impl Weights {
    /// What a request pays when it starts.
    pub(in crate::order) fn prompt(self, request: &Request) -> u128 {
        u128::from(self.input) * u128::from(request.prompt_tokens())
    }

    /// What it pays for tokens sampled.
    pub(in crate::order) fn outputs(self, served: Served) -> u128 {
        u128::from(self.output) * u128::from(served.output_tokens)
    }

    /// What those who wait will have paid when they have ended.
    pub(in crate::order) fn work(self, demand: &Demand) -> f64 {
        let part = |weight: u32, tokens: u64| f64::from(weight) * tokens as f64;
        part(self.input, demand.prompt_tokens) + part(self.output, demand.output_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_that_are_not_named_are_of_one_group() {
        let three = NonZeroU32::new(3).unwrap();
        let (first, second, other) = (TenantId::new(1), TenantId::new(2), TenantId::new(3));
        let members = Members::new()
            .with_share(first, three)
            .with_group(second, GroupId::new(9))
            .with_share(second, three)
            .with_group_share(GroupId::UNNAMED, three);
        let seat = |tenant| {
            let seat = members.seat(tenant);
            (
                seat.lane,
                seat.group_share.get(),
                seat.share.get(),
                seat.alone,
            )
        };
        assert_eq!(seat(first), (1, 3, 3, true));
        assert_eq!(seat(second), (2, 1, 3, false));
        assert_eq!(seat(other), (0, 3, 1, false));
        assert_eq!(seat(TenantId::new(4_000_000)), seat(other));
    }
}
