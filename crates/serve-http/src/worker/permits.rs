//! The permits of the requests that are in the server at once, between tenants.
//!
//! A request takes a permit before any work is done for it, and gives it back when the engine has let go
//! of it; so permits bound the memory that requests take. Who of those that wait goes first is not decided
//! here but by the scheduler's order, which must see a request to do so. Hence the rule: a tenant may have
//! no more permits than are left free (the dynamic threshold of Choudhury and Hahne, 1998). There are twice
//! as one tenant can use, so alone it has half of them. Each that floods leaves half of what was free, and
//! nobody is refused while the permits taken are fewer than half of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::TenantId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All permits.
#[derive(Debug)]
pub(super) struct Permits {
    free: Arc<Semaphore>,
    /// Permits for one tenant alone; there are twice as many.
    share: u32,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// Permits of each tenant that has any.
    held: HashMap<TenantId, u32>,
    /// Requests refused since one last ended.
    refused: u32,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    /// Permits taken, by all.
    pub(super) taken: u32,
    /// Permits for one tenant alone.
    pub(super) share: u32,
    /// Requests refused since one last ended, this one included.
    pub(super) refused: u32,
}

/// A permit among the requests that may be in the server at once. Dropping it gives it back.
#[derive(Debug)]
pub struct Permit {
    tenant: TenantId,
    permits: Arc<Permits>,
    _permit: OwnedSemaphorePermit,
}

impl Permits {
    /// The most that one tenant can be given: what a semaphore can count on every platform.
    pub(super) const SHARE_MAX: u32 = u32::MAX >> 4;

    /// Permits of which one tenant alone can use `share`.
    pub(super) fn new(share: u32) -> Arc<Self> {
        let share = share.min(Self::SHARE_MAX);
        Arc::new(Self {
            free: Arc::new(Semaphore::new(2 * share as usize)),
            share,
            book: Mutex::default(),
        })
    }

    /// Takes a permit, if the tenant has fewer than are free.
    pub(super) fn reserve(self: &Arc<Self>, tenant: TenantId) -> Result<Permit, Full> {
        let mut book = self.lock();
        let held = book.held.get(&tenant).copied().unwrap_or(0);
        let free = self.free.available_permits();
        let permit = match (held as usize) < free {
            true => Arc::clone(&self.free).try_acquire_owned().ok(),
            false => None,
        };
        let Some(permit) = permit else {
            book.refused = book.refused.saturating_add(1);
            return Err(Full {
                taken: (2 * self.share).saturating_sub(free as u32),
                share: self.share,
                refused: book.refused,
            });
        };
        book.held.insert(tenant, held + 1);
        Ok(Permit {
            tenant,
            permits: Arc::clone(self),
            _permit: permit,
        })
    }

    /// Waits until all permits are free, and lets nobody in meanwhile.
    pub(super) async fn all_free(&self) {
        // Who holds all permits has seen every request leave. The semaphore is never closed.
        let _ = self.free.acquire_many(2 * self.share).await;
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        // Nothing here panics half-way through a change, so a poisoned book is a sound one.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Gives it back because its request has ended. A permit that is given back by a request that was
    /// turned away or displaced is no sign that there is room.
    pub(super) fn ended(self) {
        self.permits.lock().refused = 0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut book = self.permits.lock();
        if let Some(held) = book.held.get_mut(&self.tenant) {
            *held -= 1;
            if *held == 0 {
                book.held.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn tenant(id: u32) -> TenantId {
        TenantId::new(id)
    }

    /// As many permits as a tenant gets, up to `max`.
    fn flood(permits: &Arc<Permits>, id: u32, max: usize) -> Vec<Permit> {
        let one = || permits.reserve(tenant(id)).ok();
        std::iter::from_fn(one).take(max).collect()
    }

    #[test]
    fn as_many_flood_it_as_halves_allow_another_finds_a_place_and_nobody_is_refused_before_its_half()
     {
        for share in [1_u32, 2, 7, 272] {
            for floods in 1..=(2 * share).ilog2() {
                let permits = Permits::new(share);
                let held: Vec<_> = (0..floods)
                    .map(|id| flood(&permits, id, usize::MAX))
                    .collect();
                let taken: usize = held.iter().map(Vec::len).sum();
                let max = 2 * share as usize;
                assert!((share as usize..max).contains(&taken), "{share} {floods}");
                assert!(permits.reserve(tenant(floods)).is_ok(), "{share} {floods}");
            }
            let permits = Permits::new(share);
            assert_eq!(flood(&permits, 1, usize::MAX).len(), share as usize);
        }
    }

    #[test]
    fn there_are_never_more_than_twice_a_share_and_each_place_comes_back() {
        let permits = Permits::new(3);
        let held: Vec<_> = (0..100).flat_map(|id| flood(&permits, id, 9)).collect();
        assert_eq!(held.len(), 6);
        assert!(permits.all_free().now_or_never().is_none());
        drop(held);
        assert!(permits.lock().held.is_empty());
        assert!(permits.all_free().now_or_never().is_some());
    }

    #[test]
    fn refusals_are_counted_until_a_request_ends_and_not_until_one_is_turned_away() {
        let permits = Permits::new(2);
        let mut held = flood(&permits, 1, 2);
        let refused = || permits.reserve(tenant(1)).unwrap_err().refused;
        assert_eq!([refused(), refused()], [1, 2]);
        drop(held.pop());
        held.extend(permits.reserve(tenant(1)));
        assert_eq!(refused(), 3);
        held.pop().unwrap().ended();
        held.extend(permits.reserve(tenant(1)));
        assert_eq!(refused(), 1);
    }
}
