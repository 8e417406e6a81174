//! What is done where the process may have only so many addresses (`ulimit -v`).
//!
//! A program that runs into this limit ends in the middle of something, in words of the allocator's or in none: an
//! allocation of a few bytes that fails ends any Rust program. glibc makes that likely under limits of hundreds of
//! megabytes, as it sets 64 MiB of addresses aside for each of some threads, used or not, until nothing is left for
//! anybody. So threads share one such arena here, and what a server has before it has a model is asked for as a
//! whole and given back untouched. (Weights and KV cache are compared with the limit when they are loaded.)

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::thread::available_parallelism;

use crate::failure::Failure;

/// How glibc is told of how many arenas there may be, when a program begins.
const ARENAS: &str = "MALLOC_ARENA_MAX";

/// The stack of a thread.
const STACK_BYTES: u64 = 2 << 20;

/// Threads for each core: of the runtime, for texts, for loading, of the kernels.
const THREADS_PER_CORE: u64 = 4;

/// Threads beside them: signals, reload, loader, log, the engine.
const THREADS: u64 = 8;

/// Threads that write to stdout and stderr.
const WRITERS: u64 = 2;

/// What a command line, its help and its errors come to.
const WORDS_BYTES: u64 = 8 << 20;

/// What a server without a model comes to, and some requests.
const HEAP_BYTES: u64 = 32 << 20;

/// Begins the program anew, as the same process, with one arena for all threads, where addresses are limited and nobody has said
/// how many arenas there are.
pub(crate) fn share_an_arena() {
    if !is_limited() || env::var_os(ARENAS).is_some() {
        return;
    }
    if let Ok(program) = env::current_exe() {
        let mut again = Command::new(program);
        // It returns if that cannot be done; then the program goes on as it is.
        drop(again.args(env::args_os().skip(1)).env(ARENAS, "1").exec());
    }
}

/// Whether there is room for a server.
pub(crate) fn check() -> Result<(), Failure> {
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
    room_for(THREADS + THREADS_PER_CORE * cores, HEAP_BYTES)
}

/// Whether there is room for the threads that write, without which there is nothing to say why. Before the first of them: where
/// one of several fails to begin, and the words of that do not fit either, the process waits for itself for ever.
pub(crate) fn check_for_words() -> Result<(), Failure> {
    room_for(WRITERS, WORDS_BYTES)
}

fn room_for(threads: u64, heap: u64) -> Result<(), Failure> {
    let bytes = threads * STACK_BYTES + heap;
    let room = usize::try_from(bytes).map(|bytes| Vec::<u8>::new().try_reserve_exact(bytes));
    match room {
        Ok(Err(_)) | Err(_) if is_limited() => Err(Failure::AddressSpace {
            mib: bytes >> 20,
            threads,
        }),
        _ => Ok(()),
    }
}

fn is_limited() -> bool {
    let soft = rlimit::Resource::AS.get_soft();
    soft.is_ok_and(|soft| soft != rlimit::INFINITY)
}
