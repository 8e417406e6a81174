//! A team of threads that share the tasks of one operation after another, hundreds in a step.
//!
//! The caller is one of the team. It never waits for a member that has not begun: what such a member
//! would have done, the others do. A member that finds nothing to do spins a little, since the next
//! operation is near, and then sleeps. Nothing is allocated.
#![expect(
    unsafe_code,
    reason = "threads that outlive a call run a closure that does not, and write to parts of one buffer"
)]

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Threads for the operations of one device.
#[derive(Debug)]
pub struct Team {
    shared: Arc<Shared>,
    members: Vec<JoinHandle<()>>,
    /// For each thread, the next of its own tasks.
    cursors: Vec<Cursor>,
}

/// Alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cursor(AtomicUsize);

type Work = dyn Fn(usize) + Sync;

struct Shared {
    /// The number of the job, whether it is open, and how many members are inside.
    state: AtomicU64,
    /// What to call. Written while the job is closed and nobody is inside, read by who is inside.
    job: UnsafeCell<Option<*const Work>>,
    /// Whether a member's part of a job panicked.
    panicked: AtomicBool,
    stop: AtomicBool,
    /// Members that have begun.
    begun: AtomicUsize,
    asleep: AtomicUsize,
    bed: Mutex<()>,
    alarm: Condvar,
}

// SAFETY: `job` is written by the one caller (the methods of a `Team` take `&mut self`) while the job is closed
// and nobody is inside, and read by members inside; entering and leaving order the two. It points to
// something `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

const INSIDE: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const NEXT: u64 = 1 << 17;

/// How often a member looks for the next job before it sleeps: some tens of microseconds.
const SPINS: u32 = 2_000;

impl Team {
    /// A team of `threads`, the caller among them. At least the caller is there, whatever is asked
    /// for and whatever the system refuses.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            begun: AtomicUsize::new(0),
            asleep: AtomicUsize::new(0),
            bed: Mutex::new(()),
            alarm: Condvar::new(),
        });
        let member = |index: usize| {
            let shared = Arc::clone(&shared);
            let name = format!("kernels-{index}");
            let builder = thread::Builder::new().name(name);
            builder.spawn(move || shared.serve(index)).ok()
        };
        let members: Vec<_> = (1..threads.min(1 << 15)).map_while(member).collect();
        // What a thread makes for itself when it begins is made before the first operation.
        while shared.begun.load(Ordering::Relaxed) < members.len() {
            thread::yield_now();
        }
        let cursors = (0..=members.len()).map(|_| Cursor::default()).collect();
        Self {
            shared,
            members,
            cursors,
        }
    }

    /// Threads, the caller among them.
    pub fn threads(&self) -> usize {
        self.cursors.len()
    }

    /// Runs `task` once for each number below `tasks`. Each thread walks through a run of its own,
    /// then helps the others with theirs.
    ///
    /// # Panics
    ///
    /// When a task does.
    pub(crate) fn for_each(&mut self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let threads = self.threads().min(tasks);
        if threads <= 1 {
            (0..tasks).for_each(task);
            return;
        }
        let start = |thread: usize| thread * tasks / threads;
        let cursors = &self.cursors[..threads];
        for (thread, cursor) in cursors.iter().enumerate() {
            cursor.0.store(start(thread), Ordering::Relaxed);
        }
        self.shared.run(&|thread| {
            for turn in 0..threads {
                let owner = (thread + turn) % threads;
                loop {
                    let index = cursors[owner].0.fetch_add(1, Ordering::Relaxed);
                    if index >= start(owner + 1) {
                        break;
                    }
                    task(index);
                }
            }
        });
    }

    /// Cuts `out`, `[rows, columns]`, before each of `row_starts` and before every `width`th column,
    /// and runs `task` once for each tile, with the number of its rows' cut and of its columns'.
    ///
    /// # Panics
    ///
    /// When `row_starts` do not ascend within `out`, or a task panics.
    pub(crate) fn for_each_tile(
        &mut self,
        out: &mut [f32],
        columns: usize,
        width: usize,
        row_starts: &[usize],
        task: &(dyn Fn(usize, usize, Tile<'_>) + Sync),
    ) {
        let rows = out.len() / columns;
        assert!(row_starts.is_sorted() && row_starts.last().is_none_or(|&last| last <= rows));
        let stripes = columns.div_ceil(width);
        let base = Base(out.as_mut_ptr());
        self.for_each(row_starts.len() * stripes, &|index| {
            let (cut, stripe) = (index / stripes, index % stripes);
            let first_row = row_starts[cut];
            let end_row = row_starts.get(cut + 1).copied().unwrap_or(rows);
            let first_column = stripe * width;
            let tile = Tile {
                // SAFETY: within `out`, as the row and the column are.
                start: unsafe { base.get().add(first_row * columns + first_column) },
                rows: end_row - first_row,
                width: width.min(columns - first_column),
                stride: columns,
                out: PhantomData,
            };
            task(cut, stripe, tile);
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.bed.lock());
        self.shared.alarm.notify_all();
        for member in self.members.drain(..) {
            drop(member.join());
        }
    }
}

/// Closes the job and waits until nobody is inside.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0;
        while self.0.state.load(Ordering::Acquire) & INSIDE != 0 {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }
}

impl Shared {
    /// Calls `work` with its number on every member that comes, and on this thread with 0; comes back
    /// when all that came have left. Only one thread may call it at a time.
    fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let work: *const (dyn Fn(usize) + Sync + '_) = std::ptr::from_ref(work);
        // SAFETY: only the lifetime changes. `Leave` closes the job and waits until nobody is inside,
        // also when this thread's part panics, and members look at the job only inside; so none uses
        // it after this call.
        let work: *const Work = unsafe { std::mem::transmute(work) };
        // SAFETY: the job is closed and nobody is inside, since the last call has returned.
        unsafe { *self.job.get() = Some(work) };
        let state = self.state.load(Ordering::Relaxed);
        let open = (state & !(INSIDE | OPEN)).wrapping_add(NEXT) | OPEN;
        self.state.store(open, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            drop(self.bed.lock());
            self.alarm.notify_all();
        }
        let leave = Leave(self);
        // SAFETY: it points to what this call was given.
        unsafe { (*work)(0) };
        drop(leave);
        let panicked = self.panicked.swap(false, Ordering::Relaxed);
        assert!(
            !panicked,
            "a part of an operation panicked on another thread"
        );
    }

    /// A member's life.
    fn serve(&self, index: usize) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut seen = 0;
        let mut spins = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.help(index, &mut seen) {
                spins = 0;
            } else if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                self.sleep(seen);
                spins = 0;
            }
        }
    }

    /// Does a part of a job that it has not seen yet. Whether there was one.
    fn help(&self, index: usize, seen: &mut u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        if !news(state, *seen) {
            return false;
        }
        let enter = self.state.compare_exchange_weak(
            state,
            state + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if enter.is_err() {
            return true;
        }
        *seen = state & !(INSIDE | OPEN);
        // SAFETY: this thread is inside.
        let job = unsafe { *self.job.get() };
        if let Some(work) = job {
            // SAFETY: the caller of `run` waits until this thread has left.
            let part = AssertUnwindSafe(|| unsafe { (*work)(index) });
            if catch_unwind(part).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
        }
        self.state.fetch_sub(1, Ordering::Release);
        true
    }

    fn sleep(&self, seen: u64) {
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        self.asleep.fetch_add(1, Ordering::SeqCst);
        while !news(self.state.load(Ordering::SeqCst), seen) && !self.stop.load(Ordering::SeqCst) {
            bed = self.alarm.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a job is open that is not the one seen last.
fn news(state: u64, seen: u64) -> bool {
    state & OPEN != 0 && state & !(INSIDE | OPEN) != seen
}

/// Where a buffer begins that threads write to in different places.
#[derive(Clone, Copy)]
struct Base(*mut f32);

// SAFETY: only `for_each_tile` makes one, and the tiles that it cuts do not overlap.
unsafe impl Sync for Base {}

impl Base {
    /// A method, so that a closure captures the whole and not the pointer.
    fn get(&self) -> *mut f32 {
        self.0
    }
}

/// Some neighbouring columns of some neighbouring rows of a buffer.
pub(crate) struct Tile<'a> {
    start: *mut f32,
    rows: usize,
    width: usize,
    stride: usize,
    out: PhantomData<&'a mut [f32]>,
}

impl Tile<'_> {
    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The columns of one row.
    ///
    /// # Panics
    ///
    /// When there is no such row.
    #[inline(always)]
    pub(crate) fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: the row lies within the buffer, which is borrowed for as long as the tile is there,
        // and no other tile has these columns of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.stride), self.width) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 5] {
            let mut team = Team::new(threads);
            for tasks in (0..40).chain([1_000]) {
                let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.for_each(tasks, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                let all = counts.iter().all(|n| n.load(Ordering::Relaxed) == 1);
                assert!(all, "{threads} threads, {tasks} tasks");
            }
        }
    }

    #[test]
    fn tiles_cover_a_buffer_without_overlap() {
        let mut team = Team::new(3);
        for (rows, columns, width) in [(1, 1, 1), (3, 10, 4), (7, 64, 64), (5, 33, 16)] {
            let mut out = vec![0.0; rows * columns];
            let starts: Vec<usize> = (0..rows).step_by(2).collect();
            team.for_each_tile(
                &mut out,
                columns,
                width,
                &starts,
                &|cut, stripe, mut tile| {
                    for row in 0..tile.rows() {
                        let number = (cut * 100 + stripe + 1) as f32;
                        tile.row(row).iter_mut().for_each(|x| *x += number);
                    }
                },
            );
            for (index, &found) in out.iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                assert_eq!(found, (row / 2 * 100 + column / width + 1) as f32);
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let mut team = Team::new(2);
        let panic = |team: &mut Team| {
            let tasks = AssertUnwindSafe(|| team.for_each(8, &|index| assert!(index != 5)));
            catch_unwind(tasks).is_err()
        };
        assert!(panic(&mut team));
        let sum = AtomicUsize::new(0);
        team.for_each(100, &|index| {
            sum.fetch_add(index, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 4_950);
    }

    #[test]
    fn members_wake_up_after_a_pause() {
        let mut team = Team::new(2);
        for _ in 0..3 {
            // Each waits for the other, so both must come.
            let here = Barrier::new(2);
            team.for_each(2, &|_| {
                here.wait();
            });
            thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
