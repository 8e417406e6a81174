//! Whatever a service attaches to a request for its own policies. Nothing in this workspace looks into it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// One value of the service's own, shared by the clones of its request; or none, which costs nothing.
///
/// Two are equal if they are the same value, not a similar one.
#[derive(Clone, Default)]
pub struct Data(Option<Arc<dyn Any + Send + Sync>>);

impl Data {
    /// Nothing.
    pub const NONE: Self = Self(None);

    /// This value. It allocates once; an [`Arc`] that is there already goes in as it is, by [`From`].
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self::from(Arc::new(value))
    }

    /// The value, if there is one and it is a `T`.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_deref()?.downcast_ref()
    }
}

impl<T: Any + Send + Sync> From<Arc<T>> for Data {
    fn from(value: Arc<T>) -> Self {
        Self(Some(value))
    }
}

impl PartialEq for Data {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

impl Eq for Data {}

impl fmt::Debug for Data {
    /// Whether there is any: what it is, its owner knows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "Some(..)",
            None => "None",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_what_it_is_and_as_nothing_else() {
        let data = Data::new("eu".to_owned());
        assert_eq!(data.get::<String>().map(String::as_str), Some("eu"));
        assert_eq!(data.get::<&str>(), None);
        assert_eq!(data.get::<Arc<String>>(), None);
        assert_eq!(Data::NONE.get::<String>(), None);
        let shared = Arc::new(7_u32);
        assert_eq!(Data::from(Arc::clone(&shared)).get::<u32>(), Some(&7));
    }

    #[test]
    fn equal_is_the_same_value_and_not_a_similar_one() {
        let (one, other) = (Data::new(7_u32), Data::new(7_u32));
        assert_eq!(one, one.clone());
        assert_ne!(one, other);
        assert_ne!(one, Data::NONE);
        assert_eq!(Data::NONE, Data::default());
    }

    #[test]
    fn it_takes_two_words() {
        assert_eq!(size_of::<Data>(), 2 * size_of::<usize>());
    }
}
