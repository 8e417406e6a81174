//! Large pages for what a step reads from end to end.
//!
//! A decode step reads every weight once. With pages of 4 KiB a processor looks up a quarter of a million
//! of them for each gigabyte, and its prefetchers stop at the end of each; with pages of 2 MiB the same
//! memory is read faster. A system may have none to give: it is asked, and what it answers changes
//! nothing but the time.

/// The size of a large page on x86-64, and on 64-bit ARM with small pages of 4 KiB.
const LARGE: usize = 2 << 20;

/// Room for `len` values in large pages.
pub(crate) fn room<T>(len: usize) -> Vec<T> {
    let mut room = Vec::with_capacity(len);
    prefer_large(&mut room);
    room
}

/// Asks the system for large pages where the vector's capacity lies. To be called before the first
/// write: memory that is there already is moved later, or never.
fn prefer_large<T>(vector: &mut Vec<T>) {
    let start = vector.as_mut_ptr().addr().next_multiple_of(LARGE);
    let end = (vector.as_ptr().addr() + vector.capacity() * size_of::<T>()) / LARGE * LARGE;
    if start < end {
        advise(start, end - start);
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
#[expect(unsafe_code, reason = "the system is told of memory by its address")]
fn advise(start: usize, bytes: usize) {
    let start = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the range is a part of one allocation, which the caller borrows alone. This advice says
    // how the system should back it, and never changes what it holds. It may be refused.
    unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise(_: usize, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_holds_what_it_held_whatever_lies_under_it() {
        // Less than a large page, one that no large page lies in whole, and several.
        for len in [0, 3, LARGE / 4, 5 * LARGE / 4 + 7] {
            let mut numbers: Vec<u32> = (0..len as u32).collect();
            prefer_large(&mut numbers);
            assert!(numbers.iter().enumerate().all(|(i, &n)| i == n as usize));
            assert!(room::<u32>(len).capacity() >= len);
        }
    }
}
