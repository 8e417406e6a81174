//! The names by which clients can cancel live requests: the answer's id and `x-request-id`, each
//! within its tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve_core::{RequestId, TenantId};

/// A name within a tenant: another one's is not there to be found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) tenant: TenantId,
    pub(crate) name: String,
}

/// The names of live requests. A client may give several requests one `x-request-id`.
#[derive(Debug, Default)]
pub(crate) struct Names {
    entries: Mutex<HashMap<Name, Vec<RequestId>>>,
}

/// Keeps the names of one request for as long as it is held.
#[derive(Debug)]
pub(crate) struct Named {
    names: Arc<Names>,
    own: Vec<Name>,
    id: RequestId,
}

impl Names {
    /// Enters a request under `own`.
    pub(crate) fn enter(names: &Arc<Self>, own: Vec<Name>, id: RequestId) -> Named {
        let mut entries = names.lock();
        for name in &own {
            entries.entry(name.clone()).or_default().push(id);
        }
        drop(entries);
        Named {
            names: Arc::clone(names),
            own,
            id,
        }
    }

    /// The requests of this name.
    pub(crate) fn find(&self, name: &Name) -> Vec<RequestId> {
        self.lock().get(name).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Vec<RequestId>>> {
        // Nothing here panics half-way through a change, so a poisoned table is a sound one.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut entries = self.names.lock();
        for name in &self.own {
            if let Some(ids) = entries.get_mut(name) {
                ids.retain(|&id| id != self.id);
                if ids.is_empty() {
                    entries.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(tenant: u32, name: &str) -> Name {
        Name {
            tenant: TenantId::new(tenant),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_name_is_found_within_its_tenant_for_as_long_as_it_is_held() {
        let names = Arc::new(Names::default());
        let (one, two) = (RequestId::new(1), RequestId::new(2));
        let first = Names::enter(&names, vec![name(1, "a"), name(1, "x")], one);
        let second = Names::enter(&names, vec![name(1, "b"), name(1, "x")], two);
        assert_eq!(names.find(&name(1, "a")), [one]);
        assert_eq!(names.find(&name(1, "x")), [one, two]);
        assert!(names.find(&name(2, "a")).is_empty());
        drop(first);
        assert_eq!(names.find(&name(1, "x")), [two]);
        drop(second);
        assert!(names.lock().is_empty(), "nothing is kept");
    }
}
