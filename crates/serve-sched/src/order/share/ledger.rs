//! Virtual token counters of lanes that compete: who waits, who was given how much, and the counter
//! below which nobody has any credit.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use hashbrown::HashTable;
use serve_core::rng::mix;

/// The counters of the lanes of one level. Every operation is O(log lanes).
///
/// Counters have 128 bits. At the greatest weights, a billion tokens a second fill one in 35 million
/// years, so they add up exactly and are never made smaller.
#[derive(Debug)]
pub(in crate::order) struct Ledger {
    accounts: HashTable<Account>,
    /// Lanes that wait, by a counter that may have risen since.
    waiting: BTreeSet<(u128, u32)>,
    last_waiting: Option<u32>,
    /// The service of all lanes that wait, and their shares.
    service_waiting: u128,
    shares_waiting: u64,
    forget_at: usize,
}

/// A lane that waits, is served, or is ahead of the others.
#[derive(Debug)]
pub(in crate::order) struct Account {
    lane: u32,
    share: NonZeroU32,
    /// Weighted tokens, not divided by the share: charges add up exactly.
    service: u128,
    waiting: u32,
    /// Requests taken and not ended, the preempted included.
    begun: u32,
    /// Under which counter it is in the index of those that wait.
    indexed: u128,
}

/// How finely counters resolve a token divided by a share.
const RESOLUTION: u128 = 1 << 16;
const FORGET_AT_LEAST: usize = 64;
/// Lanes that a prediction looks at one by one.
const LOOKED_AT: usize = 32;
/// Idle lanes that are remembered for being ahead.
const IDLE_MAX: usize = 1 << 16;

impl Ledger {
    pub(in crate::order) fn new() -> Self {
        Self {
            accounts: HashTable::new(),
            waiting: BTreeSet::new(),
            last_waiting: None,
            service_waiting: 0,
            shares_waiting: 0,
            forget_at: FORGET_AT_LEAST,
        }
    }

    /// A request of `lane` begins to wait. A lane of which nothing waited yet is lifted to the floor.
    pub(in crate::order) fn arrived(&mut self, lane: u32, share: NonZeroU32) {
        let returns = self.find(lane).is_none_or(|account| account.waiting == 0);
        let floor = if returns { self.floor() } else { 0 };
        let account = self.account(lane, share);
        account.waiting += 1;
        if returns {
            account.lift(floor);
            account.indexed = account.counter();
            let (indexed, service) = (account.indexed, account.service);
            self.waiting.insert((indexed, lane));
            self.service_waiting += service;
            self.shares_waiting += u64::from(share.get());
        }
    }

    /// A request of `lane` waits no longer. `charge` is what it pays if it has been taken for the
    /// first time.
    pub(in crate::order) fn left(&mut self, lane: u32, charge: Option<u128>) {
        if let Some(charge) = charge {
            self.charge(lane, charge);
        }
        let Some(account) = self.find_mut(lane) else {
            return;
        };
        account.begun += u32::from(charge.is_some());
        account.waiting = account.waiting.saturating_sub(1);
        if account.waiting > 0 {
            return;
        }
        let (indexed, service, share) = (account.indexed, account.service, account.share.get());
        self.waiting.remove(&(indexed, lane));
        self.service_waiting -= service;
        self.shares_waiting -= u64::from(share);
        self.last_waiting = Some(lane);
        self.forget_idle();
    }

    /// A running request of `lane` pays for what it was given.
    pub(in crate::order) fn charge(&mut self, lane: u32, charge: u128) {
        if let Some(account) = self.find_mut(lane) {
            account.service += charge;
            if account.waiting > 0 {
                self.service_waiting += charge;
            }
        }
    }

    /// A request of `lane` that had been taken has ended.
    pub(in crate::order) fn ended(&mut self, lane: u32) {
        if let Some(account) = self.find_mut(lane) {
            account.begun = account.begun.saturating_sub(1);
        }
        self.forget_idle();
    }

    /// Gives `lane` another share. Its counter stays where it was: what it was given before is divided by
    /// the share that it had then.
    pub(in crate::order) fn reshare(&mut self, lane: u32, share: NonZeroU32) {
        let Some(account) = self.find_mut(lane) else {
            return;
        };
        let (before, service, waits) = (account.share, account.service, account.waiting > 0);
        let counter = account.counter();
        account.share = share;
        if before != share {
            account.service = at(counter, share);
        }
        let after = account.service;
        if waits {
            self.service_waiting = self.service_waiting - service + after;
            self.shares_waiting =
                self.shares_waiting - u64::from(before.get()) + u64::from(share.get());
        }
    }

    /// A request of `lane` that was taken elsewhere counts here from now on.
    pub(in crate::order) fn moved_here(&mut self, lane: u32, share: NonZeroU32) {
        let floor = self.floor();
        let account = self.account(lane, share);
        if account.is_idle() {
            account.lift(floor);
        }
        account.begun += 1;
    }

    /// What `lane` was given for each share, in weighted tokens times the resolution.
    pub(in crate::order) fn counter(&self, lane: u32) -> u128 {
        self.find(lane).map_or(0, Account::counter)
    }

    /// What is known of `lane`.
    pub(in crate::order) fn find(&self, lane: u32) -> Option<&Account> {
        self.accounts
            .find(hash(lane), |account| account.lane == lane)
    }

    /// The part of the work that waits in other lanes, `others` weighted tokens in `requests`, that is
    /// served while `lane` is given the `own` weighted tokens that it has before a newcomer.
    ///
    /// The newcomer starts when its lane's counter has come to `v = counter + own / share`. By then each
    /// lane with a lower counter `c` and a share `s` has been given `(v - c) s` of what it has, in whole
    /// requests, taken to be alike. That is summed over the [`LOOKED_AT`] lanes with the lowest counters;
    /// all the others count as one, with the mean of their counters, whose sum is kept. So it is O(1).
    pub(in crate::order) fn others_ahead(
        &mut self,
        (lane, share): (u32, NonZeroU32),
        own: f64,
        others: f64,
        requests: u64,
    ) -> f64 {
        if requests == 0 || others <= 0.0 {
            return 1.0;
        }
        let floor = self.floor();
        let lead =
            |account: &Account| account.service.saturating_sub(at(floor, account.share)) as f64;
        let own = self.find(lane).map_or(0.0, lead) + own;
        let until = own / f64::from(share.get());
        let cost = others / requests as f64;
        let (mut shares, mut service) = (self.shares_waiting, self.service_waiting);
        let (mut left, mut ahead) = (requests, 0.0);
        let waits = self.find(lane).filter(|account| account.waiting > 0);
        let lowest = self.waiting.iter().filter(|&&(_, other)| other != lane);
        let lowest = lowest.filter_map(|&(_, other)| self.find(other));
        for account in lowest.take(LOOKED_AT) {
            shares -= u64::from(account.share.get());
            service -= account.service;
            let given = until * f64::from(account.share.get()) - lead(account);
            let started = match account.lane < lane {
                true => (given / cost).floor() + 1.0,
                false => (given / cost).ceil(),
            };
            ahead += started.clamp(0.0, f64::from(account.waiting));
            left = left.saturating_sub(u64::from(account.waiting));
        }
        if let Some(account) = waits {
            shares -= u64::from(account.share.get());
            service -= account.service;
        }
        let leads = service.saturating_sub(floor.saturating_mul(u128::from(shares)) / RESOLUTION);
        let given = until * shares as f64 - leads as f64;
        ahead += (given / cost).clamp(0.0, left as f64);
        (ahead / requests as f64).clamp(0.0, 1.0)
    }

    fn find_mut(&mut self, lane: u32) -> Option<&mut Account> {
        self.accounts
            .find_mut(hash(lane), |account| account.lane == lane)
    }

    fn account(&mut self, lane: u32, share: NonZeroU32) -> &mut Account {
        let entry = self.accounts.entry(
            hash(lane),
            |account| account.lane == lane,
            |account| hash(account.lane),
        );
        entry
            .or_insert_with(|| Account {
                lane,
                share,
                service: 0,
                waiting: 0,
                begun: 0,
                indexed: 0,
            })
            .into_mut()
    }

    /// The counter below which nobody has any credit: the lowest of those that wait, or, if nobody
    /// does, that of the last one that did.
    fn floor(&mut self) -> u128 {
        while let Some(&(indexed, lane)) = self.waiting.first() {
            let counter = self.find(lane).map_or(indexed, Account::counter);
            if counter <= indexed {
                return counter;
            }
            // It has risen since it was looked at last.
            self.waiting.remove(&(indexed, lane));
            self.waiting.insert((counter, lane));
            if let Some(account) = self.find_mut(lane) {
                account.indexed = counter;
            }
        }
        self.last_waiting.map_or(0, |lane| self.counter(lane))
    }

    /// Forgets lanes that have nothing waiting and nothing running and are not ahead: they would be
    /// lifted anyway. Of too many that are ahead, the half that is least so.
    fn forget_idle(&mut self) {
        if self.accounts.len() < self.forget_at {
            return;
        }
        let (floor, last) = (self.floor(), self.last_waiting);
        self.forget_below(floor);
        let idle = self.accounts.iter().filter(|account| account.is_idle());
        let mut ahead: Vec<u128> = idle.map(Account::counter).collect();
        if ahead.len() > IDLE_MAX {
            let middle = ahead.len() / 2;
            let (_, &mut median, _) = ahead.select_nth_unstable(middle);
            self.forget_below(median);
        }
        debug_assert!(last.is_none_or(|lane| self.find(lane).is_some()));
        self.forget_at = FORGET_AT_LEAST.max(2 * self.accounts.len());
    }

    fn forget_below(&mut self, counter: u128) {
        let last = self.last_waiting;
        self.accounts.retain(|account| {
            !account.is_idle() || account.counter() > counter || Some(account.lane) == last
        });
    }

    #[cfg(test)]
    pub(in crate::order) fn len(&self) -> usize {
        self.accounts.len()
    }
}

impl Account {
    /// Weighted tokens for each share.
    pub(in crate::order) fn service_per_share(&self) -> f64 {
        self.service as f64 / f64::from(self.share.get())
    }

    fn counter(&self) -> u128 {
        self.service * RESOLUTION / u128::from(self.share.get())
    }

    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.begun == 0
    }

    fn lift(&mut self, floor: u128) {
        self.service = self.service.max(at(floor, self.share));
    }
}

/// The least service with which a lane of this share is at `counter`.
fn at(counter: u128, share: NonZeroU32) -> u128 {
    (counter * u128::from(share.get())).div_ceil(RESOLUTION)
}

fn hash(lane: u32) -> u64 {
    mix(u64::from(lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    /// A request of `lane` comes, is taken for `charge` and ends.
    fn serve(ledger: &mut Ledger, lane: u32, charge: u128) {
        ledger.arrived(lane, ONE);
        ledger.left(lane, Some(charge));
        ledger.ended(lane);
    }

    #[test]
    fn who_is_ahead_is_not_forgotten_for_being_idle() {
        let mut ledger = Ledger::new();
        ledger.arrived(1, ONE); // waits throughout
        serve(&mut ledger, 2, 1_000);
        (10..500).for_each(|lane| serve(&mut ledger, lane, 0));
        assert_eq!(ledger.counter(2), 1_000 * RESOLUTION);
        assert!(ledger.len() <= 2 * FORGET_AT_LEAST, "{}", ledger.len());
    }

    #[test]
    fn lanes_without_end_that_are_all_ahead_take_bounded_memory() {
        let mut ledger = Ledger::new();
        ledger.arrived(0, ONE);
        serve(&mut ledger, 1, 1_000_000_000);
        let mut most = 0;
        for lane in 2..400_000 {
            serve(&mut ledger, lane, 1 + u128::from(lane % 100));
            most = most.max(ledger.len());
        }
        assert!(most <= 2 * (IDLE_MAX + 2), "{most}");
        assert_eq!(
            ledger.counter(1),
            1_000_000_000 * RESOLUTION,
            "the furthest ahead is remembered"
        );
    }

    #[test]
    fn the_greatest_charges_add_up_exactly() {
        let mut ledger = Ledger::new();
        let charge = u128::from(u32::MAX) * u128::from(u32::MAX);
        for lane in [1, 2] {
            ledger.arrived(lane, ONE);
        }
        (0..1_000_000).for_each(|_| ledger.charge(1, charge));
        ledger.charge(2, 1_000_000 * charge - 1);
        assert_eq!(ledger.counter(1) - ledger.counter(2), RESOLUTION);
    }

    #[test]
    fn what_waits_elsewhere_is_served_while_a_lane_catches_up() {
        let mut ledger = Ledger::new();
        for _ in 0..10 {
            ledger.arrived(1, ONE);
            ledger.arrived(2, ONE);
        }
        // Ten requests of 100 in each of two lanes.
        let ahead = |ledger: &mut Ledger, lane, share, own| {
            let requests = 20 - (own / 100.0) as u64;
            let others = 100.0 * requests as f64;
            ledger.others_ahead((lane, share), own, others, requests) * requests as f64
        };
        // As many as they have been given less: one each at equal counters, where the lower number goes
        // first.
        assert_eq!(ahead(&mut ledger, 3, ONE, 0.0), 2.0);
        assert_eq!(ahead(&mut ledger, 0, ONE, 0.0), 0.0);
        // The one with ten: until its own ten have been served.
        assert_eq!(ahead(&mut ledger, 1, ONE, 1_000.0), 10.0);
        // One that was given 300 more than they: three each, and the one at equal counters.
        ledger.arrived(3, ONE);
        ledger.charge(3, 300);
        ledger.left(3, None);
        assert_eq!(ahead(&mut ledger, 3, ONE, 0.0), 8.0);
        // A share of three catches up in a third of that.
        let three = NonZeroU32::new(3).unwrap();
        assert_eq!(
            ledger.others_ahead((4, three), 300.0, 2_000.0, 20),
            4.0 / 20.0
        );
    }

    #[test]
    fn many_lanes_are_foreseen_by_their_mean() {
        let mut ledger = Ledger::new();
        for lane in 0..1_000 {
            (0..10).for_each(|_| ledger.arrived(lane, ONE));
        }
        // Half of what waits in each is to be served before a lane that was given as much.
        ledger.arrived(5_000, ONE);
        ledger.charge(5_000, 500);
        let part = ledger.others_ahead((5_000, ONE), 0.0, 1_000_000.0, 10_000);
        assert!((part - 0.5).abs() < 0.01, "{part}");
    }
}
